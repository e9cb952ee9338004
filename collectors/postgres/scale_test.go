package postgres

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/poll"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// Benchmarks at scale, on a throw-away cluster that is loaded for them and
// removed afterwards. Each is one long run:
//
//	go test ./collectors/postgres -run '^$' -bench Scale -benchtime 1x -timeout 2h -scale.rows 10000000,40000000

var (
	scaleRows  = flag.String("scale.rows", "10000000", "table sizes for the benchmarks at scale, comma-separated")
	scaleRate  = flag.Int("scale.rate", 1000, "inserts a second while measuring; the table holds rows/rate seconds")
	scalePolls = flag.Int("scale.polls", 8, "steady polls to measure, 15 s apart")
	scalePort  = flag.Int("scale.port", 0, "port on loopback of a server that already holds the databases rows_N of an earlier run; its superuser is postgres")
	scalePhase = flag.Duration("scale.phase", 20*time.Second, "length of each phase of the latency benchmark")
)

const naiveSQL = "SELECT consumer_group, count(*), min(processed_at) FROM processed_events GROUP BY consumer_group"

// scale is a loaded table with consumers and a pruner at work.
type scale struct {
	*testing.B
	server *pgserver.Server
	admin  *pgx.Conn
	rows   int
	retain time.Duration

	mu        sync.Mutex
	latencies []time.Duration
}

func scaleServer(b *testing.B) *pgserver.Server {
	if *scalePort != 0 {
		return &pgserver.Server{Port: *scalePort}
	}
	return testenv.PostgresServer(b, pgserver.Options{Config: map[string]string{
		"fsync": "on", "shared_buffers": "2GB", "wal_level": "minimal", "max_wal_senders": "0", "max_wal_size": "16GB",
		"checkpoint_timeout": "30min", "maintenance_work_mem": "1GB", "shared_preload_libraries": "pg_stat_statements",
	}})
}

