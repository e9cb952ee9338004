package postgres

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/dbconn"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

var (
	truthComparisons = flag.Int("truth.comparisons", 0, "comparisons of each table of the truth test, which does not run without")
	truthSeed        = flag.Uint64("truth.seed", 0, "seed of the truth test; 0: a fresh one, which is printed")
	truthMajor       = flag.Int("truth.postgres", 0, "version of PostgreSQL for the truth test, 14 to 18; 0: the machine's own")
	truthTables      = flag.String("truth.tables", "flat,by time,by id,no index", "tables of the truth test")
	truthOnly        = flag.String("truth.only", "", "only operations whose name holds this")
	truthKeep        = flag.Bool("truth.keep-going", false, "go on after a comparison that is wrong and not flagged")
	truthReport      = flag.String("truth.report", "", "file to which the truth test adds its counts")
)

// warpSQL lets a test set the server's clock: whatever asks for the time,
// asked without a schema, gets the real time and what has been added by then.
const warpSQL = `CREATE SCHEMA warp;
CREATE TABLE warp.steps (since timestamptz PRIMARY KEY, ahead interval NOT NULL);
INSERT INTO warp.steps VALUES ('-infinity', '0');
CREATE FUNCTION warp.at(t timestamptz) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT t + (SELECT ahead FROM warp.steps WHERE since <= t ORDER BY since DESC LIMIT 1)';
CREATE FUNCTION warp.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT warp.at(pg_catalog.now())';
CREATE FUNCTION warp.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT warp.at(pg_catalog.clock_timestamp())';
CREATE VIEW warp.pg_stat_activity AS SELECT datname, pid, backend_type, backend_xmin, backend_xid, warp.at(xact_start) AS xact_start FROM pg_catalog.pg_stat_activity;
CREATE VIEW warp.pg_prepared_xacts AS SELECT transaction, gid, warp.at(prepared) AS prepared, database FROM pg_catalog.pg_prepared_xacts`

const warpPath = "SET search_path = public, warp, pg_catalog"

