package postgres

import (
	"cmp"
	"context"
	"slices"
)

// countEdge follows the pruner: it finds the oldest row from the last known
// one upward, drops the buckets before it, and counts upward until enough rows
// stand unchanged. What one snapshot has no time for, the next goes on with.
func (l *ledger) countEdge(ctx context.Context, q *recounter) error {
	top := q.tailLo
	if l.backfill.active {
		top = min(top, l.backfill.next)
	}
	start, err := l.dropPruned(ctx, q, top)
	if err != nil {
		return err
	}
	unchanged, resume := int64(0), l.edgeFrom
	l.edgeFrom = 0
	for want := l.t.edgeRows; start < top; {
		if unchanged >= l.t.edgeRows {
			if resume <= start {
				return nil
			}
			start, resume, unchanged, want = resume, 0, 0, l.t.edgeRows
		}
		end, rows := l.book.reach(start, top, want)
		if q.spent() {
			l.edgeFrom = max(start, resume)
			q.reading.reasons[ReasonCatchingUp] = true
			return nil
		}
		start, _ = l.book.span(start, end)
		changes, err := q.replace(ctx, start, end, l.fine)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			unchanged += rows
		} else {
			unchanged, want = 0, min(want*2, probeRows)
		}
		start = end
	}
	return nil
}

// probeRows is how many rows a search for the oldest may pass: so many, where
// all of them were pruned and an old snapshot keeps their index entries.
const probeRows = 100_000

// dropPruned drops the buckets below the oldest row and returns where that
// one's begins. It looks from the last known oldest row upward: below lie only
// dead index entries, and those may be many.
func (l *ledger) dropPruned(ctx context.Context, q *recounter, top int64) (int64, error) {
	for {
		i := slices.IndexFunc(l.book.buckets, func(b *bucket) bool { return !infinite(b.lo) })
		if i < 0 || l.book.buckets[i].lo >= top {
			return top, nil
		}
		lo := l.book.buckets[i].lo
		hi, _ := l.book.reach(lo, top, probeRows)
		if q.spent() {
			q.reading.reasons[ReasonCatchingUp] = true
			return top, nil
		}
		oldest, found, err := l.count.first(ctx, q.conn, lo, hi)
		if err != nil {
			return 0, err
		}
		start := hi
		if found {
			start, _ = l.book.span(floor(oldest, l.fine), oldest+1)
		}
		if start > lo {
			l.apply(q.reading, lo, start, nil)
		}
		if found {
			return start, nil
		}
	}
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
		if !atEnd || infinite(newest) {
			continue
		}
		s.observed, s.hasObserved = r.inside.clock-newest, true
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