// load fills the runbook's table with six groups' markers at the given rate up
// to now, ids in order of time as UUIDv7 are.
func load(b *testing.B, server *pgserver.Server, rows int) *scale {
	b.Helper()
	name := fmt.Sprintf("rows_%d", rows)
	if *scalePort != 0 {
		s := &scale{B: b, server: server, admin: dial(b, server.DSN(name)), rows: rows}
		s.keep()
		return s
	}
	if err := server.CreateDatabase(b.Context(), name); err != nil {
		b.Fatal(err)
	}
	s := &scale{B: b, server: server, admin: dial(b, server.DSN(name)), rows: rows}
	began := time.Now()
	for _, sql := range []string{
		"CREATE EXTENSION pg_stat_statements",
		"CREATE ROLE exporter" + name + " LOGIN IN ROLE pg_read_all_stats",
		"CREATE ROLE naive" + name + " LOGIN",
		fmt.Sprintf(`BEGIN;
CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL, "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now());
INSERT INTO processed_events
  SELECT 'group-' || i %% 6, substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(m, 1, 3) || '-8' || substr(m, 4, 3) || '-' || substr(m, 7, 12),
         'topic-' || i %% 6, (i / 6) %% 12, i / 72, at
  FROM generate_series(1, %d) i, LATERAL (SELECT now() - (%d - i) * interval '%f seconds' AS at, md5(i::text) AS m) x,
       LATERAL (SELECT lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS h) y;
COMMIT`, rows, rows, 1/float64(*scaleRate)),
		"ALTER TABLE processed_events ADD PRIMARY KEY (consumer_group, event_id)",
		"CREATE INDEX processed_events_processed_at ON processed_events (processed_at)",
		"GRANT SELECT ON processed_events TO PUBLIC",
		"VACUUM ANALYZE processed_events",
		"CHECKPOINT",
	} {
		if _, err := s.admin.Exec(b.Context(), sql); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	b.Logf("loaded %d rows in %s", rows, time.Since(began).Round(time.Second))
	s.keep()
	return s
}

// keep has the pruner keep what is there now.
func (s *scale) keep() {
	var seconds float64
	if err := s.admin.QueryRow(s.Context(), "SELECT extract(epoch FROM now() - min(processed_at))::float8 FROM processed_events").Scan(&seconds); err != nil {
		s.Fatal(err)
	}
	s.retain = time.Duration(seconds * float64(time.Second))
}

func (s *scale) dsn(user string) string {
	return s.server.UserDSN(fmt.Sprintf("rows_%d", s.rows), fmt.Sprintf("%srows_%d", user, s.rows), "")
}

// work runs consumers, one transaction an event, and the pruner until stop.
func (s *scale) work() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var wg sync.WaitGroup
	const consumers = 8
	for c := range consumers {
		conn := dial(s.B, s.admin.Config().ConnString())
		wg.Go(func() {
			tick := time.NewTicker(time.Second * consumers / time.Duration(*scaleRate))
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				began := time.Now()
				_, err := conn.Exec(ctx, `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset") VALUES ($1, $2, $3, $4, $5)`,
					"group-"+strconv.Itoa(n%6), uuid.Must(uuid.NewV7()).String(), "topic-"+strconv.Itoa(n%6), c, 1_000_000_000+n)
				if err != nil && ctx.Err() == nil {
					s.Error(err)
					return
				}
				s.mu.Lock()
				s.latencies = append(s.latencies, time.Since(began))
				s.mu.Unlock()
			}
		})
	}
	pruner := dial(s.B, s.admin.Config().ConnString())
	wg.Go(func() {
		for ctx.Err() == nil {
			tag, err := pruner.Exec(ctx, fmt.Sprintf(`DELETE FROM processed_events WHERE ctid = ANY (ARRAY(SELECT ctid FROM processed_events
			  WHERE processed_at < now() - interval '%d seconds' ORDER BY processed_at LIMIT 10000))`, int(s.retain.Seconds())))
			if err != nil && ctx.Err() == nil {
				s.Error(err)
				return
			}
			if tag.RowsAffected() < 10_000 {
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Second):
				}
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// spent is what a user's statements have cost the server.
type spent struct {
	elapsed, longest float64 // ms
	buffers          float64
	cpu              time.Duration
}

func (s *scale) spent(user string) (x spent) {
	s.Helper()
	err := s.admin.QueryRow(s.Context(), `SELECT coalesce(sum(total_exec_time), 0)::float8, coalesce(max(max_exec_time), 0)::float8, coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8
	  FROM pg_stat_statements WHERE userid = $1::regrole`, fmt.Sprintf("%srows_%d", user, s.rows)).Scan(&x.elapsed, &x.longest, &x.buffers)
	if err != nil {
		s.Fatal(err)
	}
	rows, err := s.admin.Query(s.Context(), "SELECT pid FROM pg_stat_activity WHERE usename = $1", fmt.Sprintf("%srows_%d", user, s.rows))
	if err != nil {
		s.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		s.Fatal(err)
	}
	for _, pid := range pids {
		x.cpu += cpuOf(s.B, int(pid))
	}
	return x
}

func (s *scale) forget() {
	if _, err := s.admin.Exec(s.Context(), "SELECT pg_stat_statements_reset()"); err != nil {
		s.Fatal(err)
	}
}

// cpuOf is the processor time of a process, in ticks of 10 ms (Linux).
func cpuOf(t testing.TB, pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skipf("no /proc: %v", err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func (s *scale) ledger() *Store { return newStore(s.B, Config{Config: dbconn.To(s.dsn("exporter"))}) }

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkScalePoll measures a steady poll against the naive query, in one
// run, under load, at each size: time, processor and buffers of the server,
// the backfill before, and the ledger's memory.
func BenchmarkScalePoll(b *testing.B) {
	server := scaleServer(b)
	var first float64
	for _, text := range strings.Split(*scaleRows, ",") {
		rows, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("rows="+text, func(b *testing.B) {
			s := load(b, server, rows)
			for range b.N {
				stop := s.work()
				defer stop()
				store := s.ledger()
				before := heap()
				s.forget()
				began, polls := time.Now(), 0
				for {
					m, err := pollBusy(b, store)
					if err != nil {
						b.Fatal(err)
					}
					polls++
					if m.Ready {
						break
					}
				}
				filled, fill := time.Since(began), s.spent("exporter")
				after := heap()
				b.ReportMetric(filled.Seconds(), "backfill-s")
				b.ReportMetric(fill.cpu.Seconds()*1e6/float64(rows), "backfill-cpu-µs/row")
				b.ReportMetric(fill.longest, "backfill-longest-ms")
				b.ReportMetric(float64(after-before)/float64(rows)*1e6/1024, "KiB/Mrow")
				b.ReportMetric(float64(after-before)/float64(len(store.ledger.book.Buckets))*1000/1024, "KiB/1000buckets")
				runtime.KeepAlive(store)

				// Steady polls, 15 s apart.
				pause := func() {
					select {
					case <-time.After(15 * time.Second):
					case <-b.Context().Done():
					}
				}
				for range 2 {
					pause()
					if _, err := pollBusy(b, store); err != nil {
						b.Fatal(err)
					}
				}
				s.forget()
				start, elapsed, flagged := s.spent("exporter"), time.Duration(0), 0
				for range *scalePolls {
					pause()
					t := time.Now()
					m, err := pollBusy(b, store)
					elapsed += time.Since(t)
					if err != nil {
						b.Fatal(err)
					}
					if !m.Ready || len(m.Inexact) > 0 {
						b.Log(reasonsOf(m))
						flagged++
					}
				}
				n := float64(*scalePolls)
				used := s.spent("exporter")
				cpu := (used.cpu - start.cpu).Seconds() * 1000 / n
				b.ReportMetric(float64(flagged), "flagged-polls")
				b.ReportMetric(cpu, "poll-cpu-ms")
				b.ReportMetric(used.elapsed/n, "poll-server-ms")
				b.ReportMetric(elapsed.Seconds()*1000/n, "poll-ms")
				b.ReportMetric(used.longest, "poll-longest-ms")
				b.ReportMetric(used.buffers/n, "poll-buffers")
				if first == 0 {
					first = cpu
				}
				b.ReportMetric(cpu/first, "poll-growth")

				// The naive query, without parallel workers so that one
				// process has all of its cost.
				naive := dial(b, s.dsn("naive"))
				run(b, naive, "SET max_parallel_workers_per_gather = 0")
				ask(b, naive)
				s.forget()
				start = s.spent("naive")
				ask(b, naive)
				cost := s.spent("naive")
				naiveCPU := (cost.cpu - start.cpu).Seconds() * 1000
				b.ReportMetric(naiveCPU, "naive-cpu-ms")
				b.ReportMetric(cost.elapsed, "naive-server-ms")
				b.ReportMetric(cost.buffers, "naive-buffers")
				b.ReportMetric(naiveCPU/cpu, "cheaper-cpu")
				b.ReportMetric(cost.elapsed/(used.elapsed/n), "cheaper-server-time")
				b.ReportMetric(cost.buffers/(used.buffers/n), "cheaper-buffers")

				exact, compared := 0, 0
				for tries := 0; compared < 3 && tries < 5; tries++ {
					// The comparison before took long: first catch up.
					for range 10 {
						if m, err := pollBusy(b, store); err == nil && m.Ready && len(m.Inexact) == 0 {
							break
						}
					}
					var want []string
					store.ledger.observer = func(ctx context.Context, conn *pgx.Conn) {
						want = counts(b, ctx, conn, store.ledger.table)
					}
					ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
					snap, err := store.ledger.Poll(ctx)
					cancel()
					store.ledger.observer = nil
					if err != nil {
						b.Log(err)
						continue
					}
					if m := snap.(*Markers); want == nil || !m.Ready || len(m.Inexact) > 0 {
						b.Log(reasonsOf(m))
						continue
					}
					compared++
					if got := describe(snap.(*Markers)); !slices.Equal(got, want) {
						b.Errorf("ledger\n  %v\nSELECT\n  %v", got, want)
						continue
					}
					exact++
				}
				b.ReportMetric(float64(exact), fmt.Sprintf("exact-of-%d", compared))
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkScaleInsertLatency measures what a consumer's insert takes while
// nothing, the ledger, its backfill and the naive query run.
func BenchmarkScaleInsertLatency(b *testing.B) {
	rows, err := strconv.Atoi(strings.Split(*scaleRows, ",")[0])
	if err != nil {
		b.Fatal(err)
	}
	server := scaleServer(b)
	s := load(b, server, rows)
	stop := s.work()
	defer stop()
	store := s.ledger()
	for {
		if m, err := pollBusy(b, store); err != nil {
			b.Fatal(err)
		} else if m.Ready {
			break
		}
	}
	naive := dial(b, s.dsn("naive"))
	every := func(d time.Duration, f func()) func(ctx context.Context) {
		return func(ctx context.Context) {
			for ctx.Err() == nil {
				f()
				select {
				case <-ctx.Done():
				case <-time.After(d):
				}
			}
		}
	}
	once := func() { _, _ = pollOnce(b, store) }
	phases := []struct {
		name string
		do   func(ctx context.Context)
	}{
		{"nothing", func(ctx context.Context) { <-ctx.Done() }},
		{"ledger", every(5*time.Second, once)},
		{"naive", every(10*time.Second, func() { ask(b, naive) })},
		{"backfill", every(0, func() {
			if store.ledger.complete() {
				store.ledger.reset()
			}
			once()
		})},
	}
	// Each phase three times, in turn: what the machine does otherwise is
	// spread over all.
	latencies := map[string][]time.Duration{}
	for range 3 {
		for _, p := range phases {
			s.mu.Lock()
			s.latencies = nil
			s.mu.Unlock()
			ctx, cancel := context.WithTimeout(b.Context(), *scalePhase)
			p.do(ctx)
			cancel()
			s.mu.Lock()
			latencies[p.name] = append(latencies[p.name], s.latencies...)
			s.mu.Unlock()
		}
	}
	for _, p := range phases {
		all := latencies[p.name]
		slices.Sort(all)
		for _, q := range []float64{0.5, 0.99, 0.999} {
			b.ReportMetric(at(all, q).Seconds()*1000, fmt.Sprintf("%s-p%g-ms", p.name, q*100))
		}
		b.Logf("%s: %d inserts, p50 %s, p99 %s, p99.9 %s, longest %s", p.name, len(all), at(all, 0.5), at(all, 0.99), at(all, 0.999), all[len(all)-1])
	}
	b.ReportMetric(0, "ns/op")
}

func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(math.Ceil(q*float64(len(sorted))))-1, len(sorted)-1)]
}

// BenchmarkScaleDropPartition measures how long DROP of a partition, and the
// inserts behind it, wait for whoever reads the table.
func BenchmarkScaleDropPartition(b *testing.B) {
	server := scaleServer(b)
	if err := server.CreateDatabase(b.Context(), "parts"); err != nil {
		b.Fatal(err)
	}
	dsn := server.DSN("parts")
	admin := dial(b, dsn)
	run(b, admin, "CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer_group, event_id, processed_at)) PARTITION BY RANGE (processed_at)")
	run(b, admin, "CREATE INDEX ON processed_events (processed_at)")
	const days, each = 13, 400_000
	for d := range days {
		run(b, admin, fmt.Sprintf(`DO $$ BEGIN EXECUTE format('CREATE TABLE day_%[1]d PARTITION OF processed_events FOR VALUES FROM (%%L) TO (%%L)', date_trunc('day', now()) - interval '%[1]d days', date_trunc('day', now()) - interval '%[1]d days' + interval '1 day'); END $$`, d))
		run(b, admin, fmt.Sprintf(`INSERT INTO processed_events SELECT 'g' || i %% 6, '%[1]d-' || i, date_trunc('day', now()) - interval '%[1]d days' + i * interval '1 ms' FROM generate_series(1, %d) i`, d, each))
	}
	run(b, admin, "ANALYZE processed_events")
	store := newStore(b, Config{Config: dbconn.To(dsn)})
	for {
		if m, err := pollBusy(b, store); err != nil {
			b.Fatal(err)
		} else if m.Ready {
			break
		}
	}
	naive := dial(b, dsn)
	readers := []struct {
		name string
		read func()
	}{
		{"nothing", func() { time.Sleep(10 * time.Millisecond) }},
		// Back to back, far more often than in earnest: each DROP meets one.
		{"ledger", func() { _, _ = pollOnce(b, store) }},
		{"naive", func() { ask(b, naive) }},
	}
	drops, inserts := map[string][]time.Duration{}, map[string][]time.Duration{}
	next := days - 1
	for range 4 {
		for _, r := range readers {
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				for ctx.Err() == nil {
					r.read()
				}
			})
			consumer := dial(b, dsn)
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					began := time.Now()
					run(b, consumer, "INSERT INTO processed_events (consumer_group, event_id) VALUES ('g0', $1)", uuid.NewString())
					inserts[r.name] = append(inserts[r.name], time.Since(began))
					time.Sleep(time.Millisecond)
				}
			})
			time.Sleep(time.Second)
			began := time.Now()
			run(b, admin, fmt.Sprintf("DROP TABLE day_%d", next))
			drops[r.name] = append(drops[r.name], time.Since(began))
			next--
			time.Sleep(time.Second)
			cancel()
			wg.Wait()
		}
	}
	for _, r := range readers {
		slices.Sort(drops[r.name])
		slices.Sort(inserts[r.name])
		d, i := drops[r.name], inserts[r.name]
		b.ReportMetric(d[len(d)-1].Seconds()*1000, r.name+"-longest-drop-ms")
		b.ReportMetric(at(i, 0.99).Seconds()*1000, r.name+"-insert-p99-ms")
		b.ReportMetric(i[len(i)-1].Seconds()*1000, r.name+"-insert-longest-ms")
	}
	b.ReportMetric(0, "ns/op")
}

func reasonsOf(m *Markers) any {
	if m == nil {
		return nil
	}
	return fmt.Sprintf("ready %t, inexact %v", m.Ready, m.Inexact)
}

// pollBusy polls, on a machine that may be too busy for a statement's bound.
func pollBusy(b *testing.B, s *Store) (m *Markers, err error) {
	for range 10 {
		if m, err = pollOnce(b, s); poll.Kind(err) != "timeout" {
			return m, err
		}
		b.Log(err)
	}
	return m, err
}

// ask runs the naive query, however long it takes.
func ask(b *testing.B, conn *pgx.Conn) {
	if _, err := conn.Exec(b.Context(), naiveSQL); err != nil {
		b.Error(err)
	}
}