// TestTruth drives a random workload of everything that can befall a marker
// table against a real server and compares the ledger with SELECT after every
// operation, in the poll's own snapshot, at rest and amid traffic, at polls 2 s
// and 15 s apart. A count may be off while the ledger says so. It must never be
// off without a word.
func TestTruth(t *testing.T) {
	if *truthComparisons == 0 {
		t.Log("runs by command: -truth.comparisons")
		return
	}
	comparisons := *truthComparisons
	seed := *truthSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("go test ./collectors/postgres -run TestTruth -truth.seed %d -truth.comparisons %d -truth.postgres %d", seed, comparisons, *truthMajor)
	var all tallySheet
	for i, table := range strings.Split(*truthTables, ",") {
		t.Run(table, func(t *testing.T) {
			w := newWorkload(t, table, seed+uint64(i))
			w.drive(comparisons)
			all.add(&w.sheet)
			t.Logf("%s: %s", table, &w.sheet)
		})
	}
	t.Logf("PostgreSQL %d: %s", *truthMajor, &all)
	if *truthReport != "" {
		f, err := os.OpenFile(*truthReport, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(f, "postgres=%d seed=%d %s\n", *truthMajor, seed, &all)
		_ = f.Close()
	}
}

// tallySheet counts what comparisons found.
type tallySheet struct {
	exact, flagged, spared, wrong int
	slowest                       int // polls until exact and unflagged again
	longest                       time.Duration
}

func (s *tallySheet) add(o *tallySheet) {
	s.exact, s.flagged, s.spared, s.wrong = s.exact+o.exact, s.flagged+o.flagged, s.spared+o.spared, s.wrong+o.wrong
	s.slowest, s.longest = max(s.slowest, o.slowest), max(s.longest, o.longest)
}

func (s *tallySheet) String() string {
	return fmt.Sprintf("%d comparisons: %d exact, %d off and flagged, %d exact though flagged, %d WRONG AND NOT FLAGGED; exact and unflagged again after at most %d polls, %s",
		s.exact+s.flagged+s.spared+s.wrong, s.exact, s.flagged, s.spared, s.wrong, s.slowest, s.longest)
}

type workload struct {
	*bench
	rng   *rand.Rand
	table string
	kept  []*pgserver.Server // the primary and, where there is one, its standby
	major int
	ahead time.Duration // of the warped clock

	open     []*openTx
	prepared []string
	parts    []int64          // starts of the partitions, days since 1970
	loose    map[int64]string // detached, by day
	steps    []string
	since    int // polls since the ledger was last exact and unflagged
	sinceAt  time.Duration
	sheet    tallySheet
	traffic  atomic.Bool
}

const day = 24 * time.Hour

var truthConfig = map[string]string{"autovacuum": "off", "max_prepared_transactions": "20"}

var (
	retentions = map[string]time.Duration{"mail": 3 * day, "ledger": 8 * day, "audit": 8*day + 12*time.Hour, "rare": 5 * day}
	groupNames = []string{"audit", "ledger", "mail", "rare"}
)

const (
	truthColumns = `consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL, "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now()`
	truthRows    = 24_000
)

func newWorkload(t *testing.T, table string, seed uint64) *workload {
	w := &workload{rng: rand.New(rand.NewPCG(seed, 2)), table: table, major: *truthMajor, loose: map[int64]string{}}
	primary := testenv.PostgresServer(t, pgserver.Options{Major: w.major, Config: truthConfig})
	w.kept = []*pgserver.Server{primary}
	w.bench = &bench{T: t}
	w.dial()
	if w.major == 0 {
		var version int
		if err := w.conn.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
			t.Fatal(err)
		}
		w.major = version / 10000
	}
	w.exec(warpSQL)
	w.exec("ALTER DATABASE postgres SET search_path = public, warp, pg_catalog")
	w.exec(warpPath)
	w.exec("CREATE SEQUENCE ids")
	switch table {
	case "flat", "no index":
		w.exec("CREATE TABLE processed_events (" + truthColumns + ", PRIMARY KEY (consumer_group, event_id))")
	case "by time":
		w.exec("CREATE TABLE processed_events (" + truthColumns + ", PRIMARY KEY (consumer_group, event_id, processed_at)) PARTITION BY RANGE (processed_at)")
		today := time.Now().Unix() / 86400
		for d := today - 9; d <= today+2; d++ {
			w.createPart(d)
		}
	case "by id":
		w.exec("CREATE TABLE processed_events (" + truthColumns + ", PRIMARY KEY (consumer_group, event_id)) PARTITION BY HASH (event_id)")
		for i := range 8 {
			w.exec(fmt.Sprintf("CREATE TABLE part_%d PARTITION OF processed_events FOR VALUES WITH (MODULUS 8, REMAINDER %d)", i, i))
		}
	}
	if table != "no index" {
		w.exec("CREATE INDEX ON processed_events (processed_at)")
	}
	// Each group's markers of its own retention, at its own rate.
	for i, g := range groupNames {
		n := []int{5000, truthRows - 10_100, 5000, 100}[i]
		w.exec(fmt.Sprintf(`INSERT INTO processed_events SELECT '%s', nextval('ids')::text, %s, i %% 3, i, now() - (%d - i) * interval '%f seconds' FROM generate_series(1, %d) i`,
			g, topicOf("i"), n, retentions[g].Seconds()/float64(n), n))
	}
	w.exec("ANALYZE processed_events")
	w.flush()
	w.start()
	return w
}

func topicOf(i string) string {
	return "CASE WHEN " + i + " % 7 = 0 THEN 'refunds' ELSE 'payments' END"
}

// start makes a new ledger. The table is small, so the scrub is slow: what it
// finds must not hide what the rest misses.
func (w *workload) start() {
	w.T.Helper()
	hosts, ports := make([]string, len(w.kept)), make([]string, len(w.kept))
	for i, s := range w.kept {
		hosts[i], ports[i] = "127.0.0.1", fmt.Sprint(s.Port)
	}
	dsn := fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres sslmode=disable target_session_attrs=read-write", strings.Join(hosts, ","), strings.Join(ports, ","))
	tuning := defaultTuning()
	tuning.scrubRows, tuning.inlineRows = 200, []int64{0, 2000, 50_000}[w.rng.IntN(3)]
	if w.table == "no index" {
		tuning.duty = 1e9
	}
	if w.store != nil {
		w.store.Close()
	}
	s, err := New(Config{Config: dbconn.To(dsn)}, testLog(w), nil)
	if err != nil {
		w.Fatal(err)
	}
	w.store = s
	w.store.ledger = newLedger(w.store, tuning)
	for range 50 {
		if m := w.poll(); m.Ready {
			return
		}
	}
	w.Fatal("not ready after fifty polls")
}

