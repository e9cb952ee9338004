package cells

import (
	"time"

	"oncewatch/collectors/handled"
)

// Cells calls f for every cell with the start of its bucket, oldest first.
type Cells func(f func(lo int64, c *Cell))

// See notes which offsets have a marker now, when all have been counted: at the
// first look, and at the first after a start from what was kept.
func (t *SeriesTable) See(each Cells) {
	for _, s := range t.All {
		for _, h := range s.Handled {
			h.Again()
		}
	}
	each(func(_ int64, c *Cell) {
		s := t.At(c.Series)
		for _, o := range c.Offsets {
			s.partition(o.Partition).Present(o.count())
		}
	})
	for _, s := range t.All {
		for _, h := range s.Handled {
			h.Looks()
		}
	}
}

// Forget forgets the offsets: of another table, what it lacks was not seen to
// vanish.
func (t *SeriesTable) Forget() {
	for _, s := range t.All {
		s.Handled = nil
	}
}

// lossKey is a partition of a series.
type lossKey struct {
	series    int32
	partition int64
}

// Follow learns from changes which offsets have lost their markers and which
// have got one again. each walks over what is left after the changes.
func (t *SeriesTable) Follow(changes []Change, each Cells) {
	type writtenRange struct {
		key lossKey
		lo  int64
		handled.Range
	}
	var written []writtenRange
	lost := map[lossKey]*handled.Offsets{}
	for _, c := range changes {
		s := t.At(c.Series)
		byPartition(c, func(partition int64, before, after handled.Count) {
			key := lossKey{c.Series, partition}
			gone, came := handled.Diff(before, after)
			for _, r := range came {
				s.partition(partition).Wrote(r)
				written = append(written, writtenRange{key, c.Lo, r})
			}
			for _, r := range gone {
				if r.Newest = c.Before.Max; Infinite(r.Newest) {
					r.Newest = handled.NoTime
				}
				if lost[key] == nil {
					lost[key] = handled.New()
				}
				lost[key].Lose(r)
			}
		})
	}
	if len(lost) == 0 {
		return
	}
	// Some of what was lost may be there all the same: written again or moved
	// in time since the last look, or of a topic that was made anew under the
	// same name, whose offsets have markers of both.
	for _, w := range written {
		if l := lost[w.key]; l != nil {
			l.WroteAfter(w.Range, w.lo)
		}
	}
	each(func(lo int64, c *Cell) {
		for _, o := range c.Offsets {
			l := lost[lossKey{c.Series, o.Partition}]
			if l != nil && len(l.Gone) > 0 && o.Min <= l.To && o.Max >= l.From && o.count().Full() {
				l.WroteAfter(o.count().All(), lo)
			}
		}
	})
	for key, l := range lost {
		kept := t.At(key.series).partition(key.partition)
		for _, r := range l.Gone {
			kept.Lose(r)
		}
	}
}

// byPartition calls f for every partition of a change.
func byPartition(c Change, f func(partition int64, before, after handled.Count)) {
	a, b := c.Before.Offsets, c.After.Offsets
	for len(a) > 0 || len(b) > 0 {
		var before, after handled.Count
		var partition int64
		if len(b) == 0 || len(a) > 0 && a[0].Partition <= b[0].Partition {
			partition = a[0].Partition
		} else {
			partition = b[0].Partition
		}
		if len(a) > 0 && a[0].Partition == partition {
			before, a = a[0].count(), a[1:]
		}
		if len(b) > 0 && b[0].Partition == partition {
			after, b = b[0].count(), b[1:]
		}
		f(partition, before, after)
	}
}

func (o Offsets) count() handled.Count { return handled.Count{Min: o.Min, Max: o.Max, N: o.N} }

// partition is what is known of a partition, new where nothing was.
func (s *Series) partition(id int64) *handled.Offsets {
	h := s.Handled[id]
	if h == nil {
		if s.Handled == nil {
			s.Handled = map[int64]*handled.Offsets{}
		}
		h = handled.New()
		s.Handled[id] = h
	}
	return h
}

// Known is what is known of a series' partitions now; it does not change.
func (s *Series) Known() map[int64]handled.Offsets {
	if len(s.Handled) == 0 {
		return nil
	}
	out := make(map[int64]handled.Offsets, len(s.Handled))
	for p, h := range s.Handled {
		out[p] = h.Snapshot()
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
