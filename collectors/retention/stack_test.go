package retention_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/kafkaconn"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/retention"
	"oncewatch/collectors/state"
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

const day = 24 * time.Hour

// runbookDDL is the runbook's table, and beside it what a consumer without
// further protection does: an effect for every event it believes to be new.
const runbookDDL = `CREATE TABLE processed_events (
    consumer_group text        NOT NULL,
    event_id       text        NOT NULL,
    topic          text        NOT NULL,
    partition      int         NOT NULL,
    "offset"       bigint      NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX processed_events_processed_at ON processed_events (processed_at);
` + effectsDDL

const effectsDDL = `CREATE TABLE effects (consumer_group text, topic text, partition int, event_id text)`

// stack is a database, a cluster, and an exporter between them.
type stack struct {
	testing.TB
	dsn     string
	conn    *pgx.Conn
	brokers []string
	client  *kgo.Client
	admin   *kadm.Client
	columns string // of the marker table: what the consumer writes
	events  int

	config   postgres.Config
	options  func(*retention.Options)
	exporter *exporter
	// kept is the folder of the exporter's state; empty: memory only. later is
	// how far the exporter's clock is ahead.
	kept  string
	later time.Duration
}

type exporter struct {
	store                             *postgres.Store
	compared                          *retention.Source
	kafka                             *kafka.Client
	markers, topics, groups, retained *poll.Poller
}

func newStack(t testing.TB, brokers []string, ddl string) *stack {
	t.Helper()
	s := &stack{TB: t, dsn: testenv.Postgres(t), brokers: brokers, columns: `consumer_group, event_id, topic, partition, "offset", processed_at`}
	ctx := s.ctx()
	var err error
	if s.conn, err = pgx.Connect(ctx, s.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close(context.Background()) })
	s.exec(ddl)
	s.client, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.UnknownTopicRetries(-1), kgo.RetryTimeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	s.admin = kadm.NewClient(s.client)
	s.config.Config = dbconn.To(s.dsn)
	return s
}

func (s *stack) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	s.Cleanup(cancel)
	return ctx
}