func (w *workload) dial() {
	w.conn = dial(w.T, w.kept[0].DSN("postgres"))
	w.dsn = w.kept[0].DSN("postgres")
}

func (w *workload) createPart(d int64) {
	w.exec(fmt.Sprintf("CREATE TABLE part_%d PARTITION OF processed_events FOR VALUES FROM (to_timestamp(%d)) TO (to_timestamp(%d))", d, d*86400, (d+1)*86400))
	w.parts = append(w.parts, d)
	slices.Sort(w.parts)
}

// pass lets time pass, for the server.
func (w *workload) pass(d time.Duration) {
	w.ahead += d
	w.exec(fmt.Sprintf("INSERT INTO warp.steps VALUES (pg_catalog.clock_timestamp(), interval '%d microseconds')", w.ahead.Microseconds()))
}

// flush waits until the server has told its statistics what this session did.
func (w *workload) flush() {
	w.Helper()
	if w.major >= 15 {
		w.exec("SELECT pg_stat_force_next_flush()")
		w.exec("SELECT 1")
		return
	}
	// Before PostgreSQL 15 a session tells when it ends at the latest, and a
	// collector writes it down twice a second.
	_ = w.conn.Close(context.Background())
	w.dial()
	w.exec(warpPath)
	var ended time.Time
	if err := w.conn.QueryRow(w.Context(), "SELECT pg_catalog.clock_timestamp() + interval '100 ms'").Scan(&ended); err != nil {
		w.Fatal(err)
	}
	for range 400 {
		var ok bool
		if err := w.conn.QueryRow(w.Context(), "SELECT pg_stat_get_snapshot_timestamp() > $1", ended).Scan(&ok); err != nil {
			w.Fatal(err)
		}
		if ok {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.Fatal("the server's statistics do not come")
}

// drive makes random operations, each followed by a comparison.
func (w *workload) drive(comparisons int) {
	defer func() {
		w.store.Close()
		if w.Failed() {
			w.Logf("the last steps: %s", strings.Join(w.steps[max(0, len(w.steps)-30):], "; "))
		}
	}()
	for n := 0; n < comparisons; {
		busy := w.rng.IntN(3) == 0
		var stop func()
		if busy {
			stop = w.consumers()
		}
		w.step(busy)
		w.flush()
		for range 1 + w.rng.IntN(3) {
			w.pass([]time.Duration{2 * time.Second, 15 * time.Second}[w.rng.IntN(2)])
			if w.table == "by time" && w.parts[len(w.parts)-1]*86400 < time.Now().Add(w.ahead+day).Unix() {
				w.createPart(w.parts[len(w.parts)-1] + 1)
			}
			if w.compare() {
				n++
			}
			if w.Failed() && !*truthKeep {
				break
			}
		}
		if stop != nil {
			stop()
		}
		if w.Failed() && !*truthKeep {
			return
		}
	}
	w.endAll()
	w.flush()
	w.settle()
}

// settle wants the ledger to be exact and unflagged again within the bound
// that is promised.
func (w *workload) settle() {
	for range 60 {
		w.pass(15 * time.Second)
		if w.compare(); w.since == 0 {
			return
		}
	}
	if w.table != "no index" {
		w.Errorf("still flagged or off after 60 polls at rest")
	}
}

// compare polls and compares; false where the poll could not be made.
func (w *workload) compare() bool {
	var want []string
	compared := false
	l := w.store.ledger
	l.observer = func(ctx context.Context, conn *pgx.Conn) {
		want, compared = counts(w.T, ctx, conn, l.table), true
	}
	m, err := pollOnce(w.T, w.store)
	l.observer = nil
	if err != nil { // a restart costs a poll
		w.steps = append(w.steps, "(poll failed: "+err.Error()+")")
		return false
	}
	if w.table == "no index" {
		ctx := context.Background()
		if w.traffic.Load() {
			return false // counted in several snapshots
		}
		want, compared = counts(w.T, ctx, w.conn, l.table), true
	}
	if !compared {
		return false
	}
	right := m.Ready && slices.Equal(describe(m), want)
	flagged := !m.Ready || len(m.Inexact) > 0
	switch {
	case right && !flagged:
		w.sheet.exact++
	case right:
		w.sheet.spared++
	case flagged:
		w.sheet.flagged++
	default:
		w.sheet.wrong++
		w.Errorf("wrong and not flagged after %s (tally %+v, suspects %+v)\nledger\n  %s\nSELECT\n  %s", strings.Join(w.steps[max(0, len(w.steps)-12):], "; "), l.tally.server.minus(l.tally.ledger), l.suspects.queue, strings.Join(describe(m), "\n  "), strings.Join(want, "\n  "))
	}
	standing := slices.Equal(m.Inexact, []Reason{ReasonPrepared}) // as long as there is one
	if right && (!flagged || standing || w.table == "no index") {
		w.since = 0
	} else {
		if w.since++; w.since == 1 {
			w.sinceAt = w.ahead
		}
		if w.since%30 == 0 {
			w.Logf("for %d polls flagged or off: %s", w.since, strings.Join(w.steps[max(0, len(w.steps)-30):], "; "))
		}
		w.sheet.slowest, w.sheet.longest = max(w.sheet.slowest, w.since), max(w.sheet.longest, w.ahead-w.sinceAt)
	}
	w.steps = append(w.steps, fmt.Sprintf("POLL[%t %v; more in the tally than found: %+v, of which nothing means %+v]", right, m.Inexact, l.tally.server.minus(l.tally.ledger), l.tally.base))
	return true
}

// consumers write in short transactions, one pruner deletes, until stop.
func (w *workload) consumers() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	w.traffic.Store(true)
	for c := range 2 {
		conn := dial(w.T, w.dsn)
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = conn.Exec(ctx, fmt.Sprintf(`INSERT INTO processed_events SELECT '%s', nextval('ids')::text, %s, %d, %d`, groupNames[i%3], topicOf(fmt.Sprint(i)), c, i))
				select {
				case <-ctx.Done():
				case <-time.After(8 * time.Millisecond):
				}
			}
			_ = conn.Close(context.Background())
		})
	}
	conn := dial(w.T, w.dsn)
	wg.Go(func() {
		for ctx.Err() == nil {
			var all strings.Builder // in one transaction
			for g, keep := range retentions {
				fmt.Fprintf(&all, `DELETE FROM processed_events WHERE consumer_group = '%s' AND processed_at < now() - interval '%f seconds';`, g, keep.Seconds())
			}
			_, _ = conn.Exec(ctx, all.String(), pgx.QueryExecModeSimpleProtocol)
			select {
			case <-ctx.Done():
			case <-time.After(1100 * time.Millisecond): // each deletion is told when it is made
			}
		}
		_ = conn.Close(context.Background())
	})
	return func() { cancel(); wg.Wait(); w.traffic.Store(false) }
}

