package postgres

import (
	"math"
	"slices"
	"sort"
)

// Times in the ledger are microseconds since 1970 as the column holds them:
// UTC for timestamptz, the column's own wall clock for timestamp. ±infinity
// are the two ends.
const (
	minTime = math.MinInt64
	maxTime = math.MaxInt64

	second = int64(1_000_000)
	minute = 60 * second
	hour   = 60 * minute
)

// cell is what one bucket holds of one series.
type cell struct {
	series   int32
	count    int64
	min, max int64 // times
	offsets  []offsets
}

// offsets is the range of offsets of one partition in a cell, and how many
// markers are in it.
type offsets struct {
	partition int64
	min, max  int64
	n         int64
}

// bucket is the cells of the rows with lo <= time < hi. A bucket without rows
// does not exist.
type bucket struct {
	lo, hi int64
	cells  []cell // by series
}

func (b *bucket) rows() (n int64) {
	for _, c := range b.cells {
		n += c.count
	}
	return n
}

// book is all buckets in order, never overlapping. Their widths differ: fine
// where rows come and go, coarse where nothing happens.
type book struct {
	buckets []*bucket
}

// change is what a recount found different in one series over one span.
type change struct {
	lo            int64 // where the span begins
	series        int32
	before, after cell // count 0: none
}

// lost is the number of markers that vanished.
func (c change) lost() int64 { return max(0, c.before.count-c.after.count) }

// from is the index of the first bucket that ends after t.
func (b *book) from(t int64) int {
	return sort.Search(len(b.buckets), func(i int) bool { return b.buckets[i].hi > t })
}

// until is the index behind the last bucket that begins before t.
func (b *book) until(t int64) int {
	return sort.Search(len(b.buckets), func(i int) bool { return b.buckets[i].lo >= t })
}

// span widens a range to the borders of the buckets it cuts: a bucket can only
// be replaced whole.
func (b *book) span(lo, hi int64) (int64, int64) {
	i, j := b.from(lo), b.until(hi)
	if i < j {
		lo, hi = min(lo, b.buckets[i].lo), max(hi, b.buckets[j-1].hi)
	}
	return lo, hi
}

// between returns the buckets of a range.
func (b *book) between(lo, hi int64) []*bucket {
	i, j := b.from(lo), b.until(hi)
	if i >= j {
		return nil
	}
	return b.buckets[i:j]
}

// rows is the number of rows known in a range.
func (b *book) rows(lo, hi int64) (n int64) {
	for _, x := range b.between(lo, hi) {
		n += x.rows()
	}
	return n
}

// reach is the end of the first bucket from lo upward below which at least the
// wanted number of rows lies, or top, and that number.
func (b *book) reach(lo, top, want int64) (end, rows int64) {
	for _, x := range b.between(lo, top) {
		if rows += x.rows(); rows >= want {
			return min(x.hi, top), rows
		}
	}
	return top, rows
}

// replace puts the counts of a range in the place of those the book had, and
// tells the difference, oldest first. The range must not cut a bucket.
func (b *book) replace(lo, hi int64, counted []*bucket) []change {
	i, j := b.from(lo), b.until(hi)
	j = max(i, j)
	changes := diff(b.buckets[i:j], counted)
	b.buckets = slices.Replace(b.buckets, i, j, counted...)
	return changes
}

// diff compares two counts of one range at the coarser of their widths.
func diff(before, after []*bucket) []change {
	var changes []change
	for len(before) > 0 || len(after) > 0 {
		// The next span: buckets of both sides that hang together.
		lo, hi := int64(maxTime), int64(maxTime)
		if len(before) > 0 {
			lo, hi = before[0].lo, before[0].hi
		}
		if len(after) > 0 && (len(before) == 0 || after[0].lo < lo) {
			lo, hi = after[0].lo, after[0].hi
		}
		i, j := 0, 0
		for {
			for i < len(before) && before[i].lo < hi {
				hi = max(hi, before[i].hi)
				i++
			}
			if j < len(after) && after[j].lo < hi {
				hi = max(hi, after[j].hi)
				j++
				continue
			}
			break
		}
		changes = append(changes, diffSpan(lo, merge(before[:i]), merge(after[:j]))...)
		before, after = before[i:], after[j:]
	}
	return changes
}

