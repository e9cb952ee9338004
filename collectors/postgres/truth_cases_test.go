package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/dbconn"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// large makes the ledger treat a small table as a large one: nothing is
// verified but what is suspect, and that in chunks.
func (b *bench) large() {
	b.flushed()
	t := defaultTuning()
	t.scrubRows, t.inlineRows = 0, 0
	b.store.ledger = newLedger(b.store, t)
}

// until polls until the counts are exact without a flag, and wants every poll
// before that to be exact or flagged.
func (b *bench) until(polls int) int {
	b.Helper()
	for n := 1; ; n++ {
		right, flagged := b.look()
		switch {
		case right && !flagged:
			return n
		case !right && !flagged:
			b.Fatalf("poll %d is wrong and not flagged", n)
		case n >= polls:
			b.Fatalf("still %t, flagged %t after %d polls", right, flagged, n)
		}
	}
}

func (b *bench) look() (right, flagged bool) {
	b.Helper()
	var want []string
	b.store.ledger.observer = observe(b.T, b.store.ledger, &want)
	m := b.poll()
	b.store.ledger.observer = nil
	if len(m.Inexact) > 0 {
		b.Logf("flagged: %v", m.Inexact)
	}
	return m.Ready && slices.Equal(describe(m), want), !m.Ready || len(m.Inexact) > 0
}

// flushed makes the server tell what the session has done.
func (b *bench) flushed() {
	b.exec("SELECT pg_stat_force_next_flush()")
	b.exec("SELECT 1")
}

// Six groups of six retentions, each pruned in batches by itself: every poll
// is exact.
func TestEachGroupIsPrunedByARetentionOfItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	day := 24 * time.Hour
	for g := range 6 {
		keep := time.Duration(3+g) * day
		b.exec(fmt.Sprintf(`INSERT INTO processed_events SELECT 'g%d', 'e%d-' || i, CASE WHEN i %% 3 = 0 THEN 'u' ELSE 't' END, i %% 4, i,
		  now() - interval '%d seconds' + i * interval '%f seconds' FROM generate_series(0, 1999) i`, g, g, int(keep.Seconds()), keep.Seconds()/2000))
	}
	b.large()
	b.until(5)
	for n := range 12 {
		for g := range 6 {
			b.exec(fmt.Sprintf(`DELETE FROM processed_events WHERE consumer_group = 'g%d' AND event_id IN
			  (SELECT event_id FROM processed_events WHERE consumer_group = 'g%d' ORDER BY processed_at LIMIT %d)`, g, g, 10+n*g))
		}
		b.insert("g1", "t", 20, 0)
		if right, flagged := b.look(); !right || flagged {
			t.Fatalf("look %d: right %t, flagged %t", n, right, flagged)
		}
	}
}

// A back-dated marker of a group and, far above, the group's other old ones are
// pruned together: the poll follows the group's end to where it is now.
func TestAGroupsOldEndMovesFarUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.exec(`INSERT INTO processed_events SELECT 'ledger', 'l' || i, 't', 0, i, now() - interval '8 days' + i * interval '1 minute' FROM generate_series(0, 11000) i`)
	b.exec(`INSERT INTO processed_events SELECT 'mail', 'm' || i, 't', 0, i, now() - interval '3 days' + i * interval '1 minute' FROM generate_series(0, 4000) i`)
	b.exec(`INSERT INTO processed_events VALUES ('mail', 'late', 't', 0, 1, now() - interval '7 days')`)
	b.large()
	b.until(5)
	b.exec("DELETE FROM processed_events WHERE consumer_group = 'mail' AND processed_at < now() - interval '3 days' + interval '5 minutes'")
	if right, flagged := b.look(); !right || flagged {
		t.Errorf("right %t, flagged %t", right, flagged)
	}
}

