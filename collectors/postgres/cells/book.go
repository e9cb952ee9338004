package cells

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// Times in the ledger are microseconds since 1970 as the column holds them:
// UTC for timestamptz, the column's own wall clock for timestamp. ±infinity
// are the two ends.
const (
	MinTime = math.MinInt64
	MaxTime = math.MaxInt64

	Second = int64(1_000_000)
	Minute = 60 * Second
	Hour   = 60 * Minute
)

// Cell is what one bucket holds of one series.
type Cell struct {
	Series   int32
	Count    int64
	Min, Max int64 // times
	Offsets  []Offsets
}

// Offsets is the range of offsets of one partition in a cell, and how many
// markers are in it.
type Offsets struct {
	Partition int64
	Min, Max  int64
	N         int64
}

// Bucket is the cells of the rows with lo <= time < hi. A bucket without rows
// does not exist.
type Bucket struct {
	Lo, Hi int64
	Cells  []Cell // by series
}

func (b *Bucket) Rows() (n int64) {
	for _, c := range b.Cells {
		n += c.Count
	}
	return n
}

// Book is all buckets in order, never overlapping. Their widths differ: fine
// where rows come and go, coarse where nothing happens.
type Book struct {
	Buckets []*Bucket
}

// Change is what a recount found different in one series over one span.
type Change struct {
	Lo            int64 // where the span begins
	Series        int32
	Before, After Cell // count 0: none
}

// Lost is the number of markers that vanished.
func (c Change) Lost() int64 { return max(0, c.Before.Count-c.After.Count) }

// from is the index of the first bucket that ends after t.
func (b *Book) from(t int64) int {
	return sort.Search(len(b.Buckets), func(i int) bool { return b.Buckets[i].Hi > t })
}

// until is the index behind the last bucket that begins before t.
func (b *Book) until(t int64) int {
	return sort.Search(len(b.Buckets), func(i int) bool { return b.Buckets[i].Lo >= t })
}

// Span widens a range to the borders of the buckets it cuts: a bucket can only
// be replaced whole.
func (b *Book) Span(lo, hi int64) (int64, int64) {
	i, j := b.from(lo), b.until(hi)
	if i < j {
		lo, hi = min(lo, b.Buckets[i].Lo), max(hi, b.Buckets[j-1].Hi)
	}
	return lo, hi
}

// Between returns the buckets of a range.
func (b *Book) Between(lo, hi int64) []*Bucket {
	i, j := b.from(lo), b.until(hi)
	if i >= j {
		return nil
	}
	return b.Buckets[i:j]
}

// Rows is the number of rows known in a range.
func (b *Book) Rows(lo, hi int64) (n int64) {
	for _, x := range b.Between(lo, hi) {
		n += x.Rows()
	}
	return n
}

// Reach is the end of the first bucket from lo upward below which at least the
// wanted number of rows lies, or top, and that number.
func (b *Book) Reach(lo, top, want int64) (end, rows int64) {
	for _, x := range b.Between(lo, top) {
		if rows += x.Rows(); rows >= want {
			return min(x.Hi, top), rows
		}
	}
	return top, rows
}

// Replace puts the counts of a range in the place of those the book had, and
// tells the difference, oldest first. The range must not cut a bucket.
func (b *Book) Replace(lo, hi int64, counted []*Bucket) []Change {
	i, j := b.from(lo), b.until(hi)
	j = max(i, j)
	changes := diff(b.Buckets[i:j], counted)
	b.Buckets = slices.Replace(b.Buckets, i, j, counted...)
	return changes
}

// diff compares two counts of one range at the coarser of their widths.
func diff(before, after []*Bucket) []Change {
	var changes []Change
	for len(before) > 0 || len(after) > 0 {
		// The next span: buckets of both sides that hang together.
		lo, hi := int64(MaxTime), int64(MaxTime)
		if len(before) > 0 {
			lo, hi = before[0].Lo, before[0].Hi
		}
		if len(after) > 0 && (len(before) == 0 || after[0].Lo < lo) {
			lo, hi = after[0].Lo, after[0].Hi
		}
		i, j := 0, 0
		for {
			for i < len(before) && before[i].Lo < hi {
				hi = max(hi, before[i].Hi)
				i++
			}
			if j < len(after) && after[j].Lo < hi {
				hi = max(hi, after[j].Hi)
				j++
				continue
			}
			break
		}
		changes = append(changes, DiffCells(lo, Merge(before[:i]), Merge(after[:j]))...)
		before, after = before[i:], after[j:]
	}
	return changes
}

func DiffCells(lo int64, before, after []Cell) []Change {
	var changes []Change
	for len(before) > 0 || len(after) > 0 {
		c := Change{Lo: lo, Series: math.MaxInt32}
		if len(before) > 0 {
			c.Series = before[0].Series
		}
		if len(after) > 0 {
			c.Series = min(c.Series, after[0].Series)
		}
		if len(before) > 0 && before[0].Series == c.Series {
			c.Before, before = before[0], before[1:]
		}
		if len(after) > 0 && after[0].Series == c.Series {
			c.After, after = after[0], after[1:]
		}
		if !same(c.Before, c.After) {
			changes = append(changes, c)
		}
	}
	return changes
}

func same(a, b Cell) bool {
	return a.Count == b.Count && a.Min == b.Min && a.Max == b.Max && slices.Equal(a.Offsets, b.Offsets)
}

