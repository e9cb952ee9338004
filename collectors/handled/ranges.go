// Package handled keeps which offsets of a partition have a marker, had one, or
// have never shown one. It is fed with counts: so many markers in a span of
// time, from this offset to that. Where counts do not tell which offsets they
// are, a range has two numbers, and the truth lies between them.
//
//	ranges.go   offsets of which at least and at most so many are meant
//	diff.go     what two counts of one span tell
//	offsets.go  what is known of a partition
//
// It rests on two rules. A marker stands for one offset and an offset has one
// marker; and between two counts of one span of time its markers either come or
// go, unless their first and last offsets show that both happened.
package handled

import (
	"cmp"
	"math"
	"slices"
)

// NoTime is the time of markers that have none: an infinity of the column.
const NoTime = math.MaxInt64

// Range is the offsets First to Last, of which at least Least and at most Most
// are meant.
type Range struct {
	First, Last int64
	Least, Most int64
	// Newest is the time of the newest marker, in microseconds on the column's
	// clock; NoTime where it has none.
	Newest int64
}

func (r Range) width() int64 { return r.Last - r.First + 1 }

// full says that every offset of the range is meant.
func (r Range) full() bool { return r.Least >= r.width() }

// Within is how many of the offsets with lo <= offset < hi are meant.
func (r Range) Within(lo, hi int64) (least, most int64) {
	first, last := max(lo, r.First), min(hi-1, r.Last)
	if first > last {
		return 0, 0
	}
	in := Range{First: first, Last: last}.width()
	return max(0, r.Least-(r.width()-in)), min(r.Most, in)
}

// cut is the part of a range between two offsets.
func (r Range) cut(first, last int64) (part Range, ok bool) {
	first, last = max(first, r.First), min(last, r.Last)
	if first > last {
		return Range{}, false
	}
	part = Range{First: first, Last: last, Newest: r.Newest}
	in := part.width()
	part.Least, part.Most = max(0, r.Least-(r.width()-in)), min(r.Most, in)
	return part, part.Most > 0
}

// join is a range that holds two.
func join(a, b Range) Range {
	r := Range{First: min(a.First, b.First), Last: max(a.Last, b.Last), Least: a.Least + b.Least, Newest: max(a.Newest, b.Newest)}
	r.Most = min(a.Most+b.Most, r.width())
	r.Least = min(r.Least, r.Most)
	return r
}

// insert puts a range in its place by First, and joins it with full neighbours.
func insert(list []Range, r Range) []Range {
	i, _ := slices.BinarySearchFunc(list, r.First, func(x Range, first int64) int { return cmp.Compare(x.First, first) })
	list = slices.Insert(list, i, r)
	for _, j := range []int{i + 1, i} { // with the next, with the one before
		if j < 1 || j >= len(list) {
			continue
		}
		if a, b := list[j-1], list[j]; a.full() && b.full() && a.Last+1 == b.First {
			list[j-1] = join(a, b)
			list = slices.Delete(list, j, j+1)
		}
	}
	return list
}

// bound joins neighbours until no more than n are left, those first where it
// blurs least.
func bound(list []Range, n int) []Range {
	for len(list) > n {
		best, cost := 1, int64(math.MaxInt64)
		for i := 1; i < len(list); i++ {
			j := join(list[i-1], list[i])
			if c := j.width() - j.Most; c < cost {
				best, cost = i, c
			}
		}
		list[best-1] = join(list[best-1], list[best])
		list = slices.Delete(list, best, best+1)
	}
	return list
}