// A day of 375,000 rows is attached: flagged from the first poll, right within
// a minute.
func TestAnOldDayIsAttached(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL,
	  "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer_group, event_id, processed_at)) PARTITION BY RANGE (processed_at);
	  CREATE INDEX ON processed_events (processed_at)`)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for d := -6; d <= 1; d++ {
		b.exec(fmt.Sprintf("CREATE TABLE day_%d PARTITION OF processed_events FOR VALUES FROM ('%s') TO ('%s')", d+6,
			today.AddDate(0, 0, d).Format(time.RFC3339), today.AddDate(0, 0, d+1).Format(time.RFC3339)))
	}
	b.insert("g", "t", 1000, time.Minute)
	b.insert("g", "t", 1000, 5*24*time.Hour)
	b.exec("ALTER TABLE processed_events DETACH PARTITION day_3")
	b.exec(fmt.Sprintf(`INSERT INTO day_3 SELECT 'g', 'old' || i, 't', 0, i, '%s'::timestamptz + i * interval '0.2 seconds' FROM generate_series(1, 375000) i`, today.AddDate(0, 0, -3).Format(time.RFC3339)))
	b.large()
	b.until(5)
	b.exec(fmt.Sprintf("ALTER TABLE processed_events ATTACH PARTITION day_3 FOR VALUES FROM ('%s') TO ('%s')", today.AddDate(0, 0, -3).Format(time.RFC3339), today.AddDate(0, 0, -2).Format(time.RFC3339)))
	if right, flagged := b.look(); !right && !flagged {
		t.Error("wrong and not flagged at the first poll")
	}
	t.Logf("exact after %d polls more", b.until(4))
	b.exec("ALTER TABLE processed_events DETACH PARTITION day_3")
	t.Logf("detached: exact after %d polls", b.until(5))
}

// A change of the column's type in a zone that is not UTC makes another table
// of it: nothing of it is pruning.
func TestTheTimeColumnChangesItsType(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.exec(fmt.Sprintf("ALTER DATABASE %s SET TimeZone = 'Asia/Kolkata'", b.dsn[strings.LastIndex(b.dsn, "/")+1:strings.LastIndex(b.dsn, "?")]))
	b.insert("g", "t", 500, 3*time.Hour)
	b.store = newStore(t, Config{Config: dbconn.To(b.dsn)})
	b.conn = dial(t, b.dsn)
	b.pollExact()
	for _, kind := range []string{"timestamp", "timestamptz"} {
		b.exec("ALTER TABLE processed_events ALTER COLUMN processed_at TYPE " + kind)
		m := b.pollExact()
		s := m.find("g", "t")
		if s.Rows != 500 || s.Pruned != 0 || s.Pruning {
			t.Errorf("%s: %+v", kind, s)
		}
		near(t, kind, m.Age(s.Oldest, m.ReadAt), 3*time.Hour, 20*time.Second)
	}
}

// A standby that was minutes behind takes over: flagged from the first poll,
// and what it lacks is counted no more.
func TestFailoverToAStandbyThatWasFarBehind(t *testing.T) {
	t.Parallel()
	primary := testenv.PostgresServer(t, pgserver.Options{})
	b := newBench(t, Config{Config: dbconn.To(primary.DSN("postgres"))}, runbookDDL)
	b.insert("g", "t", 30_000, 5*time.Hour)
	standby := testenv.PostgresServer(t, pgserver.Options{BaseBackupOf: primary})
	b.store = newStore(t, Config{Config: dbconn.To(fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=postgres dbname=postgres sslmode=disable target_session_attrs=read-write", primary.Port, standby.Port))})
	b.large()
	b.until(5)
	w := &workload{bench: b}
	w.await(b.conn, "SELECT count(*) = 1 FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()")
	replica := dial(t, standby.DSN("postgres"))
	run(t, replica, "ALTER SYSTEM SET primary_conninfo = ''")
	run(t, replica, "SELECT pg_reload_conf()")
	w.await(replica, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
	// As if they had been written over the last ten minutes.
	b.exec(`INSERT INTO processed_events SELECT 'g', 'lost' || i, 't', 0, i, now() - i * interval '0.05 seconds' FROM generate_series(1, 10900) i`)
	b.flushed()
	b.until(10)
	if err := primary.Stop(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _ = pollOnce(t, b.store) // may find the dead connection
	t.Logf("exact after %d polls", b.until(5))
	if n := b.pollExact().Rows(); n != 30_000 {
		t.Errorf("%d rows after the failover, want 30000", n)
	}
}

// A group of 50,000 rows is renamed: flagged, and exact within minutes.
func TestARenamedGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.exec(`INSERT INTO processed_events SELECT CASE WHEN i % 2 = 0 THEN 'old' ELSE 'other' END, 'e' || i, 't', 0, i, now() - i * interval '5 seconds' FROM generate_series(1, 100000) i`)
	b.large()
	b.until(5)
	b.exec("UPDATE processed_events SET consumer_group = 'new' WHERE consumer_group = 'old'")
	b.flushed()
	t.Logf("exact after %d polls", b.until(8))
	if s := b.pollExact().find("new", "t"); s.Rows != 50_000 {
		t.Errorf("%+v", s)
	}
}

// A marker that a handler takes back is no pruning, nor is a group that is
// retired; what was observed is forgotten when it is not seen again.
func TestWhatIsNoPruning(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 1, 5*time.Second)
	b.insert("retired", "t", 500, time.Hour)
	b.pollExact()
	b.exec("DELETE FROM processed_events WHERE consumer_group = 'g'")
	b.pollExact()
	b.insert("g", "t", 499, 2*time.Second)
	b.exec("DELETE FROM processed_events WHERE consumer_group = 'retired'")
	b.flushed()
	m := b.pollExact()
	for _, g := range []string{"g", "retired"} {
		if s := m.find(g, "t"); s.Pruning {
			t.Errorf("%s: %+v, want no pruning", g, s)
		}
	}
	b.exec("DELETE FROM processed_events WHERE event_id IN (SELECT event_id FROM processed_events ORDER BY event_id LIMIT 1)")
	b.flushed()
	if s := b.pollExact().find("g", "t"); s.Pruning {
		t.Errorf("one more taken back: %+v, want no pruning", s)
	}
}

// Entries that never finished have no time. They are no markers, and are
// counted apart, by group.
func TestRowsWithoutATime(t *testing.T) {
	t.Parallel()
	for name, index := range map[string]string{"index": "CREATE INDEX ON processed_events (processed_at)", "no index": "SELECT 1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, Config{Database: "db"}, `CREATE TABLE processed_events (consumer_group text, event_id text, processed_at timestamptz)`, index)
			b.exec("INSERT INTO processed_events SELECT 'stuck', i::text, NULL FROM generate_series(1, 50000) i")
			b.exec("INSERT INTO processed_events SELECT 'sound', i::text, now() FROM generate_series(1, 10) i")
			m := b.poll()
			p := b.page(m, m.ReadAt)
			for g, want := range map[string]float64{"stuck": 50_000, "sound": 0} {
				if n, there := p["processed_events_rows_without_time consumer_group="+g+" database=db"]; !there || n != want {
					t.Errorf("%s: %v %t, want %v", g, n, there, want)
				}
			}
			if m.Rows() != 10 {
				t.Errorf("%d markers, want 10", m.Rows())
			}
		})
	}
	b := newBench(t, Config{Database: "db"}, runbookDDL)
	b.insert("g", "t", 3, 0)
	if m := b.poll(); m.Untimed != nil {
		t.Errorf("%v of a column that cannot be NULL", m.Untimed)
	}
}

// A round of the scrub is bounded in time: the more rows there are, the more
// of them each poll verifies.
func TestTheScrubsRoundIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{ScrubRound: time.Minute}, runbookDDL)
	b.exec(`INSERT INTO processed_events SELECT 'g', 'e' || i, 't', 0, i, now() - i * interval '30 seconds' FROM generate_series(1, 4000) i`)
	tuning := defaultTuning()
	tuning.scrubRows = 1
	b.store.ledger = newLedger(b.store, tuning)
	l := b.store.ledger
	b.pollExact()
	for range 6 {
		l.clock -= 15 * 1_000_000 // as if the last poll had been 15 s ago
		m := b.pollExact()
		if m.ScrubRound < 10*time.Second || m.ScrubRound > 61*time.Second {
			t.Errorf("a round takes %s, want at most a minute", m.ScrubRound)
		}
	}
	if l.scrub.since.IsZero() || !l.scrub.since.After(l.backfill.began) {
		t.Error("no round in six polls of a quarter of a minute")
	}
}
