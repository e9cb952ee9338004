package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/dbconn"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/postgres/cells"
)

// A transaction that began minutes before it wrote commits into a minute that
// was counted long ago.
func TestLateTransactions(t *testing.T) {
	t.Parallel()
	for name, column := range map[string]string{"now()": "now()", "clock_timestamp()": "clock_timestamp()"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, Config{}, strings.Replace(runbookDDL, "now()", column, 1))
			tuning := smallTuning()
			tuning.scrubRows = 0
			b.store.ledger = newLedger(b.store, tuning)
			b.insert("g", "t", 50, time.Minute)
			late := dial(t, b.dsn)
			run(t, late, "BEGIN")
			b.pollExact()
			for n := range 4 {
				time.Sleep(150 * time.Millisecond) // more than a bucket
				b.insert("g", "t", 1, 0)
				run(t, late, fmt.Sprintf(insertSQL, "", fmt.Sprintf("'g', 'late%d', 't', 0, 1", n)))
				b.pollExact()
			}
			run(t, late, "COMMIT")
			if s := b.pollExact().find("g", "t"); s.Rows != 58 || s.Inserted != 8 {
				t.Errorf("%+v, want 58 rows, 8 inserted", s)
			}
		})
	}
}

func TestPreparedTransactions(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	tuning := smallTuning()
	tuning.scrubRows = 0
	b.store.ledger = newLedger(b.store, tuning)
	b.pollExact()
	gid := "prepared " + b.dsn[strings.LastIndex(b.dsn, "/"):]
	early, late := dial(t, b.dsn), dial(t, b.dsn)
	run(t, early, "BEGIN") // open at a poll before it is prepared
	b.pollExact()
	time.Sleep(150 * time.Millisecond)
	run(t, early, fmt.Sprintf(insertSQL, "", "'g', 'early', 't', 0, 1"))
	run(t, early, fmt.Sprintf("PREPARE TRANSACTION '%s early'", gid))
	run(t, late, "BEGIN") // begun and prepared between two polls
	run(t, late, fmt.Sprintf(insertSQL, "", "'g', 'late', 't', 0, 1"))
	run(t, late, fmt.Sprintf("PREPARE TRANSACTION '%s late'", gid))
	for range 3 {
		m := b.pollExact()
		if !slices.Contains(m.Inexact, ReasonPrepared) {
			t.Errorf("reasons %v, want prepared_transactions", m.Inexact)
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.exec(fmt.Sprintf("COMMIT PREPARED '%s early'", gid))
	if n := b.pollExact().Rows(); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	// One that a new exporter finds prepared.
	b.store.ledger = newLedger(b.store, smallTuning())
	b.pollExact()
	time.Sleep(150 * time.Millisecond)
	b.exec(fmt.Sprintf("COMMIT PREPARED '%s late'", gid))
	m := b.pollExact()
	if m.Rows() != 2 || len(m.Inexact) != 0 {
		t.Errorf("%d rows, %v, want 2 and no reason left", m.Rows(), m.Inexact)
	}
}

// What only the scrub can find is betrayed by the server's tally, found by a
// fast round, and counted as corrections.
func TestScrubFindsWhatOthersMiss(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	tuning := smallTuning()
	b.store.ledger = newLedger(b.store, tuning)
	for n := range 300 {
		b.insert("g", "t", 1, time.Duration(10+n)*time.Second)
	}
	flush := func() { b.exec("SELECT pg_stat_force_next_flush()"); b.exec("SELECT 1") }
	flush()
	b.pollExact()
	b.pollExact()
	slow := b.pollExact()
	if slow.Corrections != 0 {
		t.Fatalf("%d corrections of an untouched table", slow.Corrections)
	}
	b.exec("DELETE FROM processed_events WHERE event_id IN ('e150', 'e151', 'e152')")
	flush()
	m := b.pollExact()
	if m.Corrections != 3 {
		t.Errorf("%d corrections, want 3", m.Corrections)
	}
	if s := m.find("g", "t"); s.Pruned != 3 || s.Pruning {
		t.Errorf("a deletion in the middle: %+v, want 3 pruned and no pruning observed", s)
	}
	b.insert("g", "t", 4, 100*time.Second)
	flush()
	if m := b.pollExact(); m.Corrections != 7 || m.find("g", "t").Inserted != 4 {
		t.Errorf("back-dated: %d corrections, %+v, want 7", m.Corrections, m.find("g", "t"))
	}
	b.exec("UPDATE processed_events SET processed_at = processed_at - interval '30 seconds' WHERE event_id IN ('e100')")
	flush()
	b.pollExact()
}

func TestObservedRetention(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	b := newBench(t, Config{}, runbookDDL)
	for h := range 9 * 24 {
		b.insert("g", "t", 2, time.Duration(h)*time.Hour+time.Minute)
		b.insert("other", "t", 1, time.Duration(h)*time.Hour+time.Minute)
	}
	b.pollExact()
	b.exec("DELETE FROM processed_events WHERE processed_at BETWEEN now() - interval '5 days' AND now() - interval '4 days'")
	m := b.pollExact()
	if s := m.find("g", "t"); s.Pruning || s.Pruned != 48 {
		t.Errorf("a day in the middle: %+v, want 48 gone and no pruning observed", s)
	}
	b.exec("DELETE FROM processed_events WHERE consumer_group = 'g' AND processed_at < now() - interval '8 days'")
	m = b.pollExact()
	near(t, "observed retention", m.find("g", "t").ObservedRetention, 8*day+time.Minute, 10*time.Second)
	if s := m.find("other", "t"); s.Pruning {
		t.Errorf("the other group: %+v, want no pruning observed", s)
	}
	// Pruned at 3 days but for one old straggler, which must not hide it.
	b.exec(`DELETE FROM processed_events WHERE consumer_group = 'g' AND processed_at < now() - interval '3 days'
	  AND event_id <> (SELECT event_id FROM processed_events WHERE consumer_group = 'g' ORDER BY processed_at LIMIT 1)`)
	m = b.pollExact()
	near(t, "observed retention beside a straggler", m.find("g", "t").ObservedRetention, 3*day+time.Minute, 10*time.Second)
	near(t, "oldest age", m.Age(m.find("g", "t").Oldest, m.ReadAt), 8*day-59*time.Minute, 10*time.Second)
}

func TestColumnTypes(t *testing.T) {
	t.Parallel()
	for name, ddl := range map[string]string{
		"uuid":   `CREATE TABLE processed_events (consumer_group uuid, event_id uuid, topic varchar(20), partition smallint, "offset" int, processed_at timestamp NOT NULL DEFAULT now())`,
		"bigint": `CREATE TABLE processed_events (consumer_group bigint, event_id bigint, processed_at timestamptz(0) NOT NULL DEFAULT now())`,
		"little": `CREATE TABLE processed_events (processed_at timestamptz DEFAULT now())`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, Config{}, ddl, "CREATE INDEX ON processed_events (processed_at)")
			insert := map[string]string{
				"uuid":   `INSERT INTO processed_events SELECT '7d444840-9dc0-11d1-b245-5ffdce74fad2', gen_random_uuid(), 't', 1, i, now() - i * interval '1 minute' FROM generate_series(0, 99) i`,
				"bigint": `INSERT INTO processed_events SELECT 7, i, now() - i * interval '1 minute' FROM generate_series(0, 99) i`,
				"little": `INSERT INTO processed_events SELECT now() - i * interval '1 minute' FROM generate_series(0, 99) i UNION ALL SELECT NULL`,
			}[name]
			b.exec(insert)
			m := b.poll()
			if m.Rows() != 100 || len(m.Series) != 1 || len(m.problems) != 0 {
				t.Errorf("%d rows in %v, problems %v: want 100 in one series", m.Rows(), m.Series, m.problems)
			}
			b.exec("DELETE FROM processed_events WHERE processed_at < now() - interval '1 hour'")
			if n := b.poll().Rows(); n > 61 || n < 59 {
				t.Errorf("%d rows left, want 60", n)
			}
		})
	}
}

