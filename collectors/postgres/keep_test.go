package postgres

import (
	"bytes"
	"encoding/gob"
	"testing"
	"time"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/postgres/cells"
)

// An exporter that is started again with what its predecessor kept finds what
// came and what vanished while nobody looked, offset by offset.
func TestAStartWithWhatWasKeptIsAComparison(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.mark("g", "t", 0, 0, 4999, 3*time.Hour)
	b.mark("g", "t", 1, 0, 999, time.Hour)
	b.insert("g", "future", 5, -time.Hour)
	b.pollExact()
	b.exec(`DELETE FROM processed_events WHERE partition = 0 AND "offset" < 100 AND topic = 't'`)
	observed := b.pollExact().find("g", "t").ObservedRetention

	var file bytes.Buffer
	if err := gob.NewEncoder(&file).Encode(b.store.Keep()); err != nil {
		t.Fatal(err)
	}
	b.exec(`DELETE FROM processed_events WHERE partition = 0 AND "offset" < 250 AND topic = 't'`)
	b.exec(`DELETE FROM processed_events WHERE partition = 1 AND "offset" <= 20 AND topic = 't'`)
	b.insert("g", "future", 2, -2*time.Hour)
	b.insert("g", "late", 7, 2*time.Hour)
	b.insert("g", "new", 3, 0)

	var kept cells.Kept
	if err := gob.NewDecoder(&file).Decode(&kept); err != nil {
		t.Fatal(err)
	}
	b.store = newStore(t, Config{Config: dbconn.To(b.dsn)})
	b.store.Restore(&kept, func(reason string) { t.Errorf("refused: %s", reason) })
	m := b.pollExact()
	h := m.find("g", "t").Handled
	if g := h[0].Gone; len(g) != 1 || g[0].First != 0 || g[0].Last != 249 || g[0].Least != 250 || g[0].Most != 250 {
		t.Errorf("partition 0: %+v gone, want the offsets 0 to 249", g)
	}
	if g := h[1].Gone; len(g) != 1 || g[0].First != 0 || g[0].Last != 20 || g[0].Least != 21 || g[0].Most != 21 {
		t.Errorf("partition 1: %+v gone, want the offsets 0 to 20", g)
	}
	for topic, want := range map[string]int64{"future": 2, "late": 7, "new": 3} {
		if s := m.find("g", topic); s.Inserted != want {
			t.Errorf("topic %s: %+v, want %d inserted", topic, s, want)
		}
	}
	if s := m.find("g", "t"); s.Pruned != 271 || s.ObservedRetention != observed {
		t.Errorf("%+v, want 271 pruned in all, and the observed retention of before, %s: nobody saw when it was pruned", s, observed)
	}
	b.pollExact()
}

func TestWhatWasKeptOfAnotherTableIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.mark("g", "t", 0, 0, 99, time.Hour)
	b.pollExact()
	kept := b.store.Keep()
	b.exec("DROP TABLE processed_events")
	b.exec(runbookDDL)
	b.store = newStore(t, Config{Config: dbconn.To(b.dsn)})
	refused := ""
	b.store.Restore(kept, func(reason string) { refused = reason })
	if m := b.pollExact(); refused == "" || m.find("g", "t").Pruned != 0 {
		t.Errorf("refused %q, %+v: want a first look", refused, m.find("g", "t"))
	}
}
