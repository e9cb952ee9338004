package postgres

import (
	"context"
	"time"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

// scrub verifies every bucket in turn, some at each poll, and corrects what the
// rest of the ledger cannot have noticed: deletions in the middle, back-dated
// markers, updates.
type scrub struct {
	cursor  int64
	running bool
	began   time.Time // of the round that runs
	// since is when the last complete round began: every bucket has been
	// verified after it.
	since time.Time
	// fast says that something was missed: the round takes all the time that
	// a snapshot may.
	fast bool
	// skipped says that the round had to pass over a range.
	skipped bool
	// debt is how many rows were verified beyond what the polls so far allow:
	// a bucket is verified whole, however many rows it holds.
	debt        int64
	corrections int64
}

// hurry starts a fast round.
func (s *scrub) hurry() { s.fast, s.running = true, false }

// verify counts a part of the closed buckets again.
func (l *ledger) verify(ctx context.Context, q *recounter) error {
	s := &l.scrub
	if l.backfill.active {
		return nil
	}
	top := q.tailLo
	if q.tailHi != cells.MaxTime {
		top = cells.MaxTime // the far future is not in the tail
	}
	if !s.running {
		s.running, s.skipped, s.cursor, s.began = true, false, cells.MinTime, time.Now()
	}
	for s.debt = max(0, s.debt-l.t.scrubRows); (s.debt < l.t.scrubRows || s.fast) && !q.spent(); {
		hi, rows := l.book.Reach(s.cursor, top, l.t.scrubRows)
		hi = min(cells.Ceil(hi, l.width), top)
		changes, err := q.recountCovered(ctx, s.cursor, hi)
		if timedOut(err) {
			// The transaction is over, and what it has counted stands. Dead
			// rows nobody may remove yet can make a range slow: go past it.
			q.reading.problems = append(q.reading.problems, poll.Problem{Kind: "timeout", Entity: "scrub of " + l.table.String(), Err: err})
			s.cursor, s.running, s.skipped = hi, hi < top, true
			return nil
		}
		if err != nil {
			return err
		}
		for _, c := range changes {
			s.corrections += max(c.After.Count-c.Before.Count, c.Before.Count-c.After.Count)
		}
		if !s.fast {
			s.debt += rows + 1
		}
		s.cursor = hi
		if hi >= top {
			s.running = false
			if !s.skipped {
				s.fast, s.since = false, s.began
				l.tally.rebase()
			}
			break
		}
	}
	if s.fast {
		q.reading.reasons[ReasonUnexplained] = true
	}
	return nil
}
