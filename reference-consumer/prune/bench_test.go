package prune

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/schema"
)

func benchServer(b *testing.B) *pgserver.Server {
	return testenv.PostgresServer(b, pgserver.Options{Config: map[string]string{"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}})
}

// consumer applies batches of 20 events, 50 times a second, and returns the
// durations when stopped.
func consumer(b *testing.B, pool *bundle, stop <-chan struct{}) []time.Duration {
	in, err := inbox.New(inbox.Config{Group: "g", Handler: payments.Handler("g", payments.NotifyNever)})
	if err != nil {
		b.Error(err)
		return nil
	}
	gen := produce.NewIDs(time.Now)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var took []time.Duration
	for offset := int64(1); ; offset += 20 {
		select {
		case <-stop:
			return took
		case <-tick.C:
		}
		batch := inbox.Batch{Topic: "payments", Next: offset + 20}
		for i := range int64(20) {
			id, err := gen.Next()
			if err != nil {
				b.Error(err)
				return nil
			}
			batch.Events = append(batch.Events, inbox.Event{ID: id, Offset: offset + i, Time: time.Now(), Value: []byte(`{"account":"acct_` + strconv.Itoa(int(offset+i)%1000) + `","amount":1}`)})
		}
		start := time.Now()
		if _, err := in.Apply(context.Background(), pool.pool, batch); err != nil {
			b.Error(err)
			return nil
		}
		took = append(took, time.Since(start))
	}
}

func percentile(took []time.Duration, p int) float64 {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return float64(took[min(len(took)-1, len(took)*p/100)]) / 1e6
}

const runbookDelete = `DELETE FROM processed_events WHERE ctid IN (
    SELECT ctid FROM processed_events WHERE processed_at < now() - interval '8 days' LIMIT 10000)`

// BenchmarkPrune deletes 200,000 of 500,000 markers beside a consumer, by the
// runbook's statement and by ours, with and without an old snapshot. Run it
// with -benchtime 1x.
func BenchmarkPrune(b *testing.B) {
	s := benchServer(b)
	for _, snapshot := range []bool{false, true} {
		for _, form := range []string{"none", "runbook", "ours"} {
			b.Run(fmt.Sprintf("snapshot=%v/%s", snapshot, form), func(b *testing.B) {
				name := fmt.Sprintf("prune_%v_%s", snapshot, form)
				if err := s.CreateDatabase(b.Context(), name); err != nil {
					b.Fatal(err)
				}
				pool := open(b, s.DSN(name), schema.Options{})
				pool.seed("old-", 200_000, 2*day, 8*day+time.Minute)
				pool.seed("new-", 300_000, 7*day, 0)
				pool.exec("ANALYZE")
				pool.exec("CHECKPOINT")
				if snapshot {
					tx, err := pool.pool.Begin(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					defer func() { _ = tx.Rollback(context.Background()) }()
					if _, err := tx.Exec(b.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
						b.Fatal(err)
					}
					if _, err := tx.Exec(b.Context(), "SELECT count(*) FROM accounts"); err != nil {
						b.Fatal(err)
					}
				}
				stop := make(chan struct{})
				var wg sync.WaitGroup
				var took []time.Duration
				wg.Go(func() { took = consumer(b, pool, stop) })
				var statements []time.Duration
				start := time.Now()
				switch form {
				case "none":
					time.Sleep(5 * time.Second)
				case "runbook":
					for {
						one := time.Now()
						tag, err := pool.pool.Exec(b.Context(), runbookDelete)
						if err != nil {
							b.Fatal(err)
						}
						statements = append(statements, time.Since(one))
						if tag.RowsAffected() == 0 {
							break
						}
						time.Sleep(200 * time.Millisecond)
					}
				case "ours":
					var one time.Time
					_, err := pool.once(func(c *Config) {
						c.Batch, c.Pause = 10_000, 200*time.Millisecond
						c.Failpoint = func(name string) {
							if name == "before_prune_batch" {
								one = time.Now()
							} else {
								statements = append(statements, time.Since(one))
							}
						}
					})
					if err != nil {
						b.Fatal(err)
					}
				}
				elapsed := time.Since(start)
				close(stop)
				wg.Wait()
				if form != "none" {
					if n := pool.count("SELECT count(*) FROM processed_events WHERE event_id LIKE 'old-%'"); n != 0 {
						b.Fatalf("%d old markers left", n)
					}
					var sum time.Duration
					for _, d := range statements {
						sum += d
					}
					b.ReportMetric(200_000/sum.Seconds(), "rows/s-of-statement")
					b.ReportMetric(200_000/elapsed.Seconds(), "rows/s-with-pauses")
					b.ReportMetric(float64(statements[0])/1e6, "first-ms")
					b.ReportMetric(float64(statements[len(statements)-2])/1e6, "last-ms")
				}
				b.ReportMetric(percentile(took, 99), "consumer-p99-ms")
				b.ReportMetric(percentile(took, 50), "consumer-p50-ms")
			})
		}
	}
}

// BenchmarkPartitionDrop measures the consumer while a partition goes behind a
// reader that stays for three seconds: by the runbook's DROP TABLE, and
// detached concurrently first.
func BenchmarkPartitionDrop(b *testing.B) {
	s := benchServer(b)
	for _, form := range []string{"none", "drop", "detach-concurrently"} {
		b.Run(form, func(b *testing.B) {
			name := "drop_" + form[:4]
			if err := s.CreateDatabase(b.Context(), name); err != nil {
				b.Fatal(err)
			}
			now := time.Now()
			pool := partitioned(b, s.DSN(name), now)
			reader, err := pool.pool.Begin(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := reader.Exec(b.Context(), "SELECT count(*) FROM processed_events"); err != nil {
				b.Fatal(err)
			}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var took []time.Duration
			wg.Go(func() { took = consumer(b, pool, stop) })
			gone := make(chan error, 1)
			go func() {
				switch form {
				case "drop":
					_, err := pool.pool.Exec(context.Background(), "DROP TABLE "+schema.PartitionAt(now.Add(-8*day), day).Name)
					gone <- err
				case "detach-concurrently":
					_, err := pool.once(func(c *Config) { c.Now = func() time.Time { return now.Add(day) }; c.PartitionsAhead = time.Hour })
					gone <- err
				default:
					gone <- nil
				}
			}()
			time.Sleep(3 * time.Second)
			if err := reader.Rollback(context.Background()); err != nil {
				b.Fatal(err)
			}
			if err := <-gone; err != nil {
				b.Fatal(err)
			}
			time.Sleep(time.Second)
			close(stop)
			wg.Wait()
			b.ReportMetric(percentile(took, 99), "consumer-p99-ms")
			b.ReportMetric(percentile(took, 50), "consumer-p50-ms")
			b.ReportMetric(percentile(took, 100), "consumer-max-ms")
		})
	}
}

// BenchmarkBytesPerRow fills the flat and the partitioned table with 200,000
// markers of UUIDv7 ids through the inbox.
func BenchmarkBytesPerRow(b *testing.B) {
	s := benchServer(b)
	for _, form := range []string{"flat", "partitioned"} {
		b.Run(form, func(b *testing.B) {
			if err := s.CreateDatabase(b.Context(), form); err != nil {
				b.Fatal(err)
			}
			pool := open(b, s.DSN(form), schema.Options{Partitioned: form == "partitioned"})
			in, err := inbox.New(inbox.Config{Group: "ledger-writer", Handler: func(context.Context, *inbox.Tx, inbox.Event) error { return nil }})
			if err != nil {
				b.Fatal(err)
			}
			gen := produce.NewIDs(time.Now)
			const rows = 200_000
			for offset := int64(0); offset < rows; offset += 1000 {
				batch := inbox.Batch{Topic: "payments", Next: offset + 1000}
				for i := range int64(1000) {
					id, err := gen.Next()
					if err != nil {
						b.Fatal(err)
					}
					batch.Events = append(batch.Events, inbox.Event{ID: id, Offset: offset + i, Time: time.Now()})
				}
				if _, err := in.Apply(b.Context(), pool.pool, batch); err != nil {
					b.Fatal(err)
				}
			}
			size := pool.count(`SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c WHERE c.relkind = 'r' AND (c.relname = 'processed_events' OR c.relname LIKE 'processed_events_2%')`)
			b.ReportMetric(float64(size)/rows, "bytes/row")
		})
	}
}
