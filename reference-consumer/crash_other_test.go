//go:build linux

package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/schema"
)

// database is a stage without a broker.
func database(t *testing.T, o schema.Options) *stage {
	t.Helper()
	dsn := testenv.Postgres(t)
	if err := schema.Migrate(t.Context(), dsn, o); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &stage{t: t, dsn: dsn, pool: pool, spec: spec{DSN: dsn, Group: group}}
}

func (s *stage) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// The relay is killed before and after the send, and after the mark. Every
// intent is delivered; twice only what was sent and not marked.
func TestKill9Relay(t *testing.T) {
	t.Parallel()
	for point, again := range map[string]int{"before_send": 0, "after_send": 1, "after_mark": 0} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := database(t, schema.Options{})
			var mu sync.Mutex
			asked := map[string]int{}
			mailer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				asked[r.Header.Get("Idempotency-Key")]++
			}))
			defer mailer.Close()
			s.exec(`INSERT INTO outbox (consumer_group, operation_id, key, kind, payload, event_id) SELECT $1, 'op-' || g, 'k-' || g % 5, 'mail', '1', 'e' FROM generate_series(1, 30) g`, group)
			relay := func(sp *spec) { sp.Mode, sp.Endpoint = "relay", mailer.URL }
			s.start(func(sp *spec) { relay(sp); sp.Point, sp.Nth, sp.Signal = point, 7, syscall.SIGKILL }).killed(20 * time.Second)
			p := s.start(relay)
			testenv.Eventually(t, "all delivered", func() bool {
				n, err := s.query("SELECT count(*) FROM outbox WHERE status = 'delivered'")
				return err == nil && n == 30
			})
			p.stop()
			twice := 0
			for op, n := range asked {
				twice += n - 1
				if n > 2 {
					t.Errorf("%s sent %d times", op, n)
				}
			}
			if len(asked) != 30 || twice != again {
				t.Errorf("%d operations, %d sent again, want 30 and %d", len(asked), twice, again)
			}
		})
	}
}

// The pruner is killed within a batch: the batch is undone, the next run does
// the rest, and no lock stays behind.
func TestKill9Pruner(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"before_prune_batch", "in_prune_batch"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := database(t, schema.Options{})
			s.exec(`INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset", processed_at)
SELECT 'g', 'e' || g, 't', 0, g, now() - interval '9 days' * (g > 100)::int FROM generate_series(1, 1100) g`)
			prune := func(sp *spec) { sp.Mode = "prune" }
			s.start(func(sp *spec) { prune(sp); sp.Point, sp.Nth, sp.Signal = point, 4, syscall.SIGKILL }).killed(20 * time.Second)
			testenv.Eventually(t, "the session to end", func() bool {
				n, err := s.query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
				return err == nil && n == 0
			})
			if n, err := s.query("SELECT count(*) FROM processed_events"); err != nil || n != 800 {
				t.Errorf("%d markers after 3 whole batches of 100, want 800 (%v)", n, err)
			}
			p := s.start(prune)
			if !p.wait(20*time.Second) || p.err != nil {
				t.Fatalf("the next run: %v", p.err)
			}
			if n, err := s.query("SELECT count(*) FROM processed_events"); err != nil || n != 100 {
				t.Errorf("%d markers left, want 100 (%v)", n, err)
			}
		})
	}
}

// The pruner is killed before, during and after a partition is detached: the
// next run finishes, and no table stays behind.
func TestKill9PartitionDrop(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"before_detach", "during_detach", "between_detach_and_drop"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			created := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
			s := database(t, schema.Options{Partitioned: true, Now: func() time.Time { return created }})
			later := created.Add(3 * 24 * time.Hour)
			prune := func(sp *spec) { sp.Mode, sp.Now = "prune", later.Unix() }
			if point == "during_detach" {
				// A reader of the table makes DETACH CONCURRENTLY wait between
				// its two transactions.
				reader, err := s.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := reader.Exec(t.Context(), "SELECT count(*) FROM processed_events"); err != nil {
					t.Fatal(err)
				}
				p := s.start(prune)
				testenv.Eventually(t, "a pending detach", func() bool {
					n, err := s.query("SELECT count(*) FROM pg_inherits WHERE inhdetachpending")
					return err == nil && n == 1
				})
				p.signal(syscall.SIGKILL)
				p.wait(10 * time.Second)
				s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE processed_events DETACH%' AND pid <> pg_backend_pid() AND datname = current_database()")
				if err := reader.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				s.start(func(sp *spec) { prune(sp); sp.Point, sp.Nth, sp.Signal = point, 2, syscall.SIGKILL }).killed(20 * time.Second)
			}
			testenv.Eventually(t, "the session to end", func() bool {
				n, err := s.query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
				return err == nil && n == 0
			})
			p := s.start(prune)
			if !p.wait(20*time.Second) || p.err != nil {
				t.Fatalf("the next run: %v", p.err)
			}
			for what, sql := range map[string]string{
				"attached partitions": "SELECT count(*) FROM pg_inherits WHERE inhparent = 'processed_events'::regclass AND NOT inhdetachpending",
				"tables":              "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'processed_events_2026%'",
			} {
				if n, err := s.query(sql); err != nil || n != 11 {
					t.Errorf("%s: %d, want 11, 27 July to 6 August (%v)", what, n, err)
				}
			}
		})
	}
}
