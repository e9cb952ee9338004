package postgres

import (
	"context"

	"oncewatch/collectors/postgres/cells"
)

// recounter counts in one snapshot.
type recounter struct {
	*ledger
	conn    *transaction
	reading *reading
	// tailLo and tailHi are the ends of this poll's tail, which it has counted.
	tailLo, tailHi int64
	rows           int64    // counted at the edges
	followed       []window // the edges counted
}

// recount counts a range again that may lie anywhere, and leaves out what this
// poll's tail has counted and what the backfill has yet to count.
func (q *recounter) recount(ctx context.Context, lo, hi int64) error {
	hi = min(hi, q.tailLo)
	if lo >= hi {
		return nil
	}
	lo, hi = cells.Floor(lo, q.width), min(cells.Ceil(hi, q.width), q.tailLo)
	if f := &q.backfill; f.active {
		if _, err := q.recountCovered(ctx, lo, min(hi, f.next)); err != nil {
			return err
		}
		lo = max(lo, f.end)
	}
	_, err := q.recountCovered(ctx, lo, hi)
	return err
}

// recountAll counts a range again, all of it but for the tail.
func (q *recounter) recountAll(ctx context.Context, lo, hi int64) ([]cells.Change, error) {
	var changes []cells.Change
	for _, part := range []window{{lo, min(hi, q.tailLo)}, {max(lo, q.tailHi), hi}} {
		lo := max(cells.Floor(part.lo, q.width), cells.MinTime)
		if part.lo >= part.hi {
			continue
		}
		if part.lo == q.tailHi {
			lo = part.lo
		}
		hi := cells.Ceil(part.hi, q.width)
		if part.hi == q.tailLo {
			hi = part.hi
		}
		some, err := q.recountCovered(ctx, lo, hi)
		changes = append(changes, some...)
		if err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// recountCovered counts a range as wide as its buckets should be.
func (q *recounter) recountCovered(ctx context.Context, lo, hi int64) ([]cells.Change, error) {
	if lo >= hi {
		return nil, nil
	}
	lo, hi = q.book.Span(lo, hi)
	counted, err := q.countBetween(ctx, q.conn, lo, hi)
	if err != nil {
		return nil, err
	}
	return q.apply(q.reading, lo, hi, counted), nil
}

// replace counts a range whose ends are borders of buckets and puts the result
// in the book.
func (q *recounter) replace(ctx context.Context, lo, hi, width int64) ([]cells.Change, error) {
	if lo >= hi {
		return nil, nil
	}
	counted, err := q.count.count(ctx, q.conn, lo, hi, width, q.series.Intern)
	if err != nil {
		return nil, err
	}
	return q.apply(q.reading, lo, hi, counted), nil
}

// apply puts the count of a range in the book and keeps the difference.
func (l *ledger) apply(r *reading, lo, hi int64, counted []*cells.Bucket) []cells.Change {
	changes := l.book.Replace(lo, hi, counted)
	l.note(r, changes)
	return changes
}

// note adds changes to what was seen to come and go.
func (l *ledger) note(r *reading, changes []cells.Change) {
	l.series.Note(changes)
	for _, c := range changes {
		d := c.After.Count - c.Before.Count
		if d == 0 || l.untold || l.suspects.structural(c.Lo) {
			continue // the server's tally has it not
		}
		l.tally.note(c.Lo, max(0, d), max(0, -d), l.nullable())
	}
	r.changes = append(r.changes, changes...)
}