// some is a random number, small ones being likelier.
func (w *workload) some(most int) int {
	return 1 + w.rng.IntN(max(1, most>>w.rng.IntN(10)))
}

func (w *workload) group() string { return groupNames[w.rng.IntN(len(groupNames))] }

// age is a random age within the partitions there are, in seconds.
func (w *workload) age() float64 {
	most := 11 * 86400.0
	if w.table == "by time" {
		most = float64(time.Now().Add(w.ahead).Unix() - w.parts[0]*86400 - 60)
	}
	return w.rng.Float64() * most
}

func (w *workload) insertAged(n int, ages string) {
	w.exec(fmt.Sprintf(`INSERT INTO processed_events SELECT '%s', nextval('ids')::text, %s, i %% 3, 1000000 + i, at FROM generate_series(1, %d) i, LATERAL (SELECT now() - (%s) * interval '1 second' AS at) x WHERE %s`, w.group(), topicOf("i"), n, ages, w.hasPlace("at")))
}

// hasPlace is the condition that there is a partition for a time.
func (w *workload) hasPlace(at string) string {
	if w.table != "by time" {
		return "true"
	}
	days := make([]string, len(w.parts))
	for i, d := range w.parts {
		days[i] = fmt.Sprint(d)
	}
	return fmt.Sprintf("floor(extract(epoch FROM %s) / 86400) IN (%s)", at, strings.Join(days, ", "))
}

// where is a random part of the table.
func (w *workload) where() string {
	age := w.age()
	conds := []string{fmt.Sprintf("processed_at BETWEEN now() - interval '%f seconds' AND now() - interval '%f seconds'", age, age-3600*w.rng.Float64()*30)}
	if w.rng.IntN(2) == 0 {
		conds = append(conds, fmt.Sprintf("consumer_group = '%s'", w.group()))
	}
	limit := ""
	if w.rng.IntN(2) == 0 {
		limit = fmt.Sprintf(" ORDER BY md5(event_id || '%d') LIMIT %d", w.rng.Uint32(), w.some(500))
	}
	return "(consumer_group, event_id) IN (SELECT consumer_group, event_id FROM processed_events WHERE " + strings.Join(conds, " AND ") + limit + ")"
}

