package postgres

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

// handled is a partition's Handled as the ledger keeps it.
type handled struct {
	from, to int64
	gone     []gone // by first; ranges with gaps may overlap
}

type gone struct {
	first, last, markers int64
	newest               int64 // time
}

// marks is a number of markers in a range of offsets of a partition.
type marks struct {
	partition      int64
	first, last, n int64
}

// follow learns from a poll's changes which offsets have lost their markers
// and which have got one again.
func (l *ledger) follow(r *reading) {
	if l.series.handledOf != l.ident {
		// Another table: what it lacks was not seen to vanish.
		for _, s := range l.series.all {
			s.handled = nil
		}
		l.series.handledOf, l.series.handledAll = l.ident, false
	}
	if !l.series.handledAll && l.complete() {
		l.cells(func(_ int64, c *cell) {
			for _, o := range c.offsets {
				s := l.series.at(c.series)
				s.saw(o.partition, o.min, o.max)
			}
		})
		l.series.handledAll = true
	}
	for _, c := range r.changes {
		s := l.series.at(c.series)
		for _, m := range missing(c.after, c.before) {
			s.saw(m.partition, m.first, m.last).restore(m.first, m.last, m.n)
		}
	}
	lost, any := make([]map[int64]*handled, len(l.series.all)), false
	for _, c := range r.changes {
		for _, m := range missing(c.before, c.after) {
			if lost[c.series] == nil {
				lost[c.series] = map[int64]*handled{}
			}
			h := lost[c.series][m.partition]
			if h == nil {
				h = &handled{from: m.first}
				lost[c.series][m.partition] = h
			}
			h.from = min(h.from, m.first)
			h.lose(gone{m.first, m.last, m.n, c.before.max})
			any = true
		}
	}
	if !any {
		return
	}
	l.restoreWritten(lost)
	for series, partitions := range lost {
		for partition, h := range partitions {
			kept := l.series.all[series].saw(partition, h.from, h.from)
			for _, g := range h.gone {
				kept.lose(g)
			}
		}
	}
}

// restoreWritten takes out of what was just lost the offsets that have a later
// marker: of a replay, or of a topic that was made anew under the same name.
func (l *ledger) restoreWritten(lost []map[int64]*handled) {
	l.cells(func(lo int64, c *cell) {
		partitions := lost[c.series]
		if partitions == nil {
			return
		}
		for _, o := range c.offsets {
			h := partitions[o.partition]
			if h == nil || len(h.gone) == 0 || o.min > h.gone[len(h.gone)-1].last {
				continue
			}
			for _, m := range missing(*c, cell{}) {
				if m.partition == o.partition {
					h.restoreBefore(lo, m.first, m.last, m.n)
				}
			}
		}
	})
}

// cells calls f for every cell with the start of its bucket, oldest first.
func (l *ledger) cells(f func(lo int64, c *cell)) {
	for _, b := range l.book.buckets {
		for i := range b.cells {
			f(b.lo, &b.cells[i])
		}
	}
	for _, pass := range l.pages.leaves {
		for i := range pass.cells {
			f(minTime, &pass.cells[i]) // its time is not known
		}
	}
}