// Merge adds the cells of several buckets up, by series.
func Merge(buckets []*Bucket) []Cell {
	switch len(buckets) {
	case 0:
		return nil
	case 1:
		return buckets[0].Cells
	}
	sum := map[int32]*Cell{}
	for _, b := range buckets {
		for _, c := range b.Cells {
			s := sum[c.Series]
			if s == nil {
				c.Offsets = slices.Clone(c.Offsets)
				sum[c.Series] = &c
				continue
			}
			s.Count += c.Count
			s.Min, s.Max = min(s.Min, c.Min), max(s.Max, c.Max)
			for _, o := range c.Offsets {
				s.Offsets = AddOffsets(s.Offsets, o)
			}
		}
	}
	cells := make([]Cell, 0, len(sum))
	for _, c := range sum {
		cells = append(cells, *c)
	}
	slices.SortFunc(cells, func(a, b Cell) int { return int(a.Series) - int(b.Series) })
	return cells
}

func AddOffsets(list []Offsets, o Offsets) []Offsets {
	i := sort.Search(len(list), func(i int) bool { return list[i].Partition >= o.Partition })
	if i < len(list) && list[i].Partition == o.Partition {
		list[i].Min, list[i].Max = min(list[i].Min, o.Min), max(list[i].Max, o.Max)
		list[i].N += o.N
		return list
	}
	return slices.Insert(list, i, o)
}

// Coarsen merges the buckets of a range into buckets of the given width.
// Buckets that are as wide already stay.
func (b *Book) Coarsen(lo, hi, width int64) {
	i, j := b.from(lo), b.until(hi)
	if i >= j {
		return
	}
	var merged []*Bucket
	for k := i; k < j; {
		x := b.Buckets[k]
		if x.Hi-x.Lo >= width || Infinite(x.Lo) {
			merged = append(merged, x)
			k++
			continue
		}
		start := Floor(x.Lo, width)
		n := k + 1
		for n < j && b.Buckets[n].Hi <= start+width {
			n++
		}
		merged = append(merged, &Bucket{Lo: start, Hi: start + width, Cells: Merge(b.Buckets[k:n])})
		k = n
	}
	b.Buckets = slices.Replace(b.Buckets, i, j, merged...)
}

// Size is the number of cells and offset ranges held.
func (b *Book) Size() (n int) {
	for _, x := range b.Buckets {
		n += len(x.Cells)
		for _, c := range x.Cells {
			n += len(c.Offsets)
		}
	}
	return n
}

// Bytes estimates the memory of the book.
func (b *Book) Bytes() (n int) {
	const bucketBytes, cellBytes, offsetsBytes = 64, 56, 32
	for _, x := range b.Buckets {
		n += bucketBytes + cellBytes*cap(x.Cells)
		for _, c := range x.Cells {
			n += offsetsBytes * cap(c.Offsets)
		}
	}
	return n
}

// Total is what the book says of a series.
type Total struct {
	Count          int64
	Oldest, Newest int64 // minTime and maxTime where there are no rows
}

// Totals adds every series up.
func (b *Book) Totals(series int) []Total {
	sums := make([]Total, series)
	for _, x := range b.Buckets {
		for i := range x.Cells {
			c := &x.Cells[i]
			t := &sums[c.Series]
			if t.Count == 0 {
				t.Oldest, t.Newest = c.Min, c.Max
			}
			t.Count += c.Count
			t.Oldest, t.Newest = min(t.Oldest, c.Min), max(t.Newest, c.Max)
		}
	}
	return sums
}

// Newer counts each series' rows from one time up to another, by whole buckets.
func (b *Book) Newer(lo, hi int64, series int) []int64 {
	counts := make([]int64, series)
	for _, x := range b.Between(lo, hi) {
		for i := range x.Cells {
			counts[x.Cells[i].Series] += x.Cells[i].Count
		}
	}
	return counts
}

// Floor is the start of the bucket of the given width that holds t.
func Floor(t, width int64) int64 {
	m := t % width
	if m < 0 {
		m += width
	}
	if t < MinTime+width {
		return MinTime
	}
	return t - m
}

// Infinite says whether t is one of the column's infinities.
func Infinite(t int64) bool { return t == MinTime || t >= MaxTime-1 }

// Ceil is the end of the bucket of the given width that ends at t or holds it.
func Ceil(t, width int64) int64 {
	f := Floor(t, width)
	switch {
	case f == t:
		return t
	case f > MaxTime-width:
		return MaxTime
	}
	return f + width
}

// Of is a bucket's cell of a series; its count is 0 where it has none.
func (b *Bucket) Of(series int32) Cell {
	i, ok := slices.BinarySearchFunc(b.Cells, series, func(c Cell, s int32) int { return cmp.Compare(c.Series, s) })
	if !ok {
		return Cell{}
	}
	return b.Cells[i]
}

// SeriesRows is the number of rows of one series.
func (b *Book) SeriesRows(series int32) (n int64) {
	for _, x := range b.Buckets {
		n += x.Of(series).Count
	}
	return n
}

// Each calls f for every cell with the start of its bucket, oldest first.
func (b *Book) Each(f func(lo int64, c *Cell)) {
	for _, x := range b.Buckets {
		for i := range x.Cells {
			f(x.Lo, &x.Cells[i])
		}
	}
}