func (s *stack) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.conn.Exec(s.ctx(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

func (s *stack) topic(name string, partitions int32, configs map[string]string) string {
	s.Helper()
	values := map[string]*string{}
	for k, v := range configs {
		values[k] = &v
	}
	resp, err := s.admin.CreateTopic(s.ctx(), partitions, 1, values, name)
	if err == nil {
		err = resp.Err
	}
	if err != nil {
		s.Fatalf("create topic %s: %v", name, err)
	}
	return name
}

func (s *stack) configure(topic, key, value string) {
	s.Helper()
	resp, err := s.admin.AlterTopicConfigs(s.ctx(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
	if err == nil {
		err = resp[0].Err
	}
	if err != nil {
		s.Fatal(err)
	}
}

// produce writes n records to each partition, a step apart from a time on, in
// small batches so that segments can roll between them.
func (s *stack) produce(topic string, partitions int32, n int, from time.Time, step time.Duration) {
	s.Helper()
	var batch []*kgo.Record
	flush := func() {
		if err := s.client.ProduceSync(s.ctx(), batch...).FirstErr(); err != nil {
			s.Fatal(err)
		}
		batch = batch[:0]
	}
	for i := range n {
		for p := range partitions {
			batch = append(batch, s.event(topic, p, from.Add(time.Duration(i)*step)))
		}
		if len(batch) >= 72 {
			flush()
		}
	}
	flush()
}

func (s *stack) event(topic string, partition int32, at time.Time) *kgo.Record {
	s.events++
	return &kgo.Record{Topic: topic, Partition: partition, Timestamp: at, Key: fmt.Appendf(nil, "evt-%d", s.events), Value: []byte("{}")}
}

// starts are the log starts of a topic's partitions.
func (s *stack) starts(topic string) map[int32]int64 {
	s.Helper()
	return s.offsets(s.admin.ListStartOffsets(s.ctx(), topic))
}

func (s *stack) offsets(listed kadm.ListedOffsets, err error) map[int32]int64 {
	s.Helper()
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		s.Fatal(err)
	}
	out := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { out[o.Partition] = o.Offset })
	return out
}

// until waits for the broker to have done something.
func (s *stack) until(what string, ok func() bool) {
	s.Helper()
	testenv.Eventually(s, what, ok)
}

// untilStart waits until every partition's log has lost its head up to offset.
func (s *stack) untilStart(topic string, offset int64) {
	s.Helper()
	s.until(fmt.Sprintf("%s starts at %d or later", topic, offset), func() bool {
		for _, start := range s.starts(topic) {
			if start < offset {
				return false
			}
		}
		return true
	})
}

// reset sets a group to earliest, as kafka-consumer-groups does: it commits the
// log starts.
func (s *stack) reset(group, topic string) { s.resetTo(group, topic, s.starts(topic)) }

func (s *stack) resetTo(group, topic string, to map[int32]int64) {
	s.Helper()
	var offsets kadm.Offsets
	for p, at := range to {
		offsets.AddOffset(topic, p, at, -1)
	}
	s.until("the group's coordinator takes a commit", func() bool {
		resp, err := s.admin.CommitOffsets(s.ctx(), group, offsets)
		if err == nil {
			err = resp.Error()
		}
		if err != nil && !kerr.IsRetriable(err) {
			s.Fatal(err)
		}
		return err == nil
	})
}

// consumer is the runbook's loop: marker and effect in one transaction, then
// the offset. It knows what the markers tell, and nothing else.
type consumer struct {
	*stack
	group, topic string
	// at is when it claims to have handled a record; nil: now.
	at func(*kgo.Record) time.Time
	// limit ends it after so many records; 0: at the end of the log.
	limit int
}

// whenWritten claims that a record was handled as soon as it was written.
func whenWritten(r *kgo.Record) time.Time { return r.Timestamp }

// run handles everything from the group's offsets, or the log's start, to the
// end of the log.
func (c consumer) run() {
	c.Helper()
	ctx := c.ctx()
	ends := c.offsets(c.admin.ListCommittedOffsets(ctx, c.topic))
	var committed kadm.OffsetResponses
	c.until("the group's coordinator answers", func() (ok bool) {
		var err error
		committed, err = c.admin.FetchOffsetsForTopics(ctx, c.group, c.topic)
		if err != nil && !kerr.IsRetriable(err) && !errors.Is(err, kerr.GroupIDNotFound) { // a group's first commit makes it
			c.Fatal(err)
		}
		return !kerr.IsRetriable(err)
	})
	at := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	for p, start := range c.starts(c.topic) {
		if o, ok := committed.Lookup(c.topic, p); ok && o.At >= 0 {
			start = o.At
		}
		if at[p] = start; start < ends[p] {
			from[p] = kgo.NewOffset().At(start)
		}
	}
	if len(from) == 0 {
		return
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		c.Fatal(err)
	}
	defer client.Close()
	left := c.limit
	for {
		done := true
		for p := range from {
			done = done && at[p] >= ends[p]
		}
		if done {
			return
		}
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			c.Fatal(err)
		}
		over := false
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			records := f.Records
			for len(records) > 0 && !over {
				n := min(200, len(records))
				if c.limit > 0 {
					n = min(n, left)
				}
				c.handle(ctx, records[:n])
				at[f.Partition] = records[n-1].Offset + 1
				c.resetTo(c.group, c.topic, map[int32]int64{f.Partition: at[f.Partition]})
				left -= n
				over = c.limit > 0 && left <= 0
				records = records[n:]
			}
		})
		if over {
			return
		}
	}
}

// handle is one transaction.
func (c consumer) handle(ctx context.Context, records []*kgo.Record) {
	c.Helper()
	values := map[string]string{"consumer_group": "$1", "event_id": "$2", "topic": "$3", "partition": "$4::int", `"offset"`: "$5::bigint", "processed_at": "coalesce($6::timestamptz, now())"}
	var list []string
	for _, column := range strings.Split(c.columns, ", ") {
		list = append(list, values[column])
	}
	sql := `WITH marker AS (INSERT INTO processed_events (` + c.columns + `) VALUES (` + strings.Join(list, ", ") + `) ON CONFLICT DO NOTHING RETURNING 1),
	  given AS (SELECT $3::text AS topic, $4::int AS partition, $5::bigint, $6::timestamptz)
	  INSERT INTO effects SELECT $1, topic, partition, $2 FROM marker, given`
	batch := &pgx.Batch{}
	for _, r := range records {
		if r.Attrs.IsControl() {
			continue
		}
		var at *time.Time
		if c.at != nil {
			claimed := c.at(r)
			at = &claimed
		}
		id := r.Key
		for _, h := range r.Headers {
			if h.Key == "id" {
				id = h.Value
			}
		}
		batch.Queue(sql, c.group, string(id), r.Topic, r.Partition, r.Offset, at)
	}
	if err := pgx.BeginFunc(ctx, c.conn, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() }); err != nil {
		c.Fatal(err)
	}
}

