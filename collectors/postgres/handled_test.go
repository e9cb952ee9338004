package postgres

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/postgres/cells"
)

// goneTruth asks PostgreSQL which offsets of a series had a marker (all of
// them are in the table shadow too) and have none now, by partition.
func (b *bench) goneTruth(group, topic string) map[int64][]int64 {
	b.Helper()
	rows, err := b.conn.Query(context.Background(), `SELECT DISTINCT partition::bigint, "offset" FROM shadow s
	  WHERE consumer_group = $1 AND topic = $2 AND NOT EXISTS (SELECT FROM processed_events p
	    WHERE p.consumer_group = s.consumer_group AND p.topic = s.topic AND p.partition = s.partition AND p."offset" = s."offset")
	  ORDER BY 1, 2`, group, topic)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	out := map[int64][]int64{}
	for rows.Next() {
		var p, o int64
		if err := rows.Scan(&p, &o); err != nil {
			b.Fatal(err)
		}
		out[p] = append(out[p], o)
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return out
}

// checkGone compares what the ledger says is gone with the truth, above every
// offset.
func (b *bench) checkGone(m *Markers, group, topic string) {
	b.Helper()
	truth := b.goneTruth(group, topic)
	handled := m.find(group, topic).Handled
	for p := range handled {
		if truth[p] == nil {
			truth[p] = nil
		}
	}
	for p, want := range truth {
		got := handled[p]
		for _, lo := range append([]int64{0}, want...) {
			least, most := goneFrom(got, lo)
			i, _ := slices.BinarySearch(want, lo)
			if n := int64(len(want) - i); least != n || most != n {
				b.Errorf("%s/%s partition %d: %d to %d gone from offset %d on, want %d: %+v", group, topic, p, least, most, lo, n, got.Gone)
				break
			}
		}
	}
}

// goneFrom is how many markers are gone at least and at most from an offset on.
func goneFrom(h Handled, lo int64) (least, most int64) {
	for _, g := range h.Gone {
		l, m := g.Within(lo, cells.MaxTime)
		least, most = least+l, most+m
	}
	return least, most
}

const shadowDDL = `CREATE TABLE shadow AS TABLE processed_events WITH NO DATA;
CREATE INDEX ON processed_events (consumer_group, topic, partition, "offset");
CREATE FUNCTION shadow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO shadow SELECT NEW.*; RETURN NULL; END';
CREATE TRIGGER shadow AFTER INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION shadow()`

// mark writes markers for the offsets lo to hi of a partition, a second apart,
// the first at the given age.
func (b *bench) mark(group, topic string, partition, lo, hi int, age time.Duration) {
	b.Helper()
	b.exec(`INSERT INTO processed_events SELECT $1, $2 || o || '-' || $7::int, $3, $4, o, now() - $6::int * interval '1 second' + (o - $5) * interval '1 second'
	  FROM generate_series($5::int, $8::int) o`, group, fmt.Sprintf("%s-%d-", topic, partition), topic, partition, lo, int(age.Seconds()), b.ids, hi)
	b.ids++
}

// case: which records of a partition a replay would apply twice.
func TestHandledOffsets(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL, shadowDDL)
	// Two partitions, unequal, and another group and topic beside.
	b.mark("g", "t", 0, 1000, 4999, 9000*time.Second)
	b.mark("g", "t", 1, 0, 999, 9000*time.Second)
	b.mark("g", "other", 0, 0, 99, 9000*time.Second)
	b.mark("h", "t", 0, 0, 99, 9000*time.Second)
	m := b.pollExact()
	b.checkGone(m, "g", "t")
	if h := m.find("g", "t").Handled; h[0].From != 1000 || h[0].To != 4999 || h[1].From != 0 || h[1].To != 999 || len(h) != 2 {
		t.Errorf("%+v, want partition 0 from 1000 to 4999 and 1 from 0 to 999", h)
	}

	step := func(what, sql string, args ...any) *Markers {
		t.Helper()
		if sql != "" {
			b.exec(sql, args...)
		}
		m := b.pollExact()
		for _, s := range m.Series {
			b.checkGone(m, s.Group, s.Topic)
		}
		if t.Failed() {
			t.Fatalf("after: %s", what)
		}
		return m
	}
	step("nothing", "")
	step("a prune", `DELETE FROM processed_events WHERE consumer_group = 'g' AND topic = 't' AND "offset" < 2000`)
	step("a prune of the other group", "DELETE FROM processed_events WHERE consumer_group = 'h'")
	m = step("a deletion in the middle", `DELETE FROM processed_events WHERE consumer_group = 'g' AND topic = 't' AND "offset" BETWEEN 3000 AND 3199`)
	if got := m.find("g", "t").Handled[0].Gone; len(got) != 2 {
		t.Errorf("%+v, want two ranges", got)
	}
	// The group is set back to the start: what is gone is written again, upward.
	b.mark("g", "t", 0, 1000, 1499, 1600*time.Second)
	step("half of a replay", "")
	b.mark("g", "t", 0, 1500, 1999, 1050*time.Second)
	b.mark("g", "t", 1, 0, 999, 1050*time.Second)
	step("a replay, but for the middle", "")
	b.mark("g", "t", 0, 3000, 3199, 250*time.Second)
	m = step("the middle too", "")
	if got := m.find("g", "t").Handled[0]; len(got.Gone) != 0 || got.From != 1000 {
		t.Errorf("%+v, want nothing gone from 1000 on", got)
	}
	step("a prune of what was not replayed", "DELETE FROM processed_events WHERE processed_at < now() - interval '4000 seconds'")
	step("everything", "TRUNCATE processed_events")
	b.mark("g", "t", 0, 5000, 5099, 0)
	m = step("new markers", "")
	if got := m.find("g", "t").Handled[0]; got.To != 5099 {
		t.Errorf("%+v, want the newest at 5099", got)
	}

	// Another table in its place: what it lacks was not seen to vanish.
	b.exec("ALTER TABLE processed_events RENAME TO before; " + runbookDDL[:len(runbookDDL)-len("CREATE INDEX processed_events_processed_at ON processed_events (processed_at)")] +
		"CREATE INDEX ON processed_events (processed_at); TRUNCATE shadow")
	b.mark("g", "t", 0, 7000, 7009, 0)
	m = b.poll()
	if got := m.find("g", "t").Handled; len(got) != 1 || got[0].From != 7000 || got[0].To != 7009 || len(got[0].Gone) != 0 {
		t.Errorf("%+v after another table took the place, want 7000 on and nothing gone", got)
	}
}

