package postgres

import (
	"cmp"
	"context"
	"slices"

	"oncewatch/collectors/postgres/cells"
)

// Every consumer group and topic has an old end of its own, where a pruner
// takes its markers by a retention of its own. countEdges counts there again,
// upward until enough rows stand unchanged. What one snapshot has no time for
// is doubted.
func (l *ledger) countEdges(ctx context.Context, q *recounter) error {
	top := q.tailLo
	if l.backfill.active {
		top = min(top, l.backfill.next)
	}
	if err := l.dropPruned(ctx, q, top); err != nil {
		return err
	}
	edges := l.edges(top)
	// Many edges take turns; the tally of the server tells whether those that
	// wait have lost anything.
	l.edgesLeft = nil
	var rows int64
	for i, e := range edges {
		if rows += l.book.Rows(e.lo, e.hi); rows > l.t.edgeBudget && i > 0 {
			edges, l.edgesLeft = edges[:i], edges[i:]
			break
		}
	}
	return l.followAll(ctx, q, edges, top)
}

// followAll follows edges, and where a series has lost its oldest markers the
// end that it has then, which may lie far above.
func (l *ledger) followAll(ctx context.Context, q *recounter, edges []window, top int64) error {
	for len(edges) > 0 {
		changes := len(q.reading.changes)
		if err := l.followEdges(ctx, q, edges, top); err != nil {
			return err
		}
		if len(q.reading.changes) == changes || q.conn.spent() {
			return nil
		}
		seen := joinWindows(slices.Concat(q.followed, l.edgesLeft))
		edges = slices.DeleteFunc(joinWindows(l.oldEnds(top)), func(e window) bool {
			i, in := slices.BinarySearchFunc(seen, e.lo, func(w window, lo int64) int { return cmp.Compare(w.lo, lo) })
			return in || i > 0 && e.lo < seen[i-1].hi
		})
	}
	return nil
}

// edges are the old ends of all series, those first that had to wait last time.
func (l *ledger) edges(top int64) []window {
	edges := joinWindows(l.oldEnds(top))
	// Take turns.
	if i := slices.IndexFunc(edges, func(e window) bool { return e.lo >= l.edgeTurn }); i > 0 && l.edgeTurn != 0 {
		edges = append(slices.Clone(edges[i:]), edges[:i]...)
	}
	l.edgeTurn = 0
	return edges
}

// joinWindows sorts windows and joins those that meet.
func joinWindows(ws []window) []window {
	slices.SortFunc(ws, func(a, b window) int { return cmp.Compare(a.lo, b.lo) })
	var joined []window
	for _, w := range ws {
		if n := len(joined); n > 0 && w.lo <= joined[n-1].hi {
			joined[n-1].hi = max(joined[n-1].hi, w.hi)
			continue
		}
		joined = append(joined, w)
	}
	return joined
}

// oldEnds are where each series begins, with so many rows as to be sure.
func (l *ledger) oldEnds(top int64) []window {
	seen := make([]bool, len(l.series.All))
	var starts []int64
	for _, b := range l.book.Between(cells.MinTime, top) {
		if cells.Infinite(b.Lo) {
			continue
		}
		first := false
		for i := range b.Cells {
			if s := b.Cells[i].Series; !seen[s] {
				seen[s], first = true, true
			}
		}
		if first {
			starts = append(starts, b.Lo)
		}
	}
	if len(starts) == 0 {
		return nil
	}
	each := max(l.t.edgeRows/int64(len(starts)), min(l.t.edgeRows, 100))
	var edges []window
	for _, lo := range starts {
		want := each
		if len(edges) == 0 {
			want = max(each, l.t.edgeRows/2) // of most tables the only one
		}
		hi, _ := l.book.Reach(lo, top, want)
		edges = append(edges, window{lo, hi})
	}
	return edges
}

// maxRanges is how many ranges one statement counts.
const maxRanges = 50

