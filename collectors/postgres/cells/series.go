package cells

import (
	"cmp"
	"slices"

	"oncewatch/collectors/handled"
)

// Key is what a count is kept for. Topic is empty where the table has no such
// column.
type Key struct{ Group, Topic string }

// Series is what is remembered of a consumer group × topic beside its cells.
type Series struct {
	Key Key
	// Inserted and Pruned count the markers seen to appear and to vanish.
	Inserted, Pruned int64
	Evidence         Evidence
	// PrunedTo is the time of the newest marker that was pruned; MinTime where
	// none was.
	PrunedTo int64
	// Handled is, by partition, which offsets have or had a marker.
	Handled map[int64]*handled.Offsets
}

// SeriesTable numbers the series, in the order in which they were first seen.
type SeriesTable struct {
	All []*Series
	ids map[Key]int32
}

// NewSeriesTable makes an empty table, or one of series that were kept.
func NewSeriesTable(all ...*Series) SeriesTable {
	t := SeriesTable{All: all, ids: map[Key]int32{}}
	for id, s := range all {
		t.ids[s.Key] = int32(id)
	}
	return t
}

// Intern is the number of a series, which is new where it was never seen.
func (t *SeriesTable) Intern(group, topic string) int32 {
	k := Key{group, topic}
	id, ok := t.ids[k]
	if !ok {
		id = int32(len(t.All))
		t.ids[k] = id
		t.All = append(t.All, &Series{Key: k, PrunedTo: MinTime})
	}
	return id
}

// At is the series of a number.
func (t *SeriesTable) At(id int32) *Series { return t.All[id] }

// Note adds changes to what was seen to come and go.
func (t *SeriesTable) Note(changes []Change) {
	for _, c := range changes {
		s := t.At(c.Series)
		switch d := c.After.Count - c.Before.Count; {
		case d > 0:
			s.Inserted += d
		case d < 0:
			s.Pruned -= d
		}
	}
}

// Prune learns from changes what was pruned: markers lost at the old end of
// their series. A deletion that leaves more than a few older markers behind is
// not pruning, nor is one that leaves none at all: a group that was retired, a
// table that was emptied, a first marker that was taken back. now is the time
// of the counts; watched says that the markers were there a moment before, so
// that it is known when they went.
func (t *SeriesTable) Prune(book *Book, changes []Change, now int64, watched bool) {
	losses := map[int32][]Change{}
	for _, c := range changes {
		if c.Lost() > 0 {
			losses[c.Series] = append(losses[c.Series], c)
		}
	}
	for series, lost := range losses {
		slices.SortStableFunc(lost, func(a, b Change) int { return cmp.Compare(a.Lo, b.Lo) })
		t.At(series).prune(book, series, lost, now, watched)
	}
	for _, s := range t.All {
		s.Evidence.age(now)
	}
}

// Evidence is what was seen of a pruner.
type Evidence struct {
	// Markers and Polls are how many were pruned, and at how many polls.
	Markers, Polls int64
	// Observed is the age, in microseconds, at which the last were, and At
	// when that was seen.
	Observed, At int64
}

// Pruning says whether it is a pruner's work: that comes again, or takes
// many. A single marker may have been taken back by a handler that failed.
func (e *Evidence) Pruning() bool { return e.Markers >= 10 || e.Polls >= 3 }

// A pruner that has not been seen for so long, and for more than what it
// keeps, is none any more.
const forget = 48 * Hour

func (e *Evidence) age(now int64) {
	if e.Polls > 0 && now-e.At > max(forget, e.Observed+e.Observed/4) {
		*e = Evidence{}
	}
}

// stragglers is the share of a series' markers that may be older than the
// pruned edge: a back-dated marker or two must not hide what is pruned.
const stragglers = 0.01

func (s *Series) prune(book *Book, series int32, lost []Change, now int64, watched bool) {
	rows, older, i := book.SeriesRows(series), int64(0), 0
	if rows == 0 {
		return
	}
	for _, c := range lost {
		rows += c.Lost()
	}
	seen := false
	for _, c := range lost {
		for ; i < len(book.Buckets) && book.Buckets[i].Hi <= c.Lo; i++ {
			older += book.Buckets[i].Of(series).Count
		}
		if older > int64(stragglers*float64(rows)) {
			break
		}
		newest, atEnd := newestLost(c)
		if !atEnd || Infinite(newest) {
			continue
		}
		if s.PrunedTo = max(s.PrunedTo, newest); !watched {
			continue
		}
		seen = true
		s.Evidence.Markers += c.Lost()
		s.Evidence.Observed, s.Evidence.At = now-newest, now
	}
	if seen {
		s.Evidence.Polls++
	}
}

// newestLost is the time of the newest marker that a span lost at its old end;
// false where what is left begins where it began.
func newestLost(c Change) (int64, bool) {
	switch {
	case c.After.Count == 0 || c.After.Max < c.Before.Max:
		return c.Before.Max, true
	case c.After.Min == c.Before.Min:
		return 0, false
	case c.Lost() == 1:
		return c.Before.Min, true
	}
	return c.After.Min, true
}
