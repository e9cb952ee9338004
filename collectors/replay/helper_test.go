package replay_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/kafkaconn"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/replay"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// ddl is the runbook's table with the reference consumer's hash of the payload.
const ddl = `CREATE TABLE processed_events (
    consumer_group text        NOT NULL,
    event_id       text        NOT NULL,
    topic          text        NOT NULL,
    partition      int         NOT NULL,
    "offset"       bigint      NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    payload_hash   bigint,
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX ON processed_events (processed_at)`

// plainDDL is a table without a record's place, and ids that are UUIDs.
const plainDDL = `CREATE TABLE processed_events (
    consumer_group text        NOT NULL,
    event_id       uuid        NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX ON processed_events (processed_at)`

// world is a database, a cluster, and what a group has done.
type world struct {
	testing.TB
	ctx     context.Context
	dsn     string
	brokers []string
	conn    *pgx.Conn
	client  *kgo.Client
	admin   *kadm.Client
	kafka   *kafka.Client
	store   *postgres.Store
	topics  poll.Source
	groups  poll.Source
}

func newWorld(t testing.TB, ddl string) *world {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return newWorldAt(t, cluster.ListenAddrs(), ddl)
}

func newWorldAt(t testing.TB, brokers []string, ddl string) *world {
	t.Helper()
	return newWorldOn(t, brokers, testenv.Postgres(t), ddl)
}

func newWorldOn(t testing.TB, brokers []string, dsn, ddl string) *world {
	t.Helper()
	patience := 2 * time.Minute
	if _, long := t.(*testing.B); long {
		patience = 30 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	w := &world{TB: t, ctx: ctx, dsn: dsn, brokers: brokers}
	var err error
	if w.conn, err = pgx.Connect(ctx, w.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close(context.Background()) })
	w.exec(ddl)
	if w.client, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(-1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.Close)
	w.admin = kadm.NewClient(w.client)
	if w.kafka, err = kafka.New(kafka.Config{Config: kafkaconn.Config{Brokers: brokers}, Granularity: kafka.ByPartition, MaxGroups: 1000, TopicConfigInterval: time.Minute}, nil, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kafka.Close)
	w.topics, w.groups = w.kafka.Topics(), w.kafka.Groups()
	if w.store, err = postgres.New(postgres.Config{Config: dbconn.To(w.dsn)}, nil, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.conn.Exec(w.ctx, sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) topic(name string, partitions int32) {
	w.Helper()
	if resp, err := w.admin.CreateTopic(w.ctx, partitions, 1, nil, name); err != nil || resp.Err != nil {
		w.Fatal(err, resp.Err)
	}
}

// from is the first record's time; each next one is a minute later.
var from = time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)

// produce writes n records to a partition, with ids PARTITION-OFFSET from an
// empty log on.
func (w *world) produce(topic string, partition int32, n int) {
	w.Helper()
	var records []*kgo.Record
	for i := range n {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Timestamp: from.Add(time.Duration(i) * time.Minute),
			Key: []byte("k"), Value: fmt.Appendf(nil, `{"n":%d}`, i),
			Headers: []kgo.RecordHeader{{Key: "event_id", Value: fmt.Appendf(nil, "%d-%d", partition, i)}}})
	}
	w.send(records...)
}

func (w *world) send(records ...*kgo.Record) {
	w.Helper()
	for some := range slices.Chunk(records, 1000) {
		if err := w.client.ProduceSync(w.ctx, some...).FirstErr(); err != nil {
			w.Fatal(err)
		}
	}
}

// mark writes the markers of a partition's records first to last.
func (w *world) mark(group, topic string, partition int32, first, last int) {
	w.Helper()
	w.exec(`INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset", payload_hash)
	  SELECT $1, $3::int || '-' || n, $2, $3, n, ('x' || substr(encode(sha256(convert_to('{"n":' || n || '}', 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint
	  FROM generate_series($4::int, $5::int) n`, group, topic, partition, first, last)
}

func (w *world) commit(group, topic string, partition int32, at int64) {
	w.Helper()
	var o kadm.Offsets
	o.AddOffset(topic, partition, at, -1)
	resp, err := w.admin.CommitOffsets(w.ctx, group, o)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		w.Fatal(err)
	}
}

// verify is the command's --verify.
func (w *world) verify(group, to string, change ...func(*replay.Verifier)) (*replay.Answer, error) {
	w.Helper()
	return w.verifyUntil(w.ctx, group, to, change...)
}

func (w *world) verifyUntil(ctx context.Context, group, to string, change ...func(*replay.Verifier)) (*replay.Answer, error) {
	w.Helper()
	topics, err := w.topics.Poll(w.ctx)
	if err != nil {
		w.Fatal(err)
	}
	groups, err := w.groups.Poll(w.ctx)
	if err != nil {
		w.Fatal(err)
	}
	seen := replay.Seen{Groups: groups.(*kafka.Groups), Topics: topics.(*kafka.Topics), Whole: true}
	a, err := seen.Begin(w.ctx, replay.Question{Group: group, To: to}, w.kafka, from.Add(30*24*time.Hour))
	if err != nil {
		return nil, err
	}
	lookup, err := w.store.Lookup(w.ctx, group)
	if err != nil {
		return nil, err
	}
	id, err := replay.ParseEventID("header:event_id")
	if err != nil {
		return nil, err
	}
	v := replay.Verifier{EventID: id, IDFrom: "header:event_id", Markers: []replay.Markers{lookup},
		Read: func(ctx context.Context, topic string, spans []kafka.Span) (replay.Records, error) {
			r, err := w.kafka.Read(ctx, topic, spans)
			if r != nil {
				r.Patience = 10 * time.Second
			}
			return r, err
		}}
	for _, c := range change {
		c(&v)
	}
	return a, v.Verify(ctx, a)
}