func TestUnusableColumns(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE TABLE processed_events (consumer_group text, topic text, partition text, "offset" bigint, processed_at timestamptz, at text)`, "CREATE INDEX ON processed_events (processed_at)")
	m := b.poll()
	if len(m.problems) != 1 || m.problems[0].Kind != "malformed" || !strings.Contains(m.problems[0].Err.Error(), "postgres.column.partition") {
		t.Errorf("problems %v, want partition of type text named", m.problems)
	}
	wantError(t, newStore(t, Config{Config: dbconn.To(b.dsn), Columns: Columns{ProcessedAt: "at"}}), "malformed", `"at"`, "timestamp", "postgres.column.processed-at")
	wantError(t, newStore(t, Config{Config: dbconn.To(b.dsn), Columns: Columns{ProcessedAt: "nope"}}), "missing", `"nope"`, "consumer_group, topic", "postgres.column.processed-at")
	m, err := pollOnce(t, newStore(t, Config{Config: dbconn.To(b.dsn), Columns: Columns{Topic: "subject"}}))
	if err != nil || len(m.problems) == 0 || m.problems[0].Kind != "missing" {
		t.Errorf("%v %v, want the missing topic column named", m, err)
	}
}

func TestTimesBeyondReason(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 5, time.Hour)
	for n, at := range []string{"infinity", "-infinity", "0044-03-15 BC", "0001-01-01", "9999-12-31 23:59:59", "20000-01-01", "1969-12-31 23:59:59.5"} {
		b.exec(fmt.Sprintf(insertSQL, ", processed_at", fmt.Sprintf("'g', 'x%d', 't', 0, 1, '%s'", n, at)))
	}
	for range 3 {
		if m := b.poll(); m.Rows() != 12 {
			t.Fatalf("%d rows, want 12", m.Rows())
		}
	}
	b.exec("DELETE FROM processed_events WHERE event_id LIKE 'x%' AND processed_at < now()")
	b.exec("SELECT pg_stat_force_next_flush()")
	b.exec("SELECT 1")
	b.poll()
	if m := b.poll(); m.Rows() != 8 {
		t.Errorf("%d rows, want 8", m.Rows())
	}
}

// Times that a time.Duration cannot reach have an age; infinities have none.
func TestAgesBeyondReason(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Database: "db"}, runbookDDL)
	want := map[string]float64{}
	for _, at := range []string{"0001-01-01", "0002-01-01", "1600-01-01", "9999-12-31", "200000-01-01"} {
		b.exec(fmt.Sprintf(insertSQL, ", processed_at", fmt.Sprintf("'g', '%[1]s', '%[1]s', 0, 1, '%[1]s+00'", at)))
		var seconds float64
		if err := b.conn.QueryRow(t.Context(), "SELECT extract(epoch FROM now())::float8 - extract(epoch FROM $1::text::timestamptz)::float8", at+"+00").Scan(&seconds); err != nil {
			t.Fatal(err)
		}
		want[at] = seconds
	}
	for _, at := range []string{"infinity", "-infinity"} {
		b.exec(fmt.Sprintf(insertSQL, ", processed_at", fmt.Sprintf("'g', '%[1]s', '%[1]s', 0, 1, '%[1]s'", at)))
	}
	m := b.pollExact()
	p := b.page(m, m.ReadAt)
	labels := "_age_seconds consumer_group=g database=db topic="
	for at, seconds := range want {
		for _, end := range []string{"oldest", "newest"} {
			got, there := p["processed_events_"+end+labels+at]
			if !there || got < seconds || got > seconds+10 {
				t.Errorf("%s age of %s = %.0f s (%v), want %.0f", end, at, got, there, seconds)
			}
		}
		s := m.find("g", at)
		if age := m.Age(s.Oldest, m.ReadAt); (age > 0) != (seconds > 0) || (-age > 0) != (seconds < 0) || age-100*365*24*time.Hour > age {
			t.Errorf("age of %s = %s", at, age)
		}
	}
	for _, at := range []string{"infinity", "-infinity"} {
		if s := m.find("g", at); s.Rows != 1 {
			t.Errorf("%s: %+v, want 1 row", at, s)
		}
		if age, there := p["processed_events_oldest"+labels+at]; there {
			t.Errorf("age of %s = %v", at, age)
		}
	}
	b.exec("DELETE FROM processed_events WHERE event_id IN ('0001-01-01', '-infinity')")
	m = b.pollExact()
	if s := m.find("g", "0001-01-01"); s.Rows != 0 || !s.Oldest.IsZero() || s.Pruning {
		t.Errorf("pruned: %+v", s)
	}
	if s := m.find("g", "-infinity"); s.Pruning {
		t.Errorf("pruned: %+v, want no retention observed of an infinity", s)
	}
}

func TestManyFutureRows(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	tuning := defaultTuning()
	tuning.futureRows, tuning.scrubRows = 50, 40
	b.store.ledger = newLedger(b.store, tuning)
	b.insert("g", "t", 100, -2*time.Hour)
	m := b.pollExact()
	if len(m.Inexact) != 0 {
		t.Errorf("reasons %v at the first poll", m.Inexact)
	}
	m = b.pollExact()
	if !slices.Contains(m.Inexact, ReasonFuture) {
		t.Errorf("reasons %v, want future_rows", m.Inexact)
	}
	s := m.find("g", "t")
	near(t, "newest age", m.Age(s.Newest, m.ReadAt), -2*time.Hour, 10*time.Second)
	b.insert("g", "t", 100, -2*time.Hour)
	for range 20 {
		b.poll()
	}
	b.pollExact()
}

// What lies ahead at the start may be too much for one statement: it is counted
// in chunks as the past is, and no poll reads more of it than its share.
func TestTheFutureIsCountedInChunks(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.exec(`INSERT INTO processed_events SELECT 'g', 'e' || i, 't', i % 4, i, now() + (i - 30) * interval '8 minutes' FROM generate_series(1, 100) i`)
	b.exec(`INSERT INTO processed_events SELECT 'g', at, 'far', 0, 0, at::timestamptz FROM unnest(ARRAY['20000-01-01', '200000-12-31', 'infinity']) at`)
	b.ids = 100
	tuning := defaultTuning()
	tuning.share, tuning.chunk, tuning.futureRows = 0.0002, time.Nanosecond, 50
	b.store.ledger = newLedger(b.store, tuning)
	l := b.store.ledger
	polls, ahead := 0, 0
	for ; polls < 2000; polls++ {
		m := b.poll()
		if polls == 0 {
			if n := l.book.Rows(l.clock+2*tuning.future, cells.MaxTime); n != 0 {
				t.Errorf("the first poll counted %d rows of the future", n)
			}
		}
		if m.Ready {
			break
		}
		if l.backfill.ahead() {
			ahead++
			if !slices.Contains(m.Inexact, ReasonFuture) {
				t.Fatalf("reasons %v while the future is counted", m.Inexact)
			}
		}
	}
	t.Logf("ready after %d polls, %d of them for the future", polls, ahead)
	if ahead < 5 {
		t.Errorf("the future was counted in %d polls: nothing was tested", ahead)
	}
	m := b.pollExact()
	if s, far := m.find("g", "t"), m.find("g", "far"); s.Rows != 100 || far.Rows != 3 || s.Inserted+far.Inserted != 0 {
		t.Errorf("%+v %+v, want 100 and 3 rows, none inserted", s, far)
	}
	b.insert("g", "t", 10, 0)
	if n := b.pollExact().find("g", "t").Inserted; n != 10 {
		t.Errorf("%d inserted, want 10", n)
	}
}

func TestTheServersClockJumps(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	tuning := defaultTuning()
	tuning.scrubRows = 0
	b.store.ledger = newLedger(b.store, tuning)
	b.insert("g", "t", 100, time.Minute)
	b.pollExact()
	l := b.store.ledger
	for name, jump := range map[string]int64{"back a minute": cells.Minute, "back an hour": cells.Hour, "ahead an hour": -cells.Hour} {
		// As if the polls so far had been made by a clock that was off.
		l.clock += jump
		l.tailFrom += jump
		l.open.read += jump
		b.insert("g", "t", 10, 0)
		b.pollExact()
		b.insert("g", "t", 10, 0)
		b.pollExact()
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestALongAbsenceIsBackfilled(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	tuning := defaultTuning()
	tuning.scrubRows = 0
	b.store.ledger = newLedger(b.store, tuning)
	b.insert("g", "t", 100, 3*time.Hour)
	b.pollExact()
	l := b.store.ledger
	// As if the last poll had been two hours ago.
	l.clock -= 2 * cells.Hour
	l.tailFrom -= 2 * cells.Hour
	l.clockRead = l.clockRead.Add(-2 * time.Hour)
	for age := range 12 {
		b.insert("g", "t", 10, time.Duration(age*10)*time.Minute)
	}
	if s := b.pollExact().find("g", "t"); s.Inserted != 120 {
		t.Errorf("%+v, want 120 inserted", s)
	}
	b.pollExact()
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{MaxCells: 400}, runbookDDL)
	b.exec(`INSERT INTO processed_events SELECT 'g' || i % 3, 'e' || i, 't', i % 4, i, now() - i * interval '40 seconds' FROM generate_series(1, 5000) i`)
	b.ids = 5000
	for range 3 {
		m := b.pollExact()
		if m.Cells > 400 {
			t.Errorf("%d cells, want at most 400", m.Cells)
		}
		b.exec(`DELETE FROM processed_events WHERE ctid = ANY (ARRAY(SELECT ctid FROM processed_events ORDER BY processed_at LIMIT 700))`)
		b.insert("g0", "t", 10, 0)
	}
	b.pollExact()
	if w := b.store.ledger.width; w <= cells.Minute {
		t.Errorf("buckets of %s: they were never widened", time.Duration(w)*time.Microsecond)
	}
}

// The backfill takes several polls; meanwhile ages are known, counts are not,
// and rows come, go and appear late.
func TestBackfillOverSeveralPolls(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Database: "db"}, runbookDDL)
	b.exec(`INSERT INTO processed_events SELECT 'g' || i % 2, 'e' || i, 't', i % 4, i, now() - i * interval '3 seconds' FROM generate_series(1, 2400) i`)
	b.ids = 2400
	tuning := defaultTuning()
	tuning.share, tuning.chunk, tuning.scrubRows = 0.0002, time.Nanosecond, 0 // a few small chunks a poll
	b.store.ledger = newLedger(b.store, tuning)
	late := dial(t, b.dsn)
	run(t, late, "BEGIN")
	run(t, late, fmt.Sprintf(insertSQL, "", "'g0', 'late', 't', 0, 1"))
	rng, last, polls := rand.New(rand.NewPCG(1, 2)), -1.0, 0
	for ; polls < 2000; polls++ {
		m := b.poll()
		if m.Ready {
			break
		}
		if m.Progress < last {
			t.Errorf("progress went from %v to %v", last, m.Progress)
		}
		last = m.Progress
		p := b.page(m, m.ReadAt)
		if _, there := p["processed_events_row_count consumer_group=g0 database=db topic=t"]; there {
			t.Fatal("a count before the backfill is complete")
		}
		if polls == 3 {
			if _, there := p["processed_events_oldest_age_seconds consumer_group=g0 database=db topic=t"]; !there {
				t.Error("no age while the backfill runs")
			}
		}
		switch rng.IntN(12) {
		case 0:
			b.insert("g0", "t", 5, 0)
		case 1:
			b.exec(`DELETE FROM processed_events WHERE ctid = ANY (ARRAY(SELECT ctid FROM processed_events ORDER BY processed_at LIMIT 100))`)
		case 2:
			if late != nil {
				run(t, late, "COMMIT")
				late = nil
			}
		}
	}
	t.Logf("ready after %d polls", polls)
	if polls < 10 {
		t.Errorf("ready after %d polls: nothing was tested", polls)
	}
	b.pollExact()
}

func TestNoIndexOnTheTime(t *testing.T) {
	t.Parallel()
	ddl, _, _ := strings.Cut(runbookDDL, ";")
	b := newBench(t, Config{}, ddl, "CREATE INDEX half ON processed_events (processed_at) WHERE partition = 1", "CREATE INDEX late ON processed_events (topic, processed_at)")
	b.insert("g", "t", 20_000, 9*24*time.Hour)
	b.insert("g", "t", 10, 0)
	b.insert("g", "u", 1000, time.Hour)
	l := b.store.ledger
	l.t.duty = 1e9 // as if time enough had passed between two polls
	m := b.poll()
	if !slices.Equal(m.Inexact, []Reason{ReasonNoIndex}) || !m.Ready || m.find("g", "t").Rows != 20_010 || m.find("g", "u").Rows != 1000 {
		t.Fatalf("%+v", m)
	}
	b.insert("g", "u", 50, 0)
	b.exec("DELETE FROM processed_events WHERE processed_at < now() - interval '8 days'")
	b.exec("SELECT pg_stat_force_next_flush()")
	b.exec("SELECT 1")
	m = b.poll()
	if s := m.find("g", "t"); s.Rows != 10 || s.Pruned != 20_000 || !s.Pruning {
		t.Errorf("%+v, want all pruned", s)
	}
	if s := m.find("g", "u"); s.Rows != 1050 || s.Inserted != 50 {
		t.Errorf("%+v, want 1050 rows, 50 inserted", s)
	}
	// The table is not read again before its share of the time is over.
	l.t.duty = 1e-9
	l.pages.next = time.Time{}
	b.insert("g", "u", 50, 0)
	b.exec("SELECT pg_stat_force_next_flush()")
	b.exec("SELECT 1")
	b.poll()
	b.insert("g", "u", 50, 0)
	for range 5 {
		m = b.poll()
	}
	if n := m.find("g", "u").Rows; n != 1100 {
		t.Errorf("%d rows, want the 1100 of the last round", n)
	}
	// The hint is taken.
	b.exec("CREATE INDEX ON processed_events (processed_at)")
	if m := b.pollExact(); m.find("g", "u").Rows != 1150 || len(m.Inexact) != 0 {
		t.Errorf("with the index: %+v", m)
	}
}

// read is how many blocks of the table have been asked for.
func (b *bench) read() (n int64) {
	b.Helper()
	if err := b.conn.QueryRow(b.Context(), "SELECT heap_blks_hit + heap_blks_read FROM pg_statio_user_tables WHERE relname = 'processed_events'").Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// The runbook's day partitions have no topic column and no index on the time.
func TestRunbooksDayPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE TABLE processed_events (
    consumer_group text NOT NULL,
    event_id       text NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id, processed_at)
) PARTITION BY RANGE (processed_at)`)
	day := func(back int) string { return fmt.Sprintf("date_trunc('day', now()) - interval '%d days'", back) }
	create := func(back int) {
		b.exec(fmt.Sprintf(`DO $$ BEGIN EXECUTE format('CREATE TABLE day_%d PARTITION OF processed_events FOR VALUES FROM (%%L) TO (%%L)', %s, %s); END $$`, back+100, day(back), day(back-1)))
		b.exec(fmt.Sprintf(`INSERT INTO processed_events SELECT 'g', 'd%d-' || i, %s + i * interval '1 minute' FROM generate_series(1, 100) i`, back, day(back)))
	}
	for back := range 9 {
		create(back)
	}
	b.store.ledger.t.duty = 1e9
	m := b.poll()
	if s := m.find("g", ""); s.Rows != 900 || len(m.Series) != 1 || !m.Ready {
		t.Fatalf("%+v", m)
	}
	if m.Table.UniqueOn("consumer_group", "event_id") || m.Table.PartitionedBy != "RANGE (processed_at)" {
		t.Errorf("the table is said to be unique by event, partitioned by %q", m.Table.PartitionedBy)
	}
	b.exec("DROP TABLE day_108")
	create(-1)
	m = b.poll()
	s := m.find("g", "")
	if s.Rows != 900 || s.Pruned != 100 || s.Inserted != 100 || !s.Pruning {
		t.Errorf("after a drop and a creation: %+v", s)
	}
	if s.ObservedRetention < 7*24*time.Hour || s.ObservedRetention > 9*24*time.Hour {
		t.Errorf("observed retention %s", s.ObservedRetention)
	}
	// With the index that the hint names, everything is exact.
	b.exec("CREATE INDEX ON processed_events (processed_at)")
	b.pollExact()
	b.exec("DROP TABLE day_107")
	create(-2)
	m = b.pollExact()
	if s := m.find("g", ""); s.Pruned != 200 || len(m.Inexact) != 0 {
		t.Errorf("with the index: %+v %v", s, m.Inexact)
	}
}

