package stream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/stream"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const topic = "payments"

// bundle is a test's own broker and database.
type bundle struct {
	t      *testing.T
	k      *kfake.Cluster
	pool   *pgxpool.Pool
	client *kgo.Client // to publish, partition by partition
	admin  *kadm.Client
	seq    int
}

func setup(t *testing.T, partitions int32) *bundle {
	t.Helper()
	t.Parallel()
	dsn := testenv.Postgres(t)
	if err := schema.Migrate(t.Context(), dsn, schema.Options{}); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic), kfake.GroupMinSessionTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	b := &bundle{t: t, k: k, pool: pool}
	b.connect()
	return b
}

// connect makes the client to publish with.
func (b *bundle) connect() {
	b.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.k.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(client.Close)
	b.client, b.admin = client, kadm.NewClient(client)
}

// publish n payments to a partition and return their ids.
func (b *bundle) publish(partition int32, n int, headers ...kgo.RecordHeader) []string {
	b.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		b.seq++
		ids[i] = fmt.Sprintf("evt-%06d", b.seq)
	}
	b.publishIDs(partition, ids, headers...)
	return ids
}

func (b *bundle) publishIDs(partition int32, ids []string, headers ...kgo.RecordHeader) {
	b.t.Helper()
	var records []*kgo.Record
	for _, id := range ids {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(`{"account":"acct_1","amount":5}`),
			Headers: append([]kgo.RecordHeader{{Key: header.EventID, Value: []byte(id)}}, headers...)})
	}
	if err := b.client.ProduceSync(b.t.Context(), records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

// numbered publishes one payment for each sequence number.
func (b *bundle) numbered(partition int32, producer string, numbers ...int64) {
	b.t.Helper()
	for _, n := range numbers {
		b.publish(partition, 1, kgo.RecordHeader{Key: header.Producer, Value: []byte(producer)}, kgo.RecordHeader{Key: header.Sequence, Value: strconv.AppendInt(nil, n, 10)})
	}
}

// member is a running consumer.
type member struct {
	b    *bundle
	reg  *prometheus.Registry
	log  *testenv.Log
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// config of a member, to be changed by the test.
func (b *bundle) config(handler inbox.Handler, change func(*inbox.Config)) stream.Config {
	b.t.Helper()
	if handler == nil {
		handler = payments.Handler("g", payments.NotifyNever)
	}
	ic := inbox.Config{Group: "g", Handler: handler, BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond, IdleTimeout: 2 * time.Second, TransactionTimeout: 8 * time.Second, StatementTimeout: 5 * time.Second}
	if change != nil {
		change(&ic)
	}
	in, err := inbox.New(ic)
	if err != nil {
		b.t.Fatal(err)
	}
	return stream.Config{
		Client: []kgo.Opt{kgo.SeedBrokers(b.k.ListenAddrs()...)}, Topics: []string{topic}, Pool: b.pool, Inbox: in,
		SessionTimeout: 3 * time.Second, HeartbeatInterval: 100 * time.Millisecond, RebalanceTimeout: 10 * time.Second, PauseFor: 50 * time.Millisecond,
		Guard: stream.Guard{MarkerRetention: 8 * 24 * time.Hour},
	}
}

func (b *bundle) start(cfg stream.Config) *member {
	b.t.Helper()
	m := &member{b: b, reg: prometheus.NewRegistry(), log: &testenv.Log{}, done: make(chan struct{})}
	cfg.Registerer, cfg.Log = m.reg, slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	go func() {
		defer close(m.done)
		m.err = stream.Run(ctx, cfg)
	}()
	b.t.Cleanup(func() {
		stop()
		<-m.done
		if b.t.Failed() {
			var lines []string
			for line := range strings.Lines(m.log.String()) {
				if !strings.Contains(line, "event handled") {
					lines = append(lines, line)
				}
			}
			b.t.Logf("log of a member:\n%.6000s", strings.Join(lines, ""))
		}
	})
	return m
}

// end stops the member and returns its error.
func (m *member) end() error {
	m.stop()
	<-m.done
	return m.err
}

func (b *bundle) eventually(what string, ok func() bool) {
	b.t.Helper()
	testenv.Eventually(b.t, what, ok)
}

func (b *bundle) count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	if err := b.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bundle) entries() int { return b.count("SELECT count(*) FROM ledger_entries") }

func (b *bundle) wantEntries(n int) {
	b.t.Helper()
	if entries, ids, markers := b.entries(), b.count("SELECT count(DISTINCT event_id) FROM ledger_entries"), b.count("SELECT count(*) FROM processed_events"); entries != n || ids != n || markers != n {
		b.t.Errorf("entries %d, distinct ids %d, markers %d, want %d each", entries, ids, markers, n)
	}
}

// committed is the group's offset of a partition; -1 without one.
func (b *bundle) committed(partition int32) int64 {
	b.t.Helper()
	offsets, err := b.admin.FetchOffsets(context.Background(), "g")
	if errors.Is(err, kerr.GroupIDNotFound) {
		return -1
	}
	if err != nil {
		b.t.Fatal(err)
	}
	o, ok := offsets.Lookup(topic, partition)
	if !ok {
		return -1
	}
	return o.At
}

// metric sums a family's samples whose labels match.
func (m *member) metric(name string, labels ...string) (sum float64, samples int) {
	m.b.t.Helper()
	return testenv.Gather(m.b.t, m.reg).Sum(name, labels...)
}

func (m *member) want(value float64, name string, labels ...string) {
	m.b.t.Helper()
	if got, _ := m.metric(name, labels...); got != value {
		m.b.t.Errorf("%s%v = %v, want %v", name, labels, got, value)
	}
}
