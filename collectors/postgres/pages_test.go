package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/poll"
)

// ready polls until all is counted and compares with SELECT.
func (b *bench) ready(polls int) *Markers {
	b.Helper()
	for range polls {
		if m := b.poll(); m.Ready {
			var want []string
			observe(b.T, b.store.ledger, &want)(context.Background(), b.conn)
			if got := describe(m); !slices.Equal(got, want) {
				b.Fatalf("ledger\n  %v\nSELECT\n  %v", got, want)
			}
			return m
		}
	}
	b.Fatalf("not ready after %d polls", polls)
	return nil
}

// A view too large for one short statement is counted by ranges of its time,
// which an index beneath it finds.
func TestALargeView(t *testing.T) {
	t.Parallel()
	ddl := strings.ReplaceAll(strings.ReplaceAll(runbookDDL, "TABLE processed_events", "TABLE beneath"), "ON processed_events", "ON beneath")
	b := newBench(t, Config{}, ddl, "CREATE VIEW processed_events AS SELECT * FROM beneath")
	b.exec(`INSERT INTO beneath SELECT 'g' || i % 3, 'e' || i, 't', i % 4, i, now() - i * interval '0.2 seconds' FROM generate_series(1, 600000) i`)
	b.exec("ANALYZE beneath")
	m := b.ready(20)
	if !slices.Contains(m.Inexact, ReasonNoIndex) {
		t.Errorf("reasons %v, want no_index", m.Inexact)
	}
}

// A view whose time no index finds is refused with the true reason, which is no
// lock.
func TestAViewThatCannotBeCountedInShortStatements(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE VIEW processed_events AS SELECT 'g'::text AS consumer_group, now() - i * interval '1 second' AS processed_at FROM generate_series(1, 100) i WHERE pg_sleep(0.01) IS NOT NULL`)
	for range 12 {
		if _, err := pollOnce(t, b.store); poll.Kind(err) == "unsupported" {
			if strings.Contains(err.Error(), "lock") || !strings.Contains(err.Error(), "no index beneath it") {
				t.Errorf("%v", err)
			}
			return
		}
	}
	t.Error("never refused")
}

// A table that others inherit from is counted by its index only where all of
// them have one.
func TestInheritedTables(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL, "CREATE TABLE child () INHERITS (processed_events)")
	b.insert("g", "t", 1000, time.Hour)
	b.exec(`INSERT INTO child SELECT 'g', 'c' || i, 't', 0, i, now() - i * interval '1 second' FROM generate_series(1, 300000) i`)
	if m := b.ready(20); m.Rows() != 301_000 || !slices.Contains(m.Inexact, ReasonNoIndex) {
		t.Errorf("%d rows, %v", m.Rows(), m.Inexact)
	}
	b.exec("CREATE INDEX ON child (processed_at)")
	for range 20 {
		if m := b.poll(); m.Ready && len(m.Inexact) == 0 {
			b.pollExact()
			return
		}
	}
	t.Error("not counted by the index")
}

// Without an index all is counted again at the promised rhythm, so that rows
// which change by UPDATE alone are seen.
func TestUpdatesWithoutAnIndex(t *testing.T) {
	t.Parallel()
	ddl, _, _ := strings.Cut(runbookDDL, ";")
	b := newBench(t, Config{}, ddl)
	b.insert("g", "t", 1000, time.Hour)
	b.store.ledger.t.duty = 1e9
	b.ready(3)
	b.exec("UPDATE processed_events SET topic = 'moved' WHERE event_id IN (SELECT event_id FROM processed_events LIMIT 20)")
	if s := b.ready(1).find("g", "moved"); s.Rows != 20 {
		t.Errorf("%+v, want 20 rows moved", s)
	}
}

// A table of 400 partitions by the event id: planning a statement takes longer
// than running it. The first count ends, and the cost of a poll is bounded.
func TestManyPartitionsByEventID(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL,
	  "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer_group, event_id)) PARTITION BY HASH (event_id)`)
	b.exec(`DO $$ BEGIN FOR i IN 0..399 LOOP EXECUTE format('CREATE TABLE p%s PARTITION OF processed_events FOR VALUES WITH (MODULUS 400, REMAINDER %s)', i, i); END LOOP; END $$`)
	b.exec("CREATE INDEX ON processed_events (processed_at)")
	b.exec(`INSERT INTO processed_events SELECT 'g' || i % 3, 'e' || i, 't', i % 4, i, now() - i * interval '3.7 seconds' FROM generate_series(1, 200000) i`)
	b.exec("ANALYZE processed_events")
	b.flushed()
	polls := 1
	for m := b.poll(); !m.Ready; m = b.poll() {
		if polls++; polls > 12 {
			t.Fatal("not ready after 12 polls")
		}
	}
	t.Logf("ready after %d polls", polls)
	b.ids = 1_000_000
	b.insert("g1", "t", 10, 0)
	b.exec("DELETE FROM processed_events WHERE processed_at < now() - interval '8 days'")
	b.until(10)
}