// DROP of a partition waits for no poll for long.
func TestDropOfAPartitionIsNotDelayed(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, processed_at timestamptz NOT NULL DEFAULT now())
	  PARTITION BY RANGE (processed_at)`, "CREATE INDEX ON processed_events (processed_at)")
	for back := range 8 {
		b.exec(fmt.Sprintf(`DO $$ BEGIN EXECUTE format('CREATE TABLE day_%[1]d PARTITION OF processed_events FOR VALUES FROM (%%L) TO (%%L)', date_trunc('day', now()) - interval '%[1]d days', date_trunc('day', now()) - interval '%[1]d days' + interval '1 day'); END $$`, back))
		b.exec(fmt.Sprintf(`INSERT INTO processed_events SELECT 'g', 'd%[1]d-' || i, date_trunc('day', now()) - interval '%[1]d days' + i * interval '1 second' FROM generate_series(1, 20000) i`, back))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// A poll may meet a partition that is just gone: the next is right.
			_, _ = b.store.ledger.Poll(ctx)
		}
	}()
	dropper := dial(t, b.dsn)
	longest := time.Duration(0)
	for back := 7; back > 0; back-- {
		began := time.Now()
		run(t, dropper, fmt.Sprintf("DROP TABLE day_%d", back))
		longest = max(longest, time.Since(began))
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	<-done
	t.Logf("longest DROP %s", longest)
	if longest > time.Second {
		t.Errorf("DROP of a partition took %s", longest)
	}
	if n := b.pollExact().Rows(); n != 20_000 {
		t.Errorf("%d rows, want 20000", n)
	}
}

// A cursor over one table must not survive to its successor of the same name.
func TestTableReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 100, time.Hour)
	b.pollExact()
	b.exec("DROP TABLE processed_events")
	b.exec(runbookDDL)
	b.insert("g", "t", 7, 2*time.Hour)
	if s := b.pollExact().find("g", "t"); s.Rows != 7 || s.Pruned != 0 {
		t.Errorf("%+v, want 7 rows and nothing pruned", s)
	}
}

// A column or an index that comes or goes is noticed at the next poll.
func TestColumnsAndIndexesChange(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 10, time.Hour)
	if n := b.pollExact().find("g", "t").Rows; n != 10 {
		t.Fatalf("%d rows, want 10", n)
	}
	at := b.store.ledger.schema.at
	b.exec("ANALYZE processed_events")
	if b.pollExact(); b.store.ledger.schema.at != at {
		t.Error("the structure was read again though nothing had changed")
	}
	b.exec("ALTER TABLE processed_events DROP topic")
	if n := b.pollExact().find("g", "").Rows; n != 10 {
		t.Errorf("%d rows without topic, want 10", n)
	}
	b.exec("ALTER TABLE processed_events ADD topic text NOT NULL DEFAULT 't'")
	if n := b.pollExact().find("g", "t").Rows; n != 10 {
		t.Errorf("%d rows of topic t, want 10", n)
	}
	b.exec("DROP INDEX processed_events_processed_at")
	if m := b.poll(); !slices.Contains(m.Inexact, ReasonNoIndex) {
		t.Errorf("reasons %v, want no_index", m.Inexact)
	}
	b.exec("CREATE INDEX ON processed_events (processed_at)")
	if m := b.pollExact(); len(m.Inexact) != 0 {
		t.Errorf("reasons %v with the index, want none", m.Inexact)
	}
}

// A steady poll reads a small part of the table, also with a group that is new
// or rare.
func TestASteadyPollReadsLittle(t *testing.T) {
	t.Parallel()
	const rows = 200_000
	b := newBench(t, Config{}, runbookDDL, "ALTER TABLE processed_events SET (autovacuum_enabled = off)")
	b.exec(fmt.Sprintf(`INSERT INTO processed_events SELECT 'g' || i %% 3, 'e' || i, 't', i %% 4, i, now() - (i + 2400) * interval '50 ms' FROM generate_series(1, %d) i`, rows))
	b.exec("VACUUM ANALYZE processed_events")
	b.ids = rows
	b.insert("rare", "t", 3, time.Minute)
	b.store.ledger.t.scrubRows = 1000
	b.store.ledger.observer = func(ctx context.Context, conn *pgx.Conn) {
		if _, err := conn.Exec(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Error(err)
		}
	}
	for !b.poll().Ready {
	}
	// The server books what was read at a poll at the next at the latest.
	var each []int64
	for range 7 {
		before := b.read()
		if n := b.poll().Rows(); n != rows+3 {
			t.Errorf("%d rows", n)
		}
		each = append(each, b.read()-before)
	}
	slices.Sort(each)
	median := each[len(each)/2]
	var pages int64
	if err := b.conn.QueryRow(t.Context(), "SELECT pg_relation_size('processed_events') / 8192").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d blocks a poll, of %d", median, pages)
	if median == 0 || median*10 > pages {
		t.Errorf("%d blocks a poll of a table of %d", median, pages)
	}
}