func (w *workload) step(busy bool) {
	type choice struct {
		weight int
		name   string
		do     func()
	}
	// The sessions of the consumers report what they wrote a second later, so
	// that fewer back-dated rows than that can hide behind them from the tally.
	// Those are the scrub's.
	most := func(n int) int {
		if busy {
			return n + 400
		}
		return n
	}
	choices := []choice{
		{8, "insert", func() {
			for range w.some(30) {
				w.insertAged(1, "0")
			}
		}},
		{4, "begin", w.begin},
		{6, "write in a transaction", w.writeTx},
		{4, "end a transaction", w.endTx},
		{1, "prepare", w.prepare},
		{2, "end prepared", w.endPrepared},
		{6, "back-date", func() {
			w.insertAged(most(w.some(300)), fmt.Sprintf("%f + i * %f", w.age()/2, w.rng.Float64()))
		}},
		{3, "future rows", func() { w.insertAged(w.some(50), fmt.Sprintf("-%f", w.rng.Float64()*7200)) }},
		{8, "prune each group", func() {
			for g, keep := range retentions {
				w.exec(fmt.Sprintf("DELETE FROM processed_events WHERE consumer_group = '%s' AND processed_at < now() - interval '%f seconds'", g, keep.Seconds()))
			}
		}},
		{5, "prune a group's backlog", func() {
			g := w.group()
			w.exec(fmt.Sprintf("DELETE FROM processed_events WHERE consumer_group = '%s' AND processed_at < now() - interval '%f seconds'", g, retentions[g].Seconds()*(1-0.2*w.rng.Float64())))
		}},
		{4, "prune a batch in no order", func() {
			g := w.group()
			w.exec(fmt.Sprintf("DELETE FROM processed_events WHERE (consumer_group, event_id) IN (SELECT consumer_group, event_id FROM processed_events WHERE consumer_group = '%s' AND processed_at < now() - interval '%f seconds' LIMIT %d)", g, retentions[g].Seconds()*0.9, w.some(400)))
		}},
		{6, "delete in the middle", func() { w.exec("DELETE FROM processed_events WHERE " + w.where()) }},
		{1, "delete a whole group", func() { w.exec(fmt.Sprintf("DELETE FROM processed_events WHERE consumer_group = '%s'", w.group())) }},
		{3, "rename a group", func() {
			w.exec(fmt.Sprintf("UPDATE processed_events SET consumer_group = '%s' WHERE %s", w.group(), w.where()))
		}},
		{3, "move a topic", func() { w.exec("UPDATE processed_events SET topic = 'moved' WHERE " + w.where()) }},
		{3, "move times", func() {
			later := fmt.Sprintf("processed_at + interval '%f seconds'", w.rng.Float64()*1800)
			w.exec(fmt.Sprintf("UPDATE processed_events SET processed_at = %s WHERE %s AND %s", later, w.where(), w.hasPlace(later)))
		}},
		{2, "delete and vacuum", func() { w.exec("DELETE FROM processed_events WHERE " + w.where()); w.exec("VACUUM processed_events") }},
		{2, "back-date and analyze", func() {
			w.insertAged(most(w.some(300)), fmt.Sprintf("%f", w.age()))
			w.exec("ANALYZE processed_events")
		}},
		{2, "as many in as out", func() {
			n := most(w.some(200))
			w.exec(fmt.Sprintf("DELETE FROM processed_events WHERE event_id IN (SELECT event_id FROM processed_events ORDER BY md5(event_id || '%d') LIMIT %d)", w.rng.Uint32(), n))
			w.insertAged(n, fmt.Sprintf("%f", w.age()))
		}},
		{1, "vacuum", func() { w.exec("VACUUM processed_events") }},
		{1, "analyze", func() { w.exec("ANALYZE processed_events") }},
		{1, "the exporter starts again", w.start},
		{1, "statistics are reset", func() { w.exec("SELECT pg_stat_reset()") }},
	}
	alone := []choice{ // they wait for all others, or end them
		{2, "truncate and write again", func() {
			w.exec("BEGIN")
			w.exec("CREATE TEMP TABLE stays AS SELECT * FROM processed_events WHERE NOT " + w.where())
			w.exec("TRUNCATE processed_events")
			w.exec("INSERT INTO processed_events SELECT * FROM stays")
			w.exec("DROP TABLE stays")
			w.exec("COMMIT")
		}},
		{1, "truncate", func() {
			w.exec("TRUNCATE processed_events")
			w.insertAged(2000, fmt.Sprintf("i * %f", 3*86400/2000.0))
		}},
		{2, "delete and rewrite", func() {
			w.exec("DELETE FROM processed_events WHERE " + w.where())
			w.exec("VACUUM FULL processed_events")
		}},
		{2, "restart", func() { w.restart(pgserver.Fast) }},
		{2, "crash", func() {
			if w.rng.IntN(2) == 0 {
				w.exec("DELETE FROM processed_events WHERE " + w.where()) // the tally of it is lost
			}
			w.restart(pgserver.Immediate)
		}},
		{1, "failover", w.failover},
	}
	if w.table == "flat" {
		alone = append(alone, choice{1, "cluster", func() { w.exec("CLUSTER processed_events USING processed_events_pkey") }})
	}
	if w.table == "by time" {
		alone = append(alone, choice{3, "attach", w.attach}, choice{3, "detach", w.detach}, choice{2, "drop", w.drop})
	}
	if !busy {
		choices = append(choices, alone...)
	}
	choices = slices.DeleteFunc(choices, func(c choice) bool { return !strings.Contains(c.name, *truthOnly) })
	if len(choices) == 0 {
		return
	}
	sum := 0
	for _, c := range choices {
		sum += c.weight
	}
	n := w.rng.IntN(sum)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			for _, a := range alone {
				if a.name == c.name {
					w.endAll()
				}
			}
			name := c.name
			if busy {
				name += " amid traffic"
			}
			w.steps = append(w.steps, name)
			c.do()
			return
		}
	}
}

