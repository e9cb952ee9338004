package postgres

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"oncewatch/collectors/dbconn"
	"oncewatch/deploy/testenv"
)

func (b *bench) health() *TableHealth {
	b.Helper()
	return b.healthOf(b.store.TableHealth().(*tableHealth))
}

func (b *bench) healthOf(h *tableHealth) *TableHealth {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	snap, err := h.Poll(ctx)
	if err != nil {
		b.Fatal(err)
	}
	return snap.(*TableHealth)
}

func TestTableHealth(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Database: "db"}, runbookDDL, "ALTER TABLE processed_events SET (autovacuum_enabled = off)")
	b.insert("g", "t", 20_000, time.Hour)
	b.pollExact()
	source := b.store.TableHealth().(*tableHealth)
	first := b.healthOf(source)
	p := b.page(first, time.Now())
	if a := first.Autovacuum; !a.Off || a.DeadRows < 50 {
		t.Errorf("%+v, want autovacuum off for this table", a)
	}
	if len(first.Indexes) != 2 || p["processed_events_index_bytes database=db index=processed_events_pkey"] < 100_000 || p["processed_events_table_bytes database=db"] < 1_000_000 {
		t.Errorf("%v", p)
	}
	if r := p["processed_events_index_bloat_ratio database=db index=processed_events_pkey"]; r != 1 {
		t.Errorf("bloat ratio %v at the first look, want 1", r)
	}
	if _, there := p["processed_events_last_vacuum_timestamp_seconds database=db"]; there {
		t.Error("a last vacuum of a table that never was vacuumed")
	}
	b.exec("DELETE FROM processed_events WHERE ctid IN (SELECT ctid FROM processed_events LIMIT 9000)")
	b.exec("SELECT pg_stat_force_next_flush()")
	b.exec("SELECT 1")
	b.poll()
	b.pollExact()
	second := b.healthOf(source)
	if second.DeadRows != 9000 {
		t.Errorf("%d dead rows, want 9000", second.DeadRows)
	}
	if r := second.Indexes[0].Bloat; r < 1.8 || r > 1.9 {
		t.Errorf("bloat ratio %v after 45 %% of the markers went, want 20/11", r)
	}
	b.exec("VACUUM ANALYZE processed_events")
	b.exec("ALTER TABLE processed_events SET (autovacuum_enabled = on, autovacuum_vacuum_scale_factor = 0.01)")
	b.exec("SELECT pg_stat_force_next_flush()")
	b.exec("SELECT 1")
	h := b.healthOf(source)
	if h.LastVacuum.IsZero() || h.DeadRows != 0 {
		t.Errorf("after VACUUM: %+v", h)
	}
	// 50 rows and a hundredth of the 11,000 that are left.
	if want := (Autovacuum{DeadRows: 160}); h.Autovacuum != want {
		t.Errorf("%+v, want %+v", h.Autovacuum, want)
	}
}

func TestWhoHoldsVacuumBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Database: "db"}, runbookDDL)
	of := func(kind string) (time.Duration, bool) {
		for _, h := range b.health().Holders {
			if h.Kind == kind {
				return h.Age, true
			}
		}
		return 0, false
	}
	holder := dial(t, b.dsn)
	run(t, holder, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	run(t, holder, "SELECT count(*) FROM processed_events")
	began := time.Now()
	time.Sleep(300 * time.Millisecond)
	if age, ok := of("session"); !ok || age < 300*time.Millisecond || age > time.Since(began)+time.Second {
		t.Errorf("a session holds the horizon for %s, %t: want at least 300 ms", age, ok)
	}
	run(t, holder, "ROLLBACK")
	gid := "holder " + b.dsn[strings.LastIndex(b.dsn, "/"):]
	run(t, holder, "BEGIN")
	run(t, holder, strings.ReplaceAll("INSERT INTO processed_events VALUES ('g', 'e', 't', 0, 0)", "\n", " "))
	run(t, holder, "PREPARE TRANSACTION '"+gid+"'")
	if _, ok := of("prepared_transaction"); !ok {
		t.Error("a prepared transaction is not named")
	}
	run(t, holder, "ROLLBACK PREPARED '"+gid+"'")
	s := newStore(t, Config{Config: dbconn.To(b.role("GRANT SELECT ON processed_events TO $ROLE"))})
	b.store = s
	if h := b.health().Holders; len(h) != 0 {
		t.Errorf("a role that may not see sessions says %+v", h)
	}
}

func TestPartitionsIndexesAreAddedUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE TABLE processed_events (consumer_group text, event_id text, processed_at timestamptz NOT NULL, PRIMARY KEY (consumer_group, event_id)) PARTITION BY RANGE (consumer_group)`)
	b.exec("CREATE INDEX by_time ON processed_events (processed_at)")
	b.exec("CREATE TABLE p1 PARTITION OF processed_events FOR VALUES FROM ('a') TO ('b')")
	b.exec("CREATE TABLE p2 PARTITION OF processed_events FOR VALUES FROM ('b') TO ('c')")
	b.exec("INSERT INTO processed_events SELECT 'a', i::text, now() FROM generate_series(1, 1000) i UNION ALL SELECT 'b', i::text, now() FROM generate_series(1, 1000) i")
	h := b.health()
	if len(h.Indexes) != 2 || h.Indexes[0].Name != "by_time" || h.Indexes[0].Bytes != 2*h.Indexes[0].Bytes/2 || h.Indexes[0].Bytes < 4*8192 {
		t.Errorf("%+v, want by_time and the key, over both partitions", h.Indexes)
	}
	if !h.Table.UniqueOn("consumer_group", "event_id") {
		t.Error("the key is not recognized")
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, err := New(Config{Config: dbconn.To(testenv.Postgres(t))}, testLog(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pollOnce(t, s); err == nil {
		t.Error("no error without a table")
	}
	s.Close()
	goleak.VerifyNone(t, before)
}
