package payments_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/stream"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

type bundle struct {
	t      *testing.T
	dsn    string
	pool   *pgxpool.Pool
	client []kgo.Opt
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return setupAt(t, testenv.Postgres(t))
}

func setupAt(t *testing.T, dsn string) *bundle {
	t.Helper()
	b := &bundle{t: t, dsn: dsn}
	if err := schema.Migrate(t.Context(), b.dsn, schema.Options{}); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.pool, err = payments.Pool(context.Background(), b.dsn, 4); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pool.Close)
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	b.client = []kgo.Opt{kgo.SeedBrokers(k.ListenAddrs()...)}
	return b
}

func (b *bundle) count(sql string) int {
	b.t.Helper()
	var n int
	if err := b.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bundle) produce(cfg produce.Config) produce.Stats {
	b.t.Helper()
	cfg.Client, cfg.Topic = b.client, "payments"
	stats, err := produce.Run(b.t.Context(), cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	return stats
}

func (b *bundle) run(change func(*payments.Config)) (stop func()) {
	b.t.Helper()
	cfg := payments.Config{DSN: b.dsn, Client: b.client, Topic: "payments", Group: "g", MarkerRetention: 8 * 24 * time.Hour, Registerer: prometheus.NewRegistry()}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- payments.Run(ctx, cfg) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	}
	b.t.Cleanup(stop)
	return stop
}

func (b *bundle) eventually(what string, ok func() bool) {
	b.t.Helper()
	testenv.Eventually(b.t, what, ok)
}

// Both forms of the effect write the same entries, poison apart.
func TestPipelinedAndSetBased(t *testing.T) {
	for _, set := range []bool{false, true} {
		t.Run("set-based="+strconv.FormatBool(set), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			stats := b.produce(produce.Config{Count: 3000, Duplicates: 0.02, Poison: 0.01, Accounts: 40})
			b.run(func(c *payments.Config) { c.SetBased = set })
			b.eventually("all", func() bool {
				return b.count("SELECT (SELECT count(*) FROM ledger_entries) + (SELECT count(*) FROM dead_letters)") >= 3000
			})
			applied := int(stats.Events - stats.Poison)
			for what, sql := range map[string]string{
				"entries": "SELECT count(*) FROM ledger_entries", "ids": "SELECT count(DISTINCT event_id) FROM ledger_entries",
				"markers": "SELECT count(*) FROM processed_events", "entries by account": "SELECT sum(entries) FROM accounts",
			} {
				if n := b.count(sql); n != applied {
					t.Errorf("%s: %d, want %d", what, n, applied)
				}
			}
			if n := b.count("SELECT count(*) FROM (SELECT account, sum(amount) AS s FROM ledger_entries GROUP BY account) e FULL JOIN accounts a USING (account) WHERE a.balance IS DISTINCT FROM e.s"); n != 0 {
				t.Errorf("%d balances are not the sum of their entries", n)
			}
		})
	}
}

// Two groups, one database: each applies every event.
func TestTwoGroups(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.produce(produce.Config{Count: 500})
	for _, group := range []string{"ledger-writer", "audit-writer"} {
		b.run(func(c *payments.Config) { c.Group = group })
	}
	b.eventually("1,000 entries", func() bool { return b.count("SELECT count(*) FROM ledger_entries") == 1000 })
	for _, group := range []string{"ledger-writer", "audit-writer"} {
		if n := b.count("SELECT count(*) FROM ledger_entries WHERE consumer_group = '" + group + "'"); n != 500 {
			t.Errorf("%s: %d entries, want 500", group, n)
		}
	}
}

// The server shows whose connections it has: the program, the group and the
// instance, or what the connection string says.
func TestApplicationName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.produce(produce.Config{Count: 10})
	named := func(name string) func() bool {
		return func() bool {
			return b.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = '"+name+"'") > 0
		}
	}
	stop := b.run(func(c *payments.Config) { c.Group, c.Stream.InstanceID = "ledger-writer", "till-3" })
	b.eventually("a connection named by group and instance", named("reference-consumer ledger-writer till-3"))
	stop()
	b.run(func(c *payments.Config) { c.Group, c.DSN = "audit-writer", b.dsn+"&application_name=mine" })
	b.eventually("a connection named by the connection string", named("mine"))
}

// The identity of an entry is the event: every event of a payment is an entry.
// The confirmation's is the business operation: one e-mail a payment, however
// many events speak of it; with the event as identity there would be three.
func TestOperationIdentity(t *testing.T) {
	for notify, intents := range map[payments.NotifyPer]int{payments.NotifyOperation: 1, payments.NotifyEvent: 3, payments.NotifyNever: 0} {
		t.Run("per "+string(notify), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			client, err := kgo.NewClient(b.client...)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			for _, id := range []string{"authorized", "captured", "corrected", "corrected"} { // the last is a redelivery
				if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "payments", Key: []byte("acct_7"), Value: []byte(`{"account":"acct_7","amount":4500,"payment_id":"pay_1"}`),
					Headers: []kgo.RecordHeader{{Key: header.EventID, Value: []byte(id)}}}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			b.run(func(c *payments.Config) { c.Notify = notify })
			b.eventually("three entries", func() bool { return b.count("SELECT count(*) FROM ledger_entries") == 3 })
			if n := b.count("SELECT count(*) FROM outbox"); n != intents {
				t.Errorf("%d intents, want %d", n, intents)
			}
		})
	}
}

// The runbook's console producer puts the event id into the record's key.
func TestEventIDFromTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, err := kgo.NewClient(b.client...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 2 {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "payments", Key: []byte("evt-42"), Value: []byte(`{"amount":4500,"account":"acct_7"}`)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	b.run(func(c *payments.Config) { c.IDFromKey = true })
	b.eventually("progress", func() bool { return b.count("SELECT coalesce(max(next_offset), 0) FROM consumer_progress") == 2 })
	if n, m := b.count("SELECT count(*) FROM ledger_entries WHERE event_id = 'evt-42'"), b.count("SELECT count(*) FROM processed_events WHERE event_id = 'evt-42'"); n != 1 || m != 1 {
		t.Errorf("%d entries, %d markers, want 1 and 1", n, m)
	}
}

// For demos: redelivered events show as duplicates of the same offset, and the
// entries stay right.
func TestRedeliver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.produce(produce.Config{Count: 1000})
	reg := prometheus.NewRegistry()
	b.run(func(c *payments.Config) { c.Stream.Redeliver = 0.2; c.Registerer = reg })
	b.eventually("all", func() bool { return b.count("SELECT count(*) FROM ledger_entries") == 1000 })
	sum := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				sum[f.GetName()+"/"+l.GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	if n := sum["events_duplicate_origin_total/same_offset"]; n < 100 || n > 300 || sum["events_duplicate_origin_total/other_offset"] != 0 {
		t.Errorf("%v redeliveries of 1,000 events, want about 200, of the same offset alone", n)
	}
}

func TestNothingStaysRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // the last of the cleanups
	b := setup(t)
	b.produce(produce.Config{Count: 200})
	stop := b.run(nil)
	b.eventually("all", func() bool { return b.count("SELECT count(*) FROM ledger_entries") == 200 })
	stop()
	// And of a start that is refused.
	err := payments.Run(t.Context(), payments.Config{DSN: b.dsn, Client: b.client, Topic: "payments", Group: "g", MarkerRetention: time.Hour})
	var refused *stream.RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("%v, want a refusal", err)
	}
	b.pool.Close()
}