// twice counts the effects that were applied again, by partition.
func (s *stack) twice(group, topic string) map[int32]int64 {
	s.Helper()
	rows, err := s.conn.Query(s.ctx(), `SELECT partition, count(*) - count(DISTINCT event_id) FROM effects
	  WHERE consumer_group = $1 AND topic = $2 GROUP BY 1`, group, topic)
	if err != nil {
		s.Fatal(err)
	}
	defer rows.Close()
	out := map[int32]int64{}
	for rows.Next() {
		var p int32
		var n int64
		if err := rows.Scan(&p, &n); err != nil {
			s.Fatal(err)
		}
		out[p] = n
	}
	if err := rows.Err(); err != nil {
		s.Fatal(err)
	}
	return out
}

// start starts the exporter, anew where one runs.
func (s *stack) start() {
	s.Helper()
	s.stop()
	log := slog.New(slog.NewTextHandler(s.Output(), nil))
	e := &exporter{}
	var err error
	later := s.later
	now := func() time.Time { return time.Now().Add(later) }
	if e.store, err = postgres.New(s.config, log, now); err != nil {
		s.Fatal(err)
	}
	if e.kafka, err = kafka.New(kafka.Config{Config: kafkaconn.Config{Brokers: s.brokers}, Granularity: kafka.ByPartition, MaxGroups: 1000, TopicConfigInterval: time.Second}, log, now); err != nil {
		s.Fatal(err)
	}
	poller := func(name string, source poll.Source) *poll.Poller {
		return poll.New(source, poll.Options{ID: poll.ID{Subject: poll.Subject(name)}, Interval: time.Hour, Timeout: 20 * time.Second, Now: now, Log: log})
	}
	e.markers, e.topics, e.groups = poller("markers", e.store.Markers()), poller("topics", e.kafka.Topics()), poller("groups", e.kafka.Groups())
	o := retention.Options{
		Markers: []func() *postgres.Markers{func() *postgres.Markers { m, _ := e.markers.Latest().(*postgres.Markers); return m }},
		Topics:  func() *kafka.Topics { m, _ := e.topics.Latest().(*kafka.Topics); return m },
		Groups:  func() *kafka.Groups { m, _ := e.groups.Latest().(*kafka.Groups); return m },
		Offsets: e.kafka, Now: now,
	}
	if s.options != nil {
		s.options(&o)
	}
	e.compared = retention.New(o)
	e.retained = poller("retention", e.compared)
	if s.kept != "" {
		s.restore(e)
	}
	if s.exporter == nil {
		s.Cleanup(s.stop)
	}
	s.exporter = e
}

// restore starts an exporter from what was kept.
func (s *stack) restore(e *exporter) {
	s.Helper()
	dir, err := state.Open(s.kept)
	if err != nil {
		s.Fatal(err)
	}
	defer dir.Close()
	body, err := dir.Read("markers")
	if err != nil || body == nil {
		s.Fatalf("%d bytes of state, %v", len(body), err)
	}
	kept, err := state.Decode(body)
	if err != nil {
		s.Fatal(err)
	}
	e.store.Restore(kept.Ledger, func(why string) { s.Errorf("refused: %s", why) })
	e.compared.Restore(kept.Compared)
}

// save keeps what the exporter knows now.
func (s *stack) save() {
	s.Helper()
	if s.kept == "" {
		s.kept = s.TempDir()
	}
	dir, err := state.Open(s.kept)
	if err != nil {
		s.Fatal(err)
	}
	defer dir.Close()
	kept := state.Store{Saved: time.Now(), Compared: s.exporter.compared.Keep(s.database()), Ledger: s.exporter.store.Keep()}
	if kept.Ledger == nil || kept.Compared == nil {
		s.Fatal("nothing to keep")
	}
	if err := dir.Write("markers", kept.Encode()); err != nil {
		s.Fatal(err)
	}
}