// followEdges counts ranges again, and above each that has changed on, until
// enough rows stand unchanged.
func (l *ledger) followEdges(ctx context.Context, q *recounter, edges []window, top int64) error {
	want, climbing := l.t.edgeRows, 0 // so many of the edges go on upward
	for len(edges) > 0 {
		n, rows := 0, int64(0)
		for n < len(edges) && n < maxRanges && (n == 0 || rows < probeRows) {
			rows += l.book.Rows(edges[n].lo, edges[n].hi)
			n++
		}
		now := joinWindows(slices.Clone(edges[:n])) // those that climb may meet others
		counted, err := q.count.countRanges(ctx, q.conn, now, l.fine, q.series.Intern)
		if timedOut(err) {
			for i, w := range edges {
				if i < climbing {
					w.hi = top
				}
				l.suspects.doubt(w.lo, w.hi, ReasonCatchingUp, false, false)
			}
			q.reading.reasons[ReasonCatchingUp] = true
			return nil
		}
		if err != nil {
			return err
		}
		edges, q.followed = edges[n:], append(q.followed, now...)
		var again []window
		for _, w := range now {
			i := slices.IndexFunc(counted, func(b *cells.Bucket) bool { return b.Lo >= w.hi })
			if i < 0 {
				i = len(counted)
			}
			changes := l.apply(q.reading, w.lo, w.hi, counted[:i])
			counted = counted[i:]
			q.rows += l.book.Rows(w.lo, w.hi)
			if len(changes) > 0 && w.hi < top {
				end, _ := l.book.Reach(w.hi, top, want)
				again = append(again, window{w.hi, end})
			}
		}
		if len(again) > 0 {
			want = min(want*2, probeRows)
		}
		again = joinWindows(again)
		climbing = max(0, climbing-n) + len(again)
		edges = append(again, edges...)
	}
	return nil
}

// followRest counts the edges that had to wait, where the server tells of
// deletions that were not found at the others.
func (l *ledger) followRest(ctx context.Context, q *recounter) error {
	if len(l.edgesLeft) == 0 {
		return nil
	}
	top := q.tailLo
	if l.backfill.active {
		top = min(top, l.backfill.next)
	}
	left := l.edgesLeft
	l.edgeTurn, l.edgesLeft = left[0].lo, nil
	if q.reading.session.Standby || l.tally.explained() {
		return nil
	}
	return l.followAll(ctx, q, left, top)
}

// probeRows is how many rows a search for the oldest may pass: so many, where
// all of them were pruned and an old snapshot keeps their index entries.
const probeRows = 100_000

// dropPruned drops the buckets below the oldest row. It looks from the last
// known oldest row upward: below lie only dead index entries, and those may be
// many.
func (l *ledger) dropPruned(ctx context.Context, q *recounter, top int64) error {
	for {
		i := slices.IndexFunc(l.book.Buckets, func(b *cells.Bucket) bool { return !cells.Infinite(b.Lo) })
		if i < 0 || l.book.Buckets[i].Lo >= top {
			return nil
		}
		lo := l.book.Buckets[i].Lo
		hi, _ := l.book.Reach(lo, top, probeRows)
		oldest, found, err := l.count.first(ctx, q.conn, lo, hi)
		if timedOut(err) {
			l.suspects.doubt(lo, hi, ReasonCatchingUp, false, false)
			q.reading.reasons[ReasonCatchingUp] = true
			return nil
		}
		if err != nil {
			return err
		}
		start := hi
		if found {
			start, _ = l.book.Span(cells.Floor(oldest, l.fine), oldest+1)
		}
		if start > lo {
			l.apply(q.reading, lo, start, nil)
		}
		if found {
			return nil
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
	l.series.Prune(l.whole(), r.changes, r.inside.clock, !r.compares)
}

// whole is all cells; those counted page by page have no time.
func (l *ledger) whole() *cells.Book {
	if l.table.TimeIndex != "" {
		return &l.book
	}
	b := &cells.Book{}
	for _, pass := range l.pages.leaves {
		b.Buckets = append(b.Buckets, &cells.Bucket{Cells: pass.cells})
	}
	return b
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