// missing is what a has and b, a later or earlier count of the same span, has
// not: offsets outside b's ranges, and of the others as many as were counted
// less. How many markers a range had is exact where every offset had one.
func missing(a, b cell) []marks {
	var out []marks
	var width, both int64
	add := func(partition, first, last int64) {
		if first <= last {
			out = append(out, marks{partition, first, last, last - first + 1})
			width += last - first + 1
		}
	}
	more := false // b has offsets that a has not: the counts cannot be compared
	for _, x := range a.offsets {
		i := slices.IndexFunc(b.offsets, func(o offsets) bool { return o.partition == x.partition })
		if i < 0 || b.offsets[i].min > x.max || b.offsets[i].max < x.min {
			add(x.partition, x.min, x.max)
			more = more || i >= 0
			continue
		}
		y := b.offsets[i]
		more = more || y.min < x.min || y.max > x.max
		add(x.partition, x.min, y.min-1)
		add(x.partition, y.max+1, x.max)
		both += min(x.max, y.max) - max(x.min, y.min) + 1
	}
	for _, y := range b.offsets {
		more = more || !slices.ContainsFunc(a.offsets, func(o offsets) bool { return o.partition == y.partition })
	}
	n := a.count - b.count
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
	for _, x := range a.offsets {
		for _, y := range b.offsets {
			if lo, hi := max(x.min, y.min), min(x.max, y.max); x.partition == y.partition && lo <= hi {
				inner = append(inner, marks{x.partition, lo, hi, hi - lo + 1})
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
func (s *series) saw(partition, first, last int64) *handled {
	h := s.handled[partition]
	if h == nil {
		if s.handled == nil {
			s.handled = map[int64]*handled{}
		}
		h = &handled{from: first, to: last}
		s.handled[partition] = h
	}
	h.from, h.to = min(h.from, first), max(h.to, last)
	return h
}

// lose adds markers that have vanished.
func (h *handled) lose(g gone) {
	i, _ := slices.BinarySearchFunc(h.gone, g.first, func(x gone, first int64) int { return cmp.Compare(x.first, first) })
	h.gone = slices.Insert(h.gone, i, g)
	for _, j := range []int{i + 1, i} { // with the next, with the one before
		if j < 1 || j >= len(h.gone) {
			continue
		}
		a, b := h.gone[j-1], h.gone[j]
		if a.dense() && b.dense() && a.last+1 == b.first {
			h.join(j)
		}
	}
	if len(h.gone) > maxGone {
		h.join(1)
	}
}

func (g gone) dense() bool { return g.markers == g.last-g.first+1 }

// join makes one of a range and the one before it.
func (h *handled) join(i int) {
	a, b := h.gone[i-1], h.gone[i]
	h.gone[i-1] = gone{a.first, max(a.last, b.last), a.markers + b.markers, max(a.newest, b.newest)}
	h.gone = slices.Delete(h.gone, i, i+1)
}

// restore takes out n markers that were written in a range of offsets.
func (h *handled) restore(first, last, n int64) { h.restoreBefore(maxTime, first, last, n) }

// restoreBefore does so for markers that had vanished with times before at. A
// replay goes upward, so where fewer were written than had vanished, it is
// the lower ones.
func (h *handled) restoreBefore(at, first, last, n int64) {
	if len(h.gone) == 0 {
		return
	}
	var left []gone
	for _, g := range h.gone {
		lo, hi := max(first, g.first), min(last, g.last)
		if n <= 0 || lo > hi || g.newest >= at && at != maxTime {
			left = append(left, g)
			continue
		}
		width := g.last - g.first + 1
		if !g.dense() && n >= g.markers-max(2, g.markers/100) && width-(hi-lo+1) <= max(8, width/100) {
			lo, hi = g.first, g.last // the rest is gaps at its ends
		}
		in := share(g.markers, hi-lo+1, width)
		if in > n {
			hi = lo + share(hi-lo+1, n, in) - 1
			in = n
		}
		n -= in
		below := gone{g.first, lo - 1, 0, g.newest}
		above := gone{hi + 1, g.last, 0, g.newest}
		if below.first <= below.last {
			below.markers = min(share(g.markers, lo-g.first, width), g.markers-in)
		}
		if above.first <= above.last {
			above.markers = g.markers - in - below.markers
		}
		for _, piece := range []gone{below, above} {
			if piece.markers > 0 {
				left = append(left, piece)
			}
		}
	}
	slices.SortStableFunc(left, func(a, b gone) int { return cmp.Compare(a.first, b.first) })
	h.gone = left
}

// known copies what is known of a series' partitions.
func (s *series) known() map[int64]Handled {
	if len(s.handled) == 0 {
		return nil
	}
	out := make(map[int64]Handled, len(s.handled))
	for p, h := range s.handled {
		now := Handled{From: h.from, To: h.to}
		for _, g := range h.gone {
			now.Gone = append(now.Gone, Gone{First: g.first, Last: g.last, Markers: g.markers, Newest: finite(g.newest)})
		}
		out[p] = now
	}
	return out
}
