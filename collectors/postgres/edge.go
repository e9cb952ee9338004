package postgres

import (
	"cmp"
	"context"
	"slices"
)

// countEdge follows the pruner: it finds the oldest row from the last known
// one upward (below lie only dead index entries, which would be walked again
// at every poll while an old snapshot keeps them), drops the buckets before
// it, and counts upward until enough rows stand unchanged.
func (l *ledger) countEdge(ctx context.Context, q *recounter) error {
	top := q.tailLo
	if l.backfill.active {
		top = min(top, l.backfill.next)
	}
	i := slices.IndexFunc(l.book.buckets, func(b *bucket) bool { return !infinite(b.lo) })
	if i < 0 || l.book.buckets[i].lo >= top {
		return nil
	}
	lo := l.book.buckets[i].lo
	oldest, found, err := l.count.first(ctx, q.conn, lo, maxTime)
	if err != nil {
		return err
	}
	start := top
	if found && oldest < top {
		start, _ = l.book.span(floor(oldest, l.fine), oldest+1)
	}
	if start > lo {
		l.apply(q.reading, lo, start, nil)
	}
	unchanged := int64(0)
	for step := 1; start < top && unchanged < l.t.edgeRows; step++ {
		known := l.book.between(start, top)
		if len(known) == 0 {
			return nil
		}
		known = known[:min(step, len(known))]
		end := min(known[len(known)-1].hi, top)
		rows := l.book.rows(start, end)
		changes, err := q.replace(ctx, start, end, l.fine)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			unchanged += rows
			step = 0
		} else {
			unchanged = 0
		}
		start = end
		if q.spent() && unchanged == 0 {
			q.reading.reasons[ReasonCatchingUp] = true
			l.scrub.hurry()
			return nil
		}
	}
	return nil
}

// observe learns from a poll's changes what was pruned: markers lost at the
// old end of their series. A deletion that leaves more than a few older
// markers behind is not pruning.
func (l *ledger) observe(r *reading) {
	l.follow(r)
	losses := map[int32][]change{}
	for _, c := range r.changes {
		if c.lost() > 0 {
			losses[c.series] = append(losses[c.series], c)
		}
	}
	for series, lost := range losses {
		slices.SortStableFunc(lost, func(a, b change) int { return cmp.Compare(a.lo, b.lo) })
		l.observeSeries(r, series, lost)
	}
}

// stragglers is the share of a series' markers that may be older than the
// pruned edge: a back-dated marker or two must not hide what is pruned.
const stragglers = 0.01

func (l *ledger) observeSeries(r *reading, series int32, lost []change) {
	s := l.series.at(series)
	rows, older, i := l.book.seriesRows(series), int64(0), 0
	for _, c := range lost {
		rows += c.lost()
	}
	for _, c := range lost {
		for ; i < len(l.book.buckets) && l.book.buckets[i].hi <= c.lo; i++ {
			older += l.book.buckets[i].of(series).count
		}
		if older > int64(stragglers*float64(rows)) {
			return
		}
		newest, atEnd := newestLost(c)
		if !atEnd {
			continue
		}
		clock := l.clock
		if r.inside != nil {
			clock = r.inside.clock
		}
		s.observed, s.hasObserved = clock-newest, true
		s.pruneOffsets(c, newest)
	}
}

// newestLost is the time of the newest marker that a span lost at its old end;
// false where what is left begins where it began.
func newestLost(c change) (int64, bool) {
	switch {
	case c.after.count == 0 || c.after.max < c.before.max:
		return c.before.max, true
	case c.after.min == c.before.min:
		return 0, false
	case c.lost() == 1:
		return c.before.min, true
	}
	return c.after.min, true
}

// of is a bucket's cell of a series; its count is 0 where it has none.
func (b *bucket) of(series int32) cell {
	i, ok := slices.BinarySearchFunc(b.cells, series, func(c cell, s int32) int { return cmp.Compare(c.series, s) })
	if !ok {
		return cell{}
	}
	return b.cells[i]
}

func (b *book) seriesRows(series int32) (n int64) {
	for _, x := range b.buckets {
		n += x.of(series).count
	}
	return n
}
