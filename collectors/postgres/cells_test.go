package postgres

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func of(lo, hi int64, cells ...cell) *bucket { return &bucket{lo: lo, hi: hi, cells: cells} }

func TestFloorAndCeil(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ t, width, floor, ceil int64 }{
		{0, 10, 0, 0}, {1, 10, 0, 10}, {9, 10, 0, 10}, {10, 10, 10, 10}, {-1, 10, -10, 0}, {-10, 10, -10, -10}, {-11, 10, -20, -10},
		{minTime, 10, minTime, minTime}, {maxTime, 10, maxTime - maxTime%10, maxTime},
	} {
		if f, e := floor(c.t, c.width), ceil(c.t, c.width); f != c.floor || e != c.ceil {
			t.Errorf("floor and ceil of %d by %d are %d and %d, want %d and %d", c.t, c.width, f, e, c.floor, c.ceil)
		}
	}
}

func TestReplaceTellsTheDifference(t *testing.T) {
	t.Parallel()
	var b book
	if got := b.replace(0, 100, []*bucket{of(0, 10, cell{series: 0, count: 5, min: 1, max: 8}), of(50, 60, cell{series: 1, count: 2, min: 50, max: 51})}); len(got) != 2 {
		t.Errorf("%+v, want two cells come", got)
	}
	if got := b.replace(0, 10, []*bucket{of(0, 10, cell{series: 0, count: 5, min: 1, max: 8})}); len(got) != 0 {
		t.Errorf("%+v, want nothing changed", got)
	}
	// Counted finer than before: compared at the coarser width.
	if got := b.replace(0, 10, []*bucket{of(0, 5, cell{series: 0, count: 2, min: 1, max: 2}), of(5, 10, cell{series: 0, count: 3, min: 6, max: 8})}); len(got) != 0 {
		t.Errorf("%+v, want nothing changed by a finer count", got)
	}
	got := b.replace(0, 10, []*bucket{of(5, 10, cell{series: 0, count: 3, min: 6, max: 8})})
	if len(got) != 1 || got[0].lost() != 2 || got[0].lo != 0 {
		t.Errorf("%+v, want two lost from the first bucket", got)
	}
	if got := b.replace(0, 100, nil); len(got) != 2 || len(b.buckets) != 0 {
		t.Errorf("%+v, %d buckets left: want all lost", got, len(b.buckets))
	}
}

func TestSpanAndBetween(t *testing.T) {
	t.Parallel()
	b := book{buckets: []*bucket{of(0, 10), of(20, 30), of(30, 40)}}
	for _, c := range []struct{ lo, hi, wantLo, wantHi, n int64 }{
		{5, 6, 0, 10, 1}, {10, 20, 10, 20, 0}, {12, 25, 12, 30, 1}, {0, 40, 0, 40, 3}, {29, 31, 20, 40, 2}, {40, 50, 40, 50, 0}, {minTime, maxTime, minTime, maxTime, 3},
	} {
		lo, hi := b.span(c.lo, c.hi)
		if n := len(b.between(c.lo, c.hi)); lo != c.wantLo || hi != c.wantHi || int64(n) != c.n {
			t.Errorf("span and buckets of %d..%d: %d..%d, %d, want %d..%d, %d", c.lo, c.hi, lo, hi, n, c.wantLo, c.wantHi, c.n)
		}
	}
}