func diffSpan(lo int64, before, after []cell) []change {
	var changes []change
	for len(before) > 0 || len(after) > 0 {
		c := change{lo: lo, series: math.MaxInt32}
		if len(before) > 0 {
			c.series = before[0].series
		}
		if len(after) > 0 {
			c.series = min(c.series, after[0].series)
		}
		if len(before) > 0 && before[0].series == c.series {
			c.before, before = before[0], before[1:]
		}
		if len(after) > 0 && after[0].series == c.series {
			c.after, after = after[0], after[1:]
		}
		if !same(c.before, c.after) {
			changes = append(changes, c)
		}
	}
	return changes
}

func same(a, b cell) bool {
	return a.count == b.count && a.min == b.min && a.max == b.max && slices.Equal(a.offsets, b.offsets)
}

// merge adds the cells of several buckets up, by series.
func merge(buckets []*bucket) []cell {
	switch len(buckets) {
	case 0:
		return nil
	case 1:
		return buckets[0].cells
	}
	sum := map[int32]*cell{}
	for _, b := range buckets {
		for _, c := range b.cells {
			s := sum[c.series]
			if s == nil {
				c.offsets = slices.Clone(c.offsets)
				sum[c.series] = &c
				continue
			}
			s.count += c.count
			s.min, s.max = min(s.min, c.min), max(s.max, c.max)
			for _, o := range c.offsets {
				s.offsets = addOffsets(s.offsets, o)
			}
		}
	}
	cells := make([]cell, 0, len(sum))
	for _, c := range sum {
		cells = append(cells, *c)
	}
	slices.SortFunc(cells, func(a, b cell) int { return int(a.series) - int(b.series) })
	return cells
}

func addOffsets(list []offsets, o offsets) []offsets {
	i := sort.Search(len(list), func(i int) bool { return list[i].partition >= o.partition })
	if i < len(list) && list[i].partition == o.partition {
		list[i].min, list[i].max = min(list[i].min, o.min), max(list[i].max, o.max)
		list[i].n += o.n
		return list
	}
	return slices.Insert(list, i, o)
}

// coarsen merges the buckets of a range into buckets of the given width.
// Buckets that are as wide already stay.
func (b *book) coarsen(lo, hi, width int64) {
	i, j := b.from(lo), b.until(hi)
	if i >= j {
		return
	}
	var merged []*bucket
	for k := i; k < j; {
		x := b.buckets[k]
		if x.hi-x.lo >= width || infinite(x.lo) {
			merged = append(merged, x)
			k++
			continue
		}
		start := floor(x.lo, width)
		n := k + 1
		for n < j && b.buckets[n].hi <= start+width {
			n++
		}
		merged = append(merged, &bucket{lo: start, hi: start + width, cells: merge(b.buckets[k:n])})
		k = n
	}
	b.buckets = slices.Replace(b.buckets, i, j, merged...)
}

// size is the number of cells and offset ranges held.
func (b *book) size() (n int) {
	for _, x := range b.buckets {
		n += len(x.cells)
		for _, c := range x.cells {
			n += len(c.offsets)
		}
	}
	return n
}

// bytes estimates the memory of the book.
func (b *book) bytes() (n int) {
	const bucketBytes, cellBytes, offsetsBytes = 64, 56, 32
	for _, x := range b.buckets {
		n += bucketBytes + cellBytes*cap(x.cells)
		for _, c := range x.cells {
			n += offsetsBytes * cap(c.offsets)
		}
	}
	return n
}

// total is what the book says of a series.
type total struct {
	count          int64
	oldest, newest int64 // minTime and maxTime where there are no rows
}

// totals adds every series up.
func (b *book) totals(series int) []total {
	sums := make([]total, series)
	for _, x := range b.buckets {
		for i := range x.cells {
			c := &x.cells[i]
			t := &sums[c.series]
			if t.count == 0 {
				t.oldest, t.newest = c.min, c.max
			}
			t.count += c.count
			t.oldest, t.newest = min(t.oldest, c.min), max(t.newest, c.max)
		}
	}
	return sums
}

// newer counts each series' rows from one time up to another, by whole buckets.
func (b *book) newer(lo, hi int64, series int) []int64 {
	counts := make([]int64, series)
	for _, x := range b.between(lo, hi) {
		for i := range x.cells {
			counts[x.cells[i].series] += x.cells[i].count
		}
	}
	return counts
}

// floor is the start of the bucket of the given width that holds t.
func floor(t, width int64) int64 {
	m := t % width
	if m < 0 {
		m += width
	}
	if t < minTime+width {
		return minTime
	}
	return t - m
}

// infinite says whether t is one of the column's infinities.
func infinite(t int64) bool { return t == minTime || t >= maxTime-1 }