// A topic that was made anew under its name: the old one's markers vanish while
// the new one's stand at the same offsets.
func TestHandledOffsetsOfARecreatedTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.mark("g", "t", 0, 0, 1999, 5000*time.Second)
	b.mark("g", "t", 0, 0, 499, 600*time.Second)
	b.pollExact()
	b.exec("DELETE FROM processed_events WHERE processed_at < now() - interval '1000 seconds'")
	want := []handled.Range{{First: 500, Last: 1999, Least: 1500, Most: 1500}}
	got := b.pollExact().find("g", "t").Handled[0].Gone
	for i := range got {
		got[i].Newest = 0
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Offsets without a marker, as transactions' control records: the number of
// markers is told, not of offsets, and a replay takes all of it back.
func TestHandledOffsetsWithGaps(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	insert := func(age int) {
		b.exec(`INSERT INTO processed_events SELECT 'g', 'e' || o, 't', 0, o, now() - $1::int * interval '1 second' + o * interval '0.5 seconds'
		  FROM generate_series(0, 3999) o WHERE o % 4 <> 3`, age)
	}
	insert(5000)
	b.pollExact()
	b.exec(`DELETE FROM processed_events WHERE "offset" < 3000`)
	h := b.pollExact().find("g", "t").Handled[0]
	for _, lo := range []int64{0, 500, 1111, 2999} {
		var want int64
		for o := lo; o < 3000; o++ {
			if o%4 != 3 {
				want++
			}
		}
		// A bucket of a minute has 90 markers: so much may be off where lo cuts one.
		if least, most := goneFrom(h, lo); least > want || most < want || most-least > 90 {
			t.Errorf("%d to %d gone from %d on, want %d", least, most, lo, want)
		}
	}
	if least, most := goneFrom(h, 0); least != 2250 || most != 2250 {
		t.Errorf("%d to %d gone, want 2250", least, most)
	}
	b.exec(`INSERT INTO processed_events SELECT 'g', 'e' || o || '-again', 't', 0, o, now() FROM generate_series(0, 2999) o WHERE o % 4 <> 3`)
	h = b.pollExact().find("g", "t").Handled[0]
	if least, most := goneFrom(h, 0); least != 0 || most > 750+90 {
		t.Errorf("%d to %d gone after all were written again, want none, or as many as there are gaps: %+v", least, most, h.Gone)
	}
}