func (w *workload) begin() {
	if len(w.open) >= 4 {
		return
	}
	tx := &openTx{conn: dial(w.T, w.dsn)}
	run(w.T, tx.conn, "BEGIN")
	w.open = append(w.open, tx)
}

func (w *workload) writeTx() {
	if len(w.open) == 0 {
		w.begin()
	}
	tx := w.open[w.rng.IntN(len(w.open))]
	back := w.rng.IntN(4) == 0
	if back {
		run(w.T, tx.conn, "SAVEPOINT s")
	}
	run(w.T, tx.conn, fmt.Sprintf(`INSERT INTO processed_events SELECT '%s', nextval('ids')::text, %s, i %% 3, i FROM generate_series(1, %d) i`, w.group(), topicOf("i"), w.some(100)))
	if back {
		run(w.T, tx.conn, "ROLLBACK TO s")
	}
}

func (w *workload) endTx() {
	if len(w.open) > 0 {
		i := w.rng.IntN(len(w.open))
		run(w.T, w.open[i].conn, []string{"COMMIT", "COMMIT", "ROLLBACK"}[w.rng.IntN(3)])
		_ = w.open[i].conn.Close(context.Background())
		w.open = slices.Delete(w.open, i, i+1)
	}
}

func (w *workload) prepare() {
	w.writeTx()
	i := w.rng.IntN(len(w.open))
	w.ids++
	gid := fmt.Sprintf("truth %d", w.ids)
	run(w.T, w.open[i].conn, fmt.Sprintf("PREPARE TRANSACTION '%s'", gid))
	_ = w.open[i].conn.Close(context.Background())
	w.open = slices.Delete(w.open, i, i+1)
	w.prepared = append(w.prepared, gid)
}

func (w *workload) endPrepared() {
	if len(w.prepared) > 0 {
		w.exec(fmt.Sprintf("%s PREPARED '%s'", []string{"COMMIT", "ROLLBACK"}[w.rng.IntN(2)], w.prepared[0]))
		w.prepared = w.prepared[1:]
	}
}

func (w *workload) endAll() {
	for len(w.open) > 0 {
		w.endTx()
	}
	for len(w.prepared) > 0 {
		w.endPrepared()
	}
}

