package postgres

import (
	"context"
	"time"
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
		from = floor(behind, l.fine)
		l.hotFrom = floor(from, l.width)
		l.backfill.begin(minTime, from, true)
		l.farFrom = minTime
	} else if elapsed := q.began.Sub(l.clockRead).Microseconds(); r.inside.clock < l.clock+elapsed-second {
		// The clock jumped back: rows since then carry times from before the
		// last poll.
		from = min(from, floor(behind-elapsed, l.fine))
	}
	if behind-from > max(l.t.gap, 2*l.fine) || l.tailTooLong {
		// Too much for one statement: what lies between is backfilled.
		to := max(from, floor(behind, l.fine))
		if l.backfill.active {
			from = min(from, l.backfill.next)
		}
		l.hotFrom = floor(to, l.width)
		l.backfill.begin(floor(from, l.width), to, l.backfill.active && l.backfill.initial && !l.backfill.ahead())
		from = to
	}
	until := int64(maxTime)
	if ahead := floor(r.before.clock+l.t.future, l.fine); ahead > from {
		many := l.book.rows(ahead, maxTime) > l.t.futureRows
		if many {
			r.reasons[ReasonFuture] = true
		}
		if many || l.farFrom < maxTime {
			until = ahead
		}
	}
	q.tailLo, q.tailHi = l.book.span(from, until)
	if _, err := q.replace(ctx, q.tailLo, min(q.tailHi, l.farFrom), l.fine); err != nil {
		l.tailTooLong = timedOut(err)
		return err
	}
	l.tailTooLong = false
	if far := max(q.tailLo, l.farFrom); far < q.tailHi {
		counted, err := l.count.count(ctx, q.conn, far, q.tailHi, l.fine, l.series.intern)
		if err != nil {
			return err
		}
		l.book.replace(far, q.tailHi, counted) // it was there before we came
		l.farFrom = q.tailHi
		if l.backfill.ahead() {
			l.backfill.next = l.farFrom
		}
	}
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
	l.tailFrom = floor(l.behind(r), l.fine)
	if !l.backfill.active { // whose end may lie within a coarse bucket
		hot := floor(l.tailFrom, l.width)
		l.book.coarsen(l.hotFrom, hot, l.width)
		l.hotFrom = hot
	}
	l.bound()
}

// bound makes buckets wider until the book fits the memory it may have.
func (l *ledger) bound() {
	for l.book.size() > l.store.cfg.MaxCells && l.width < 24*hour {
		l.fine, l.width = l.fine*2, l.width*2
		l.hotFrom = floor(l.hotFrom, l.width)
		l.backfill.widen(l.width)
		if l.farFrom < maxTime {
			l.farFrom = floor(l.farFrom, l.width)
		}
		l.book.coarsen(minTime, l.hotFrom, l.width)
		l.book.coarsen(l.hotFrom, maxTime, l.fine)
		l.store.log.Warn("the ledger's memory is at its bound: its buckets become coarser", "postgres.max-cells", l.store.cfg.MaxCells, "width", time.Duration(l.width)*time.Microsecond)
	}
}
