package cells

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Handled is what the markers of one partition tell of its offsets.
type Handled struct {
	// From is the lowest offset of which a marker was ever seen. What lies
	// below was never handled, or its markers had gone before the first look:
	// nobody can say which.
	From int64
	// To is the highest offset of which a marker was ever seen.
	To int64
	// Gone are the markers that were seen to vanish and have not been written
	// again, by offset.
	Gone []Gone
}

// Gone is a number of markers that vanished from a range of offsets.
type Gone struct {
	First, Last int64
	// Markers is less than the range's width where offsets have no marker:
	// transactions' control records, aborted records, events seen before.
	Markers int64
	// Newest is the time of the newest of them, on the column's clock; zero
	// where that is an infinity.
	Newest time.Time
}

// Within is the number of the markers with lo <= offset < hi: exact where
// every offset had one, else by the share of the range.
func (g Gone) Within(lo, hi int64) int64 {
	lo, hi = max(lo, g.First), min(hi, g.Last+1)
	if lo >= hi {
		return 0
	}
	return share(g.Markers, hi-lo, g.Last-g.First+1)
}

// share is the part of n that falls on a part of a width.
func share(n, part, width int64) int64 {
	switch {
	case n == width: // one for each offset
		return part
	case part == width:
		return n
	}
	return int64(math.Round(float64(n) * float64(part) / float64(width)))
}

// maxGone bounds what is kept of one partition. Beyond it the lowest offsets
// are told less closely: those which the broker deletes first.
const maxGone = 256

// Partition is what is remembered of the offsets of one partition: Handled, with
// times as the ledger has them.
type Partition struct {
	From, To int64
	Gone     []Lost // by First; ranges with gaps may overlap
}

// Lost is Gone, with a time as the ledger has it.
type Lost struct {
	First, Last, Markers int64
	Newest               int64
}

// marks is a number of markers in a range of offsets of a partition.
type marks struct {
	partition      int64
	first, last, n int64
}

// Cells calls f for every cell with the start of its bucket, oldest first.
type Cells func(f func(lo int64, c *Cell))

// See notes which offsets have a marker now: at the first look, when all have
// been counted.
func (t *SeriesTable) See(each Cells) {
	each(func(_ int64, c *Cell) {
		for _, o := range c.Offsets {
			t.At(c.Series).saw(o.Partition, o.Min, o.Max)
		}
	})
}

// Forget forgets the offsets: of another table, what it lacks was not seen to
// vanish.
func (t *SeriesTable) Forget() {
	for _, s := range t.All {
		s.Handled = nil
	}
}

// Follow learns from changes which offsets have lost their markers and which
// have got one again. each walks over what is left after the changes.
func (t *SeriesTable) Follow(changes []Change, each Cells) {
	for _, c := range changes {
		s := t.At(c.Series)
		for _, m := range missing(c.After, c.Before) {
			s.saw(m.partition, m.first, m.last).restore(m.first, m.last, m.n)
		}
	}
	lost, any := make([]map[int64]*Partition, len(t.All)), false
	for _, c := range changes {
		for _, m := range missing(c.Before, c.After) {
			if lost[c.Series] == nil {
				lost[c.Series] = map[int64]*Partition{}
			}
			h := lost[c.Series][m.partition]
			if h == nil {
				h = &Partition{From: m.first}
				lost[c.Series][m.partition] = h
			}
			h.From = min(h.From, m.first)
			h.lose(Lost{m.first, m.last, m.n, c.Before.Max})
			any = true
		}
	}
	if !any {
		return
	}
	restoreWritten(lost, each)
	for series, partitions := range lost {
		for partition, h := range partitions {
			kept := t.All[series].saw(partition, h.From, h.From)
			for _, g := range h.Gone {
				kept.lose(g)
			}
		}
	}
}

// restoreWritten takes out of what was just lost the offsets that have a later
// marker: of a replay, or of a topic that was made anew under the same name.
func restoreWritten(lost []map[int64]*Partition, each Cells) {
	each(func(lo int64, c *Cell) {
		partitions := lost[c.Series]
		if partitions == nil {
			return
		}
		for _, o := range c.Offsets {
			h := partitions[o.Partition]
			if h == nil || len(h.Gone) == 0 || o.Min > h.Gone[len(h.Gone)-1].Last {
				continue
			}
			for _, m := range missing(*c, Cell{}) {
				if m.partition == o.Partition {
					h.restoreBefore(lo, m.first, m.last, m.n)
				}
			}
		}
	})
}

