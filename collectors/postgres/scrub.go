package postgres

import (
	"context"
	"errors"
	"time"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

// scrub verifies every bucket in turn, some at each poll, and corrects what
// neither the rest of the ledger nor the server's tally has noticed. A round
// is bounded in time.
type scrub struct {
	cursor  int64
	running bool
	began   time.Time // of the round that runs
	// since is when the last complete round began: every bucket has been
	// verified after it.
	since time.Time
	// round is how long a round takes at the present pace.
	round time.Duration
	// skipped says that the round had to pass over a range.
	skipped bool
	// debt is how many rows were verified beyond what the polls so far allow:
	// a bucket is verified whole, however many rows it holds.
	debt        int64
	corrections int64
}

// pace is how many rows this poll verifies.
func (l *ledger) pace(q *recounter) int64 {
	rows := l.book.Rows(cells.MinTime, cells.MaxTime)
	interval := cells.Minute
	if l.clock != 0 {
		interval = min(max(q.reading.inside.clock-l.clock, cells.Second), interval)
	}
	daily := int64(float64(rows)*float64(interval)/float64(l.t.scrubRound.Microseconds())) + 1
	pace := max(l.t.scrubRows-q.rows, l.t.scrubRows/4, daily)
	l.scrub.round = duration(int64(float64(max(rows, pace)) / float64(pace) * float64(interval)))
	return pace
}

// verify counts a part of the closed buckets again.
func (l *ledger) verify(ctx context.Context, q *recounter) error {
	s := &l.scrub
	if l.backfill.active || l.t.scrubRows == 0 {
		return nil
	}
	top := q.tailLo
	if q.tailHi != cells.MaxTime {
		top = cells.MaxTime // the far future is not in the tail
	}
	if !s.running {
		s.running, s.skipped, s.cursor, s.began = true, false, cells.MinTime, time.Now()
	}
	pace := l.pace(q)
	for s.debt = max(0, s.debt-pace); s.debt < pace; {
		hi, rows := l.book.Reach(s.cursor, top, min(pace, probeRows))
		hi = min(cells.Ceil(hi, l.width), top)
		changes, err := q.recountCovered(ctx, s.cursor, hi)
		if errors.Is(err, errSpent) {
			return nil
		}
		if timedOut(err) {
			// Dead rows nobody may remove yet can make a range slow: go past it.
			q.reading.problems = append(q.reading.problems, poll.Problem{Kind: "timeout", Entity: "scrub of " + l.table.String(), Err: err})
			s.cursor, s.running, s.skipped = hi, hi < top, true
			return nil
		}
		if err != nil {
			return err
		}
		if len(changes) > 0 && !q.reading.session.Standby && !l.suspects.pending() {
			// What was missed here was hardly missed alone.
			l.suspects.doubt(cells.MinTime, cells.MaxTime, ReasonUnexplained, false, false)
		}
		l.corrected(changes)
		s.debt += rows + 1
		s.cursor = hi
		if hi >= top {
			s.running = false
			if !s.skipped {
				s.since = s.began
			}
			break
		}
	}
	return nil
}
