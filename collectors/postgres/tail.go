package postgres

import (
	"context"
	"time"

	"oncewatch/collectors/postgres/cells"
)

// countTail counts what lies at or after the last poll's clock, less slack: all
// that transactions wrote which began since then. It is open towards the
// future, so rows with a future time are in it at every poll, unless they are
// many or nobody knows yet how many they are.
func (l *ledger) countTail(ctx context.Context, q *recounter) error {
	r := q.reading
	first := l.clock == 0
	from, behind := l.tailFrom, l.behind(r)
	if first {
		from = cells.Floor(behind, l.fine)
		l.hotFrom = cells.Floor(from, l.width)
		from, _ = l.book.Span(from, from+1) // of what was kept
		l.backfill.begin(cells.MinTime, from, !l.compares)
		l.farFrom = cells.MinTime
	} else if elapsed := q.conn.began.Sub(l.clockRead).Microseconds(); r.inside.clock < l.clock+elapsed-cells.Second {
		// The clock jumped back: rows since then carry times from before the
		// last poll.
		from = min(from, cells.Floor(behind-elapsed, l.fine))
	}
	if behind-from > max(l.t.gap, 2*l.fine) || l.tailTooLong {
		// Too much for one statement: what lies between is backfilled.
		to := max(from, cells.Floor(behind, l.fine))
		if l.backfill.active {
			from = min(from, l.backfill.next)
		}
		l.hotFrom = cells.Floor(to, l.width)
		l.backfill.begin(cells.Floor(from, l.width), to, l.backfill.active && l.backfill.initial && !l.backfill.ahead())
		from = to
	}
	until := int64(cells.MaxTime)
	if ahead := cells.Floor(r.before.clock+l.t.future, l.fine); ahead > from {
		many := l.book.Rows(ahead, cells.MaxTime) > l.t.futureRows
		if many {
			r.reasons[ReasonFuture] = true
		}
		if many || l.farFrom < cells.MaxTime {
			until = ahead
		}
	}
	q.tailLo, q.tailHi = l.book.Span(from, until)
	if _, err := q.replace(ctx, q.tailLo, min(q.tailHi, l.farFrom), l.fine); err != nil {
		l.tailTooLong = timedOut(err)
		return err
	}
	l.tailTooLong = false
	far := max(q.tailLo, l.farFrom)
	if far > q.tailLo {
		q.conn.budget = l.t.budget // the future can wait
	}
	if far < q.tailHi {
		counted, err := l.count.count(ctx, q.conn, far, q.tailHi, l.fine, l.series.Intern)
		switch {
		case timedOut(err) && far > q.tailLo:
			q.tailHi = far
			r.reasons[ReasonFuture] = true
		case err != nil:
			return err
		case l.compares:
			l.apply(r, far, q.tailHi, counted)
		default:
			l.book.Replace(far, q.tailHi, counted) // it was there before we came
		}
		l.farFrom = q.tailHi
		if l.backfill.ahead() {
			l.backfill.next = l.farFrom
		}
	}
	l.tailOpen = q.tailHi == cells.MaxTime
	q.conn.budget = l.t.budget
	return nil
}

// behind is the time before which no new row can appear unseen: before it, the
// open transactions tell where.
func (l *ledger) behind(r *reading) int64 {
	if r.session.Standby {
		return min(r.before.clock, r.before.replayed) - l.t.standbySlack
	}
	return r.before.clock - l.t.slack
}

// advance moves the tail after a poll that has counted everything: what it
// leaves behind becomes coarse.
func (l *ledger) advance(r *reading) {
	l.clock, l.clockRead = r.inside.clock, time.Now()
	l.tailFrom = cells.Floor(l.behind(r), l.fine)
	if !l.backfill.active { // whose end may lie within a coarse bucket
		hot := cells.Floor(l.tailFrom, l.width)
		l.book.Coarsen(l.hotFrom, hot, l.width)
		l.hotFrom = hot
	}
	l.bound()
}

// bound makes buckets wider until the book fits the memory it may have.
func (l *ledger) bound() {
	for l.book.Size() > l.store.cfg.MaxCells && l.width < 24*cells.Hour {
		l.fine, l.width = l.fine*2, l.width*2
		l.hotFrom = cells.Floor(l.hotFrom, l.width)
		l.backfill.widen(l.width)
		if l.farFrom < cells.MaxTime {
			l.farFrom = cells.Floor(l.farFrom, l.width)
		}
		l.book.Coarsen(cells.MinTime, l.hotFrom, l.width)
		l.book.Coarsen(l.hotFrom, cells.MaxTime, l.fine)
		l.store.log.Warn("the ledger's memory is at its bound: its buckets become coarser", "postgres.max-cells", l.store.cfg.MaxCells, "width", time.Duration(l.width)*time.Microsecond)
	}
}