// missing is what a has and b, a later or earlier count of the same span, has
// not: offsets outside b's ranges, and of the others as many as were counted
// less. How many markers a range had is exact where every offset had one.
func missing(a, b Cell) []marks {
	var out []marks
	var width, both int64
	add := func(partition, first, last int64) {
		if first <= last {
			out = append(out, marks{partition, first, last, last - first + 1})
			width += last - first + 1
		}
	}
	more := false // b has offsets that a has not: the counts cannot be compared
	for _, x := range a.Offsets {
		i := slices.IndexFunc(b.Offsets, func(o Offsets) bool { return o.Partition == x.Partition })
		if i < 0 || b.Offsets[i].Min > x.Max || b.Offsets[i].Max < x.Min {
			add(x.Partition, x.Min, x.Max)
			more = more || i >= 0
			continue
		}
		y := b.Offsets[i]
		more = more || y.Min < x.Min || y.Max > x.Max
		add(x.Partition, x.Min, y.Min-1)
		add(x.Partition, y.Max+1, x.Max)
		both += min(x.Max, y.Max) - max(x.Min, y.Min) + 1
	}
	for _, y := range b.Offsets {
		more = more || !slices.ContainsFunc(a.Offsets, func(o Offsets) bool { return o.Partition == y.Partition })
	}
	n := a.Count - b.Count
	if more || n < 0 {
		return out
	}
	if n <= width {
		spread(out, n, width)
		return slices.DeleteFunc(out, func(m marks) bool { return m.n == 0 })
	}
	// The rest is missing from among those that are left.
	rest := min(n-width, both)
	var inner []marks
	for _, x := range a.Offsets {
		for _, y := range b.Offsets {
			if lo, hi := max(x.Min, y.Min), min(x.Max, y.Max); x.Partition == y.Partition && lo <= hi {
				inner = append(inner, marks{x.Partition, lo, hi, hi - lo + 1})
			}
		}
	}
	spread(inner, rest, both)
	return append(out, slices.DeleteFunc(inner, func(m marks) bool { return m.n == 0 })...)
}

// spread divides n among ranges by their width.
func spread(list []marks, n, width int64) {
	if n == width {
		return
	}
	var until, given int64
	for i, m := range list {
		until += m.n
		list[i].n = share(n, until, width) - given
		given += list[i].n
	}
}

// saw notes that offsets from first to last have or had a marker.
func (s *Series) saw(partition, first, last int64) *Partition {
	h := s.Handled[partition]
	if h == nil {
		if s.Handled == nil {
			s.Handled = map[int64]*Partition{}
		}
		h = &Partition{From: first, To: last}
		s.Handled[partition] = h
	}
	h.From, h.To = min(h.From, first), max(h.To, last)
	return h
}

// lose adds markers that have vanished.
func (h *Partition) lose(g Lost) {
	i, _ := slices.BinarySearchFunc(h.Gone, g.First, func(x Lost, first int64) int { return cmp.Compare(x.First, first) })
	h.Gone = slices.Insert(h.Gone, i, g)
	for _, j := range []int{i + 1, i} { // with the next, with the one before
		if j < 1 || j >= len(h.Gone) {
			continue
		}
		a, b := h.Gone[j-1], h.Gone[j]
		if a.dense() && b.dense() && a.Last+1 == b.First {
			h.join(j)
		}
	}
	if len(h.Gone) > maxGone {
		h.join(1)
	}
}

func (g Lost) dense() bool { return g.Markers == g.Last-g.First+1 }

// join makes one of a range and the one before it.
func (h *Partition) join(i int) {
	a, b := h.Gone[i-1], h.Gone[i]
	h.Gone[i-1] = Lost{a.First, max(a.Last, b.Last), a.Markers + b.Markers, max(a.Newest, b.Newest)}
	h.Gone = slices.Delete(h.Gone, i, i+1)
}

// restore takes out n markers that were written in a range of offsets.
func (h *Partition) restore(first, last, n int64) { h.restoreBefore(MaxTime, first, last, n) }

// restoreBefore does so for markers that had vanished with times before at. A
// replay goes upward, so where fewer were written than had vanished, it is
// the lower ones.
func (h *Partition) restoreBefore(at, first, last, n int64) {
	if len(h.Gone) == 0 {
		return
	}
	var left []Lost
	for _, g := range h.Gone {
		lo, hi := max(first, g.First), min(last, g.Last)
		if n <= 0 || lo > hi || g.Newest >= at && at != MaxTime {
			left = append(left, g)
			continue
		}
		width := g.Last - g.First + 1
		if !g.dense() && n >= g.Markers-max(2, g.Markers/100) && width-(hi-lo+1) <= max(8, width/100) {
			lo, hi = g.First, g.Last // the rest is gaps at its ends
		}
		in := share(g.Markers, hi-lo+1, width)
		if in > n {
			hi = lo + share(hi-lo+1, n, in) - 1
			in = n
		}
		n -= in
		below := Lost{g.First, lo - 1, 0, g.Newest}
		above := Lost{hi + 1, g.Last, 0, g.Newest}
		if below.First <= below.Last {
			below.Markers = min(share(g.Markers, lo-g.First, width), g.Markers-in)
		}
		if above.First <= above.Last {
			above.Markers = g.Markers - in - below.Markers
		}
		for _, piece := range []Lost{below, above} {
			if piece.Markers > 0 {
				left = append(left, piece)
			}
		}
	}
	slices.SortStableFunc(left, func(a, b Lost) int { return cmp.Compare(a.First, b.First) })
	h.Gone = left
}

// known copies what is known of a series' partitions.
func (s *Series) Known() map[int64]Handled {
	if len(s.Handled) == 0 {
		return nil
	}
	out := make(map[int64]Handled, len(s.Handled))
	for p, h := range s.Handled {
		now := Handled{From: h.From, To: h.To}
		for _, g := range h.Gone {
			now.Gone = append(now.Gone, Gone{First: g.First, Last: g.Last, Markers: g.Markers, Newest: Time(g.Newest)})
		}
		out[p] = now
	}
	return out
}

// Time is a time of the ledger as Go's, on the column's clock as if it were
// UTC; zero for an infinity, which has no age.
func Time(t int64) time.Time {
	if Infinite(t) {
		return time.Time{}
	}
	u := time.UnixMicro(t).UTC()
	if u.IsZero() { // .NET's DateTime.MinValue is a time like others, and no absence
		u = u.Add(time.Microsecond)
	}
	return u
}
