package postgres

import (
	"context"
	"slices"

	"oncewatch/collectors/postgres/cells"
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
		end, rows := l.book.Reach(start, top, want)
		if q.spent() {
			l.edgeFrom = max(start, resume)
			q.reading.reasons[ReasonCatchingUp] = true
			return nil
		}
		start, _ = l.book.Span(start, end)
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
		i := slices.IndexFunc(l.book.Buckets, func(b *cells.Bucket) bool { return !cells.Infinite(b.Lo) })
		if i < 0 || l.book.Buckets[i].Lo >= top {
			return top, nil
		}
		lo := l.book.Buckets[i].Lo
		hi, _ := l.book.Reach(lo, top, probeRows)
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
			start, _ = l.book.Span(cells.Floor(oldest, l.fine), oldest+1)
		}
		if start > lo {
			l.apply(q.reading, lo, start, nil)
		}
		if found {
			return start, nil
		}
	}
}

// observe learns from a poll's changes what was pruned and which offsets have
// lost their markers.
func (l *ledger) observe(r *reading) {
	if l.handledOf != l.ident {
		l.series.Forget()
		l.handledOf, l.handledAll = l.ident, false
	}
	l.series.Follow(r.changes, l.each)
	if !l.handledAll && l.complete() {
		l.series.See(l.each)
		l.handledAll = true
	}
	if r.compares {
		return // nobody saw when it was pruned
	}
	l.series.Prune(&l.book, r.changes, r.inside.clock)
}

// each calls f for every cell with the start of its bucket, oldest first.
func (l *ledger) each(f func(lo int64, c *cells.Cell)) {
	l.book.Each(f)
	for _, pass := range l.pages.leaves {
		for i := range pass.cells {
			f(cells.MinTime, &pass.cells[i]) // its time is not known
		}
	}
}
