package cells

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func of(lo, hi int64, cells ...Cell) *Bucket { return &Bucket{Lo: lo, Hi: hi, Cells: cells} }

func TestFloorAndCeil(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ t, width, Floor, Ceil int64 }{
		{0, 10, 0, 0}, {1, 10, 0, 10}, {9, 10, 0, 10}, {10, 10, 10, 10}, {-1, 10, -10, 0}, {-10, 10, -10, -10}, {-11, 10, -20, -10},
		{MinTime, 10, MinTime, MinTime}, {MaxTime, 10, MaxTime - MaxTime%10, MaxTime},
	} {
		if f, e := Floor(c.t, c.width), Ceil(c.t, c.width); f != c.Floor || e != c.Ceil {
			t.Errorf("Floor and Ceil of %d by %d are %d and %d, want %d and %d", c.t, c.width, f, e, c.Floor, c.Ceil)
		}
	}
}

func TestReplaceTellsTheDifference(t *testing.T) {
	t.Parallel()
	var b Book
	if got := b.Replace(0, 100, []*Bucket{of(0, 10, Cell{Series: 0, Count: 5, Min: 1, Max: 8}), of(50, 60, Cell{Series: 1, Count: 2, Min: 50, Max: 51})}); len(got) != 2 {
		t.Errorf("%+v, want two cells come", got)
	}
	if got := b.Replace(0, 10, []*Bucket{of(0, 10, Cell{Series: 0, Count: 5, Min: 1, Max: 8})}); len(got) != 0 {
		t.Errorf("%+v, want nothing changed", got)
	}
	// Counted finer than before: compared at the coarser width.
	if got := b.Replace(0, 10, []*Bucket{of(0, 5, Cell{Series: 0, Count: 2, Min: 1, Max: 2}), of(5, 10, Cell{Series: 0, Count: 3, Min: 6, Max: 8})}); len(got) != 0 {
		t.Errorf("%+v, want nothing changed by a finer count", got)
	}
	got := b.Replace(0, 10, []*Bucket{of(5, 10, Cell{Series: 0, Count: 3, Min: 6, Max: 8})})
	if len(got) != 1 || got[0].Lost() != 2 || got[0].Lo != 0 {
		t.Errorf("%+v, want two lost from the first Bucket", got)
	}
	if got := b.Replace(0, 100, nil); len(got) != 2 || len(b.Buckets) != 0 {
		t.Errorf("%+v, %d buckets left: want all lost", got, len(b.Buckets))
	}
}

func TestSpanAndBetween(t *testing.T) {
	t.Parallel()
	b := Book{Buckets: []*Bucket{of(0, 10), of(20, 30), of(30, 40)}}
	for _, c := range []struct{ lo, hi, wantLo, wantHi, n int64 }{
		{5, 6, 0, 10, 1}, {10, 20, 10, 20, 0}, {12, 25, 12, 30, 1}, {0, 40, 0, 40, 3}, {29, 31, 20, 40, 2}, {40, 50, 40, 50, 0}, {MinTime, MaxTime, MinTime, MaxTime, 3},
	} {
		lo, hi := b.Span(c.lo, c.hi)
		if n := len(b.Between(c.lo, c.hi)); lo != c.wantLo || hi != c.wantHi || int64(n) != c.n {
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
	count := func(rows []row, lo, hi, width int64) []*Bucket {
		by := map[int64]*Bucket{}
		for _, r := range rows {
			if r.at < lo || r.at >= hi {
				continue
			}
			start := Floor(r.at, width)
			if by[start] == nil {
				by[start] = of(start, start+width)
			}
			b := by[start]
			i, found := slices.BinarySearchFunc(b.Cells, r.series, func(c Cell, s int32) int { return int(c.Series - s) })
			if !found {
				b.Cells = slices.Insert(b.Cells, i, Cell{Series: r.series, Min: r.at, Max: r.at})
			}
			c := &b.Cells[i]
			c.Count++
			c.Min, c.Max = min(c.Min, r.at), max(c.Max, r.at)
			c.Offsets = AddOffsets(c.Offsets, Offsets{r.partition, r.offset, r.offset, 1})
		}
		var out []*Bucket
		for _, b := range by {
			out = append(out, b)
		}
		slices.SortFunc(out, func(a, b *Bucket) int { return int(a.Lo - b.Lo) })
		return out
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var b Book
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
				lo := Floor(rng.Int64N(960)-200, 80)
				b.Coarsen(lo, lo+80*rng.Int64N(4), []int64{20, 40, 80}[rng.IntN(3)])
			}
			// All is counted again, in two parts of different widths.
			cut := Floor(rng.Int64N(960)-200, 80)
			var changes []Change
			for _, part := range []struct{ lo, hi int64 }{{-240, cut}, {cut, 800}} {
				changes = append(changes, b.Replace(part.lo, part.hi, count(rows, part.lo, part.hi, []int64{10, 20, 40, 80}[rng.IntN(4)]))...)
			}
			for _, c := range changes {
				came += max(0, c.After.Count-c.Before.Count)
				went += c.Lost()
			}
			if came-went != int64(len(rows)) {
				t.Fatalf("seed %d: %d came and %d went, but there are %d rows", seed, came, went, len(rows))
			}
			var whole Book
			whole.Buckets = count(rows, -240, 800, 2000)
			newer := make([]int64, 3)
			for _, r := range rows {
				if r.at >= cut {
					newer[r.series]++
				}
			}
			if got := b.Newer(cut, MaxTime, 3); !slices.Equal(got, newer) {
				t.Fatalf("seed %d: %v rows from %d on, want %v", seed, got, cut, newer)
			}
			if got, want := b.Totals(3), whole.Totals(3); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: totals %v, want %v", seed, got, want)
			}
			if got, want := Merge(b.Buckets), Merge(whole.Buckets); len(rows) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: cells %v, want %v", seed, got, want)
			}
			for i := 1; i < len(b.Buckets); i++ {
				if b.Buckets[i].Lo < b.Buckets[i-1].Hi {
					t.Fatalf("seed %d: buckets overlap at %d", seed, b.Buckets[i].Lo)
				}
			}
		}
	}
}