// Whatever is replaced and coarsened, the book holds what a plain list of rows
// says, in order and without overlaps.
func TestBookAgainstAListOfRows(t *testing.T) {
	t.Parallel()
	type row struct {
		at, partition, offset int64
		series                int32
	}
	count := func(rows []row, lo, hi, width int64) []*bucket {
		by := map[int64]*bucket{}
		for _, r := range rows {
			if r.at < lo || r.at >= hi {
				continue
			}
			start := floor(r.at, width)
			if by[start] == nil {
				by[start] = of(start, start+width)
			}
			b := by[start]
			i, found := slices.BinarySearchFunc(b.cells, r.series, func(c cell, s int32) int { return int(c.series - s) })
			if !found {
				b.cells = slices.Insert(b.cells, i, cell{series: r.series, min: r.at, max: r.at})
			}
			c := &b.cells[i]
			c.count++
			c.min, c.max = min(c.min, r.at), max(c.max, r.at)
			c.offsets = addOffsets(c.offsets, offsets{r.partition, r.offset, r.offset, 1})
		}
		var out []*bucket
		for _, b := range by {
			out = append(out, b)
		}
		slices.SortFunc(out, func(a, b *bucket) int { return int(a.lo - b.lo) })
		return out
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var b book
		var rows []row
		var came, went int64
		for range 60 {
			switch rng.IntN(3) {
			case 0:
				for range rng.IntN(20) {
					rows = append(rows, row{rng.Int64N(960) - 200, rng.Int64N(3), rng.Int64N(1000), int32(rng.IntN(3))})
				}
			case 1:
				rows = slices.DeleteFunc(rows, func(row) bool { return rng.IntN(10) == 0 })
			case 2:
				lo := floor(rng.Int64N(960)-200, 80)
				b.coarsen(lo, lo+80*rng.Int64N(4), []int64{20, 40, 80}[rng.IntN(3)])
			}
			// All is counted again, in two parts of different widths.
			cut := floor(rng.Int64N(960)-200, 80)
			var changes []change
			for _, part := range []struct{ lo, hi int64 }{{-240, cut}, {cut, 800}} {
				changes = append(changes, b.replace(part.lo, part.hi, count(rows, part.lo, part.hi, []int64{10, 20, 40, 80}[rng.IntN(4)]))...)
			}
			for _, c := range changes {
				came += max(0, c.after.count-c.before.count)
				went += c.lost()
			}
			if came-went != int64(len(rows)) {
				t.Fatalf("seed %d: %d came and %d went, but there are %d rows", seed, came, went, len(rows))
			}
			var whole book
			whole.buckets = count(rows, -240, 800, 2000)
			newer := make([]int64, 3)
			for _, r := range rows {
				if r.at >= cut {
					newer[r.series]++
				}
			}
			if got := b.newer(cut, maxTime, 3); !slices.Equal(got, newer) {
				t.Fatalf("seed %d: %v rows from %d on, want %v", seed, got, cut, newer)
			}
			if got, want := b.totals(3), whole.totals(3); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: totals %v, want %v", seed, got, want)
			}
			if got, want := merge(b.buckets), merge(whole.buckets); len(rows) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: cells %v, want %v", seed, got, want)
			}
			for i := 1; i < len(b.buckets); i++ {
				if b.buckets[i].lo < b.buckets[i-1].hi {
					t.Fatalf("seed %d: buckets overlap at %d", seed, b.buckets[i].lo)
				}
			}
		}
	}
}

func TestTransactionsThatEnded(t *testing.T) {
	t.Parallel()
	at := func(clock int64, open map[string]int64, prepared ...string) *activity {
		a := &activity{clock: clock, open: open, prepared: map[string]int64{}}
		for _, id := range prepared {
			a.prepared[id] = clock
		}
		return a
	}
	o := &openTransactions{slack: 5}
	over, o := o.ended(at(100, map[string]int64{"a": 90, "b": 20}), at(101, map[string]int64{"b": 20}))
	if len(over) != 0 {
		t.Errorf("%v ended before anything was known", over)
	}
	// a ended between the two readings of the first poll: it is counted at the
	// next one again.
	over, o = o.ended(at(200, map[string]int64{"b": 20, "c": hidden}), at(201, map[string]int64{"b": 20, "c": hidden}))
	if !slices.Equal(over, []window{{90, 90}}) {
		t.Errorf("%v ended, want a", over)
	}
	// c, whose start is hidden, began after the first poll; b is prepared.
	over, o = o.ended(at(300, map[string]int64{}, "7"), at(301, map[string]int64{}, "7"))
	slices.SortFunc(over, func(x, y window) int { return int(x.lo - y.lo) })
	if !slices.Equal(over, []window{{20, 20}, {95, 200}}) {
		t.Errorf("%v ended, want b and c", over)
	}
	// What is prepared may be either of them, or one begun since.
	over, _ = o.ended(at(400, nil), at(401, nil))
	slices.SortFunc(over, func(x, y window) int { return int(x.lo - y.lo) })
	if !slices.Equal(over, []window{{20, 20}, {95, 200}, {195, 300}}) {
		t.Errorf("%v when the prepared transaction ended", over)
	}
}

func TestTallyOfTheServer(t *testing.T) {
	t.Parallel()
	var tally tally
	at := func(live, deleted int64) []leafStats { return []leafStats{{oid: 1, live: live, deleted: deleted}} }
	step := func(what string, stats []leafStats, inserted, pruned int64, want bool) {
		t.Helper()
		tally.inserted += inserted
		tally.pruned += pruned
		if got := tally.excess(stats); got != want {
			t.Errorf("%s: %t, want %t", what, got, want)
		}
	}
	step("first", at(1000, 50), 0, 0, false)
	step("late report", at(1000, 50), 100, 0, false)
	step("it comes", at(1100, 50), 0, 0, false)
	step("a prune that is seen", at(900, 250), 0, 200, false)
	step("rolled back: dead at once", at(900, 250), 0, 0, false)
	step("a deletion that is not seen", at(895, 255), 0, 0, true)
	step("found by the scrub", at(895, 255), 0, 5, false)
	step("an insert that is not seen", at(898, 255), 0, 0, true)
	step("found", at(898, 255), 3, 0, false)
	step("statistics reset", at(0, 0), 0, 0, false)
	step("after it", at(10, 0), 10, 0, false)
	step("analyzed: live is an estimate", []leafStats{{oid: 1, live: 5000, rewritten: 1}}, 0, 0, false)
	step("another leaf", append([]leafStats{{oid: 1, live: 5000, rewritten: 1}}, leafStats{oid: 2, live: 77}), 0, 0, false)
}