// The table of many guides, (consumer, event_id), has no time: its markers are
// counted, the metrics say that nothing is known of their age, and what a
// consumer adds by ON CONFLICT DO NOTHING or somebody deletes is seen. Effects
// cannot be compared with it, and the configuration says so.
func TestATableWithoutATime(t *testing.T) {
	t.Parallel()
	without := Columns{Group: "consumer", EventID: "event_id", ProcessedAt: "-"}
	for kind, ddl := range map[string][]string{
		"flat":        {"CREATE TABLE processed_events (consumer text NOT NULL, event_id text NOT NULL, PRIMARY KEY (consumer, event_id))"},
		"partitioned": {"CREATE TABLE processed_events (consumer text NOT NULL, event_id text NOT NULL, PRIMARY KEY (consumer, event_id)) PARTITION BY HASH (event_id)", "CREATE TABLE p0 PARTITION OF processed_events FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "CREATE TABLE p1 PARTITION OF processed_events FOR VALUES WITH (MODULUS 2, REMAINDER 1)"},
		"a view":      {"CREATE TABLE beneath (consumer text NOT NULL, event_id text NOT NULL, PRIMARY KEY (consumer, event_id))", "CREATE VIEW processed_events AS SELECT * FROM beneath"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, Config{Columns: without}, ddl...)
			rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
			b.store.ledger.t.duty = 1e9                                      // a round at every poll
			add := `INSERT INTO processed_events SELECT 'g' || i % 3, (i % ` // redelivered: the second changes nothing
			for range 6 {
				n := 1 + rng.IntN(9000)
				for range 2 {
					sql := fmt.Sprintf("%s%d)::text FROM generate_series(1, %d) i ON CONFLICT DO NOTHING", add, n, n)
					if kind == "a view" {
						sql = strings.Replace(sql, "INTO processed_events", "INTO beneath", 1)
					}
					b.exec(sql)
				}
				b.exec(fmt.Sprintf("DELETE FROM processed_events WHERE event_id::int %% 11 = %d", rng.IntN(11)))
				b.poll() // what came while a round ran is in the next
				m := b.ready(20)
				if !slices.Equal(m.Inexact, []Reason{ReasonNoTime}) {
					t.Errorf("reasons %v, want no_time", m.Inexact)
				}
				for _, s := range m.Series {
					if !s.Oldest.IsZero() || !s.Newest.IsZero() || s.Pruning || !s.PrunedTo.IsZero() {
						t.Errorf("an age where there is no time: %+v", s)
					}
				}
			}
			// The printed statement mends it.
			remedy := b.store.ledger.table.AddTime()
			if kind == "a view" {
				if remedy != "" {
					t.Errorf("a view cannot have %q", remedy)
				}
				return
			}
			b.exec(remedy)
			if _, err := b.conn.Exec(t.Context(), "CREATE INDEX ON processed_events (processed_at)"); err != nil {
				t.Fatal(err)
			}
			timed, err := New(Config{Config: b.store.cfg.Config, Columns: Columns{Group: "consumer", EventID: "event_id"}}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer timed.Close()
			for range 20 {
				if m, err := pollOnce(t, timed); err == nil && m.Ready {
					if len(m.Inexact) > 0 || m.Series[0].Oldest.IsZero() {
						t.Errorf("with a time: %v, %+v", m.Inexact, m.Series[0])
					}
					return
				}
			}
			t.Error("with a time: never ready")
		})
	}
	c := Config{Columns: without}
	c.Effect.Table = "ledger_entries"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "effect.table") {
		t.Errorf("effects without a time: %v", err)
	}
}