func (w *workload) attach() {
	for d, name := range w.loose {
		w.exec(fmt.Sprintf("ALTER TABLE processed_events ATTACH PARTITION %s FOR VALUES FROM (to_timestamp(%d)) TO (to_timestamp(%d))", name, d*86400, (d+1)*86400))
		w.parts = append(w.parts, d)
		slices.Sort(w.parts)
		delete(w.loose, d)
		return
	}
	d := w.parts[0] - 1
	w.createPart(d)
	w.exec(fmt.Sprintf("ALTER TABLE processed_events DETACH PARTITION part_%d", d))
	w.exec(fmt.Sprintf(`INSERT INTO part_%d SELECT 'ledger', nextval('ids')::text, %s, 0, i, to_timestamp(%d + i) FROM generate_series(1, %d) i`, d, topicOf("i"), d*86400, w.some(3000)))
	w.exec(fmt.Sprintf("ALTER TABLE processed_events ATTACH PARTITION part_%d FOR VALUES FROM (to_timestamp(%d)) TO (to_timestamp(%d))", d, d*86400, (d+1)*86400))
}

// old is a partition that takes no new rows.
func (w *workload) old() (int64, bool) {
	today := time.Now().Add(w.ahead).Unix() / 86400
	n := 0
	for n < len(w.parts) && w.parts[n] < today {
		n++
	}
	if n < 4 {
		return 0, false
	}
	return w.parts[w.rng.IntN(n)], true
}

func (w *workload) detach() {
	if d, ok := w.old(); ok && len(w.loose) < 3 {
		w.exec(fmt.Sprintf("ALTER TABLE processed_events DETACH PARTITION part_%d", d))
		w.loose[d] = fmt.Sprintf("part_%d", d)
		w.parts = slices.DeleteFunc(w.parts, func(p int64) bool { return p == d })
		if w.rng.IntN(2) == 0 {
			w.exec(fmt.Sprintf("DELETE FROM part_%d WHERE event_id < '5'", d))
		}
		if w.rng.IntN(3) == 0 {
			w.attach() // within one interval
		}
	}
}

func (w *workload) drop() {
	if d, ok := w.old(); ok {
		w.exec(fmt.Sprintf("DROP TABLE part_%d", d))
		w.parts = slices.DeleteFunc(w.parts, func(p int64) bool { return p == d })
		w.createPart(d) // so that back-dated rows have a place
	}
}

func (w *workload) restart(mode pgserver.StopMode) {
	if err := w.kept[0].Restart(w.Context(), mode); err != nil {
		w.Fatal(err)
	}
	w.dial()
	w.exec(warpPath)
}

// failover loses what an asynchronous standby had not received.
func (w *workload) failover() {
	if len(w.kept) == 1 {
		w.kept = append(w.kept, testenv.PostgresServer(w.T, pgserver.Options{Major: *truthMajor, Config: truthConfig, BaseBackupOf: w.kept[0]}))
	} else {
		if err := w.kept[1].Follow(w.Context(), w.kept[0]); err != nil {
			w.Fatal(err)
		}
	}
	w.dial()
	w.exec(warpPath)
	w.start()
	w.await(w.conn, "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
	primary, standby := w.kept[0], w.kept[1]
	w.flush()
	w.compare()
	replica := dial(w.T, standby.DSN("postgres"))
	w.await(w.conn, "SELECT count(*) = 1 FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()")
	run(w.T, replica, "ALTER SYSTEM SET primary_conninfo = ''")
	run(w.T, replica, "SELECT pg_reload_conf()")
	w.await(replica, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
	run(w.T, replica, "ALTER SYSTEM RESET primary_conninfo")
	_ = replica.Close(context.Background())
	for range 1 + w.rng.IntN(4) {
		w.insertAged(w.some(3000), "0")
		if w.rng.IntN(2) == 0 {
			w.exec("DELETE FROM processed_events WHERE " + w.where())
		}
		w.flush()
		w.pass(time.Duration(15+w.rng.IntN(120)) * time.Second)
		w.compare()
	}
	if err := primary.Stop(w.Context(), pgserver.Immediate); err != nil {
		w.Fatal(err)
	}
	if err := standby.Promote(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.kept[0], w.kept[1] = standby, primary
	w.dial()
	w.await(w.conn, "SELECT NOT pg_is_in_recovery()")
	w.exec(warpPath)
	w.pass(time.Second)
}

func (w *workload) await(conn *pgx.Conn, sql string) {
	w.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var ok bool
		if err := conn.QueryRow(w.Context(), sql).Scan(&ok); err != nil {
			w.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("never: %s", sql)
		}
	}
}