func (s *stack) database() (name string) {
	s.Helper()
	if err := s.conn.QueryRow(s.ctx(), "SELECT current_database()").Scan(&name); err != nil {
		s.Fatal(err)
	}
	return name
}

func (s *stack) stop() {
	if e := s.exporter; e != nil && e.store != nil {
		e.store.Close()
		e.kafka.Close()
		e.store = nil
	}
}

// look lets every source poll, as often as the rule about commits and markers
// needs, and returns a group's series.
func (s *stack) look(group, topic string) *retention.Series {
	s.Helper()
	var failed error
	for deadline, polls := time.Now().Add(time.Minute), 0; ; {
		if m, ok := s.exporter.markers.Latest().(*postgres.Markers); polls >= 2 && ok && settled(m) {
			break
		}
		if time.Now().After(deadline) {
			s.Fatalf("the exporter did not settle within a minute: %d polls, %v", polls, failed)
		}
		if failed = s.poll(); failed == nil {
			polls++
		}
	}
	one := s.exporter.retained.Latest().(*retention.Snapshot).Find(s.database(), group, topic)
	if one == nil {
		s.Fatalf("nothing of group %s on topic %s", group, topic)
	}
	return one
}

// poll lets every source poll once. A machine that is overloaded makes polls
// fail; they are tried again.
func (s *stack) poll() error {
	s.Helper()
	for _, p := range []*poll.Poller{s.exporter.groups, s.exporter.topics, s.exporter.markers, s.exporter.retained} {
		if err := p.Once(s.ctx()); err != nil {
			return err
		}
		for _, problem := range p.Status().Problems {
			if problem.Kind != "timeout" {
				s.Errorf("%s: %s: %v", p.Status().ID.String(), problem.Entity, problem.Err)
			}
		}
	}
	return nil
}

// settled says that the ledger has found all that the server says has changed:
// back-dated markers and deletions in the middle take it a poll or two.
func settled(m *postgres.Markers) bool {
	return m.Ready && !slices.Contains(m.Inexact, postgres.ReasonUnexplained) && !slices.Contains(m.Inexact, postgres.ReasonCatchingUp)
}

// announced is the number told for each partition; where one is not known, the
// test fails.
func (s *stack) announced(group, topic string) map[int32]int64 {
	s.Helper()
	out := map[int32]int64{}
	for _, p := range s.look(group, topic).Partitions {
		if !p.Unprotected.OK {
			s.Errorf("group %s, topic %s, partition %d: not known: %s", group, topic, p.Partition, p.Why)
		}
		out[p.Partition] = p.Unprotected.Value
	}
	return out
}

func total(of map[int32]int64) (sum int64) {
	for _, n := range of {
		sum += n
	}
	return sum
}

// prove resets a group to earliest, lets it handle the whole log again, and
// compares the effects that were applied twice with what was announced. It
// returns the sum.
func (s *stack) prove(what, group, topic string) int64 {
	s.Helper()
	s.planned(what, group, topic)
	said := s.announced(group, topic)
	before := s.twice(group, topic)
	s.reset(group, topic)
	consumer{stack: s, group: group, topic: topic}.run()
	for p, n := range s.twice(group, topic) {
		if n -= before[p]; n != said[p] {
			s.Errorf("%s: group %s, topic %s, partition %d: announced %d, applied twice %d", what, group, topic, p, said[p], n)
		}
	}
	if after := s.announced(group, topic); total(after) != 0 {
		s.Errorf("%s: group %s, topic %s: %v announced after the replay wrote the markers again", what, group, topic, after)
	}
	s.Logf("%s: group %s, topic %s: announced %d, applied twice %d", what, group, topic, total(said), total(s.twice(group, topic))-total(before))
	return total(said)
}

// prune is the runbook's pruner.
func (s *stack) prune(group string, older time.Duration) {
	s.Helper()
	s.exec(`DELETE FROM processed_events WHERE consumer_group = $1 AND processed_at < now() - $2::bigint * interval '1 second'`, group, int64(older.Seconds()))
}
