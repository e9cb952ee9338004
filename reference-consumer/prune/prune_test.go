package prune

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/schema"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const day = 24 * time.Hour

type bundle struct {
	t    testing.TB
	dsn  string
	pool *pgxpool.Pool
}

func open(t testing.TB, dsn string, o schema.Options) *bundle {
	t.Helper()
	if err := schema.Migrate(t.Context(), dsn, o); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &bundle{t, dsn, pool}
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	if err := b.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// seed n markers spread evenly over a time that ended ago ago.
func (b *bundle) seed(prefix string, n int, over, ago time.Duration) {
	b.t.Helper()
	b.exec(`INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset", processed_at)
SELECT 'g', $1 || g, 'payments', 0, g, now() - $3::interval - $2::interval * (g::float8 / $4) FROM generate_series(1, $4::int) g`, prefix, over, ago, n)
}

// once prunes without a broker.
func (b *bundle) once(change func(*Config)) (*prometheus.Registry, error) {
	b.t.Helper()
	reg := prometheus.NewRegistry()
	cfg := Config{DSN: b.dsn, Once: true, Allow: []string{AssertRetention}, Registerer: reg, Pause: time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	return reg, Run(b.t.Context(), cfg)
}

func TestDeletesInBoundedBatches(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.Postgres(t), schema.Options{})
	b.seed("old-", 2500, 2*day, 8*day+time.Minute)
	b.seed("new-", 1000, 7*day, 0)
	batches := 0
	_, err := b.once(func(c *Config) {
		c.Batch = 1000
		c.Failpoint = func(p string) {
			if p == "in_prune_batch" {
				batches++
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := b.count("SELECT count(*) FROM processed_events"); n != 1000 || batches != 3 {
		t.Errorf("%d markers left after %d batches, want 1,000 after 3", n, batches)
	}
	if _, err = b.once(nil); err != nil || b.count("SELECT count(*) FROM processed_events") != 1000 {
		t.Errorf("nothing was due: %v", err)
	}
}

// Its metrics, while it runs.
func TestMetrics(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.Postgres(t), schema.Options{})
	b.seed("old-", 30, day, 9*day)
	reg := prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{DSN: b.dsn, Every: 10 * time.Millisecond, Allow: []string{AssertRetention}, Registerer: reg})
	}()
	value := func(name string) float64 {
		sum, _ := testenv.Gather(t, reg).Sum(name)
		return sum
	}
	testenv.Eventually(t, "30 deleted markers and a success", func() bool {
		return value("marker_prune_deleted_total") == 30 && value("marker_prune_last_success_timestamp_seconds") != 0
	})
	if age := time.Since(time.UnixMilli(int64(value("marker_prune_last_success_timestamp_seconds") * 1000))); age < 0 || age > time.Minute {
		t.Errorf("the last success was %s ago", age)
	}
	if value("marker_prune_batch_duration_seconds") < 1 {
		t.Error("no duration")
	}
	b.seed("more-", 12, day, 9*day) // deleted by a later run, below where the last one ended
	testenv.Eventually(t, "42 deleted markers", func() bool { return value("marker_prune_deleted_total") == 42 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// One pruner at a time.
func TestAdvisoryLock(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.Postgres(t), schema.Options{})
	b.seed("old-", 10, day, 9*day)
	conn, err := pgx.Connect(t.Context(), b.dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock($1)", int64(lock)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.once(nil); err != nil || b.count("SELECT count(*) FROM processed_events") != 10 {
		t.Errorf("pruned beside another pruner (%v)", err)
	}
	// Not by closing the connection: its server process ends a little later.
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_unlock_all()"); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context())
	if _, err := b.once(nil); err != nil || b.count("SELECT count(*) FROM processed_events") != 0 {
		t.Errorf("did not prune after the other one had gone (%v)", err)
	}
}

// Pruning beside consumers: no deadlock on either side.
func TestPruneBesideConsumers(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.Postgres(t), schema.Options{})
	b.seed("old-", 30_000, 3*day, 8*day+time.Minute)
	in, err := inbox.New(inbox.Config{Group: "g", Handler: payments.Handler("g", payments.NotifyNever)})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := int64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				batch := inbox.Batch{Topic: "payments", Partition: int32(w), Next: 100*i + 1}
				for k := range 40 { // half of them ids that are being pruned
					id := fmt.Sprintf("new-%d-%d-%d", w, i, k)
					if k%2 == 0 {
						id = fmt.Sprintf("old-%d", 1+(int(i)*40+k*7+w)%30_000)
					}
					batch.Events = append(batch.Events, inbox.Event{ID: id, Offset: 100*i + int64(k), Value: []byte(fmt.Sprintf(`{"account":"a%d","amount":1}`, w))})
				}
				batch.OnRetry = func(err error, _ int) {
					var pg *pgconn.PgError
					if errors.As(err, &pg) && pg.Code == "40P01" {
						t.Errorf("deadlock: %v", err)
					}
				}
				if _, err := in.Apply(context.Background(), b.pool, batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	if _, err := b.once(func(c *Config) { c.Batch = 500 }); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	if n := b.count("SELECT count(*) FROM processed_events WHERE processed_at < now() - interval '8 days'"); n != 0 {
		t.Errorf("%d markers past their retention left", n)
	}
}

// A marker that another session holds is waited for briefly, and the
// batch keeps none of its own locks while it rests; the next try finds it free.
func TestHeldMarker(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.Postgres(t), schema.Options{})
	b.seed("old-", 100, day, 9*day)
	holder, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "SELECT FROM processed_events WHERE event_id = 'old-50' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var log testenv.Log
	tries, free := 0, 0
	_, err = b.once(func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Failpoint = func(p string) {
			if p != "before_prune_batch" {
				return
			}
			if tries++; tries == 2 {
				free = b.count("SELECT count(*) FROM (SELECT FROM processed_events FOR UPDATE SKIP LOCKED) f")
				_ = holder.Rollback(context.Background())
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := b.count("SELECT count(*) FROM processed_events"); n != 0 || tries != 2 || free != 99 {
		t.Errorf("%d markers left after %d tries, %d free in between, want 0, 2 and 99", n, tries, free)
	}
	if !strings.Contains(log.String(), "another session holds a marker") {
		t.Error("no warning")
	}
}

// The retention is refused below 1.1 × the worst case of any topic with
// markers.
func TestRetentionIsAsserted(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.Postgres(t), schema.Options{})
	b.seed("old-", 10, day, 40*day)
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	client := []kgo.Opt{kgo.SeedBrokers(k.ListenAddrs()...)}
	cl, err := kgo.NewClient(client...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ms := func(d time.Duration) *string { s := fmt.Sprint(d.Milliseconds()); return &s }
	forever, compact := "-1", "compact"
	for topic, config := range map[string]map[string]*string{
		"safe":      {"retention.ms": ms(7 * day), "segment.ms": ms(6 * time.Hour)},
		"slow":      {"retention.ms": ms(7 * day), "segment.ms": ms(7 * day)},
		"unlimited": {"retention.ms": &forever},
		"compacted": {"cleanup.policy": &compact},
	} {
		if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, config, topic); err != nil {
			t.Fatal(err)
		}
	}
	run := func(topics ...string) error {
		_, err := b.once(func(c *Config) { c.Allow, c.Client, c.Topics = nil, client, topics })
		return err
	}
	for topic, want := range map[string]string{"slow": "raise --retention to 15.4d", "unlimited": "no marker may go", "compacted": "no marker may go"} {
		var refused *RefusedError
		if err := run("safe", topic); !errors.As(err, &refused) || len(refused.Lines) != 1 || !strings.Contains(refused.Lines[0], want) {
			t.Errorf("%s: %v, want one line with %q", topic, err, want)
		}
	}
	// Topics with progress count without being named.
	b.exec("INSERT INTO consumer_progress (consumer_group, topic, partition, topic_id, next_offset) VALUES ('g', 'slow', 0, gen_random_uuid(), 1)")
	if err := run("safe"); err == nil {
		t.Error("a topic with progress was overlooked")
	}
	b.exec("DELETE FROM consumer_progress")
	if n := b.count("SELECT count(*) FROM processed_events"); n != 10 {
		t.Fatalf("%d markers left after refusals, want 10", n)
	}
	if err := run("safe"); err != nil {
		t.Error(err)
	}
	if n := b.count("SELECT count(*) FROM processed_events"); n != 0 {
		t.Errorf("%d markers left", n)
	}
}

// partitioned is a partitioned table whose clock stands at now.
func partitioned(t testing.TB, dsn string, now time.Time) *bundle {
	return open(t, dsn, schema.Options{Partitioned: true, Now: func() time.Time { return now }})
}

// idAt is an event id made at an instant.
func idAt(t testing.TB, at time.Time) string {
	t.Helper()
	id, err := produce.NewIDs(func() time.Time { return at }).Next()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (b *bundle) deliver(offset int64, at time.Time, ids ...string) inbox.Result {
	b.t.Helper()
	in, err := inbox.New(inbox.Config{Group: "g", Handler: payments.Handler("g", payments.NotifyNever), MaxAttempts: 2, BackoffBase: time.Millisecond})
	if err != nil {
		b.t.Fatal(err)
	}
	batch := inbox.Batch{Topic: "payments", Next: offset + int64(len(ids))}
	for i, id := range ids {
		batch.Events = append(batch.Events, inbox.Event{ID: id, Offset: offset + int64(i), Time: at, Value: []byte(`{"account":"a","amount":1}`)})
	}
	res, err := in.Apply(b.t.Context(), b.pool, batch)
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

// Uniqueness is whole: a redelivery collides whenever it comes, unlike with
// the runbook's partitions by processed_at.
func TestPartitionedUniqueness(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := partitioned(t, testenv.Postgres(t), now)
	first := idAt(t, now)
	for i, later := range []time.Duration{0, time.Second, time.Hour, day} {
		res := b.deliver(int64(10*i), now.Add(later), first)
		want := inbox.Duplicate
		if i == 0 {
			want = inbox.Processed
		}
		if res.Handled[0].Outcome != want {
			t.Errorf("delivery %s later: %v, want %v", later, res.Handled[0].Outcome, want)
		}
		// The marker's time moves on as it would; its partition does not.
		b.exec("UPDATE processed_events SET processed_at = now() - interval '1 day'")
	}
	if n := b.count("SELECT count(*) FROM ledger_entries"); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

// Events outside every partition: too old, no UUIDv7, from the future; none is
// applied, and the rest of their batch is.
func TestOutsideThePartitions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := partitioned(t, testenv.Postgres(t), now)
	good := idAt(t, now)
	res := b.deliver(0, now, idAt(t, now.Add(-30*day)), good, "not-a-uuid", "f47ac10b-58cc-4372-a567-0e02b2c3d479", idAt(t, now.Add(90*day)))
	for i, want := range []string{inbox.ReasonTooOld, "", inbox.ReasonData, inbox.ReasonData, inbox.ReasonData} {
		if got := res.Handled[i].Reason; got != want {
			t.Errorf("event %d: reason %q, want %q (%v)", i, got, want, res.Handled[i].Err)
		}
	}
	if n := b.count("SELECT count(*) FROM ledger_entries"); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
	// Partitions that were not created ahead are nobody's poison: it waits.
	in, err := inbox.New(inbox.Config{Group: "g", Handler: payments.Handler("g", payments.NotifyNever), MaxAttempts: 2, BackoffBase: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	later := now.Add(5 * day)
	batch := inbox.Batch{Topic: "payments", Next: 101, Events: []inbox.Event{{ID: idAt(t, later), Offset: 100, Time: later, Value: []byte(`{"account":"a","amount":1}`)}}}
	if _, err := in.Apply(t.Context(), b.pool, batch); err == nil || !strings.Contains(err.Error(), "creates partitions ahead") {
		t.Errorf("%v, want the remedy", err)
	}
	if _, err := b.once(func(c *Config) { c.Now = func() time.Time { return later } }); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Apply(t.Context(), b.pool, batch); err != nil {
		t.Errorf("after prune had created the partition: %v", err)
	}
}

func TestPartitionsAheadAndDropped(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	b := partitioned(t, testenv.Postgres(t), now)
	names := func() []string {
		rows, err := b.pool.Query(t.Context(), "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'processed_events'::regclass ORDER BY 1")
		if err != nil {
			t.Fatal(err)
		}
		out, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := names()
	if len(before) != 11 || before[0] != "processed_events_20260724_000000" || before[10] != "processed_events_20260803_000000" {
		t.Fatalf("%v: want 8 days back and 2 ahead", before)
	}
	b.deliver(0, now.Add(-7*day), idAt(t, now.Add(-7*day)), idAt(t, now))
	reg := prometheus.NewRegistry()
	later := now.Add(3 * day)
	if err := Run(t.Context(), Config{DSN: b.dsn, Once: true, Allow: []string{AssertRetention}, Registerer: reg, Now: func() time.Time { return later }}); err != nil {
		t.Fatal(err)
	}
	after := names()
	// Retention 8 d at 4 August noon: everything that ends by 27 July 12:00.
	if after[0] != "processed_events_20260727_000000" || after[len(after)-1] != "processed_events_20260806_000000" || len(after) != 11 {
		t.Errorf("%v: want 27 July to 6 August", after)
	}
	if n := b.count("SELECT count(*) FROM processed_events"); n != 1 {
		t.Errorf("%d markers left, want 1", n)
	}
	if n := b.count("SELECT count(*) FROM pg_class WHERE relname LIKE 'processed_events_2026%' AND relkind = 'r'"); n != 11 {
		t.Errorf("%d tables, want 11: detached ones must be dropped", n)
	}
	// A redelivery of what was dropped is refused, not applied again.
	if res := b.deliver(10, now.Add(-7*day), idAt(t, now.Add(-7*day-time.Hour))); res.Handled[0].Reason != inbox.ReasonTooOld {
		t.Errorf("%+v, want too_old", res.Handled[0])
	}
}

// Inserts go on while a partition goes and another comes, even behind a long
// reader of the whole table.
func TestInsertsWhileAPartitionGoes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := partitioned(t, testenv.Postgres(t), now)
	reader, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), "SELECT count(*) FROM processed_events"); err != nil {
		t.Fatal(err)
	}
	pruned := make(chan error, 1)
	go func() {
		_, err := b.once(func(c *Config) { c.Now = func() time.Time { return now.Add(4 * day) } })
		pruned <- err
	}()
	// Until it waits for the reader.
	for deadline := time.Now().Add(20 * time.Second); b.count("SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no partition is being detached")
		}
	}
	var took []time.Duration
	for i := range 200 {
		start := time.Now()
		b.deliver(int64(i), now, idAt(t, now))
		took = append(took, time.Since(start))
	}
	select {
	case err := <-pruned:
		t.Fatalf("the detach did not wait for the reader: %v", err)
	default:
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-pruned; err != nil {
		t.Fatal(err)
	}
	slices.Sort(took)
	t.Logf("200 inserts behind a long reader while a partition is detached: p50 %s, p99 %s", took[100], took[198])
	if took[198] > 2*time.Second {
		t.Errorf("p99 %s: inserts waited", took[198])
	}
}

// A flat table cannot become partitioned in place.
func TestMigratePartitionedOverFlat(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.Postgres(t), schema.Options{})
	if err := schema.Migrate(t.Context(), b.dsn, schema.Options{Partitioned: true}); !errors.Is(err, schema.ErrNotPartitioned) {
		t.Errorf("%v, want ErrNotPartitioned", err)
	}
}
