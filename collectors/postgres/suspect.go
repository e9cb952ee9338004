package postgres

import (
	"context"
	"time"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

// suspects are the spans of time whose counts may be off. They are counted
// again, in order, and as long as there are any the metrics say why. What
// comes while a span waits is found when its turn comes; what comes later
// makes it a suspect again. So the last of them has been counted after the
// last reason to doubt.
type suspects struct {
	queue   []suspect
	reasons map[Reason]bool
	span    int64 // of the next chunk
	// share is how much of a poll's time the recounts may use. It shrinks with
	// every suspicion that proves empty.
	share float64
	// found counts the rows that were off, since the first of the queue.
	found int64
}

type suspect struct {
	window
	// structural says that rows of the span came or went without being
	// inserted or deleted, so that the server's tally knows nothing of it.
	structural bool
}

// doubt adds what of a span is not a suspect yet, at the front or the back.
func (s *suspects) doubt(lo, hi int64, why Reason, structural, first bool) {
	if s.reasons == nil {
		s.reasons = map[Reason]bool{}
	}
	s.reasons[why] = true
	if structural {
		for i, q := range s.queue {
			s.queue[i].structural = q.structural || q.lo < hi && q.hi > lo
		}
	}
	rest := []window{{lo, hi}}
	for _, q := range s.queue {
		var left []window
		for _, w := range rest {
			if q.hi <= w.lo || q.lo >= w.hi {
				left = append(left, w)
				continue
			}
			if w.lo < q.lo {
				left = append(left, window{w.lo, q.lo})
			}
			if q.hi < w.hi {
				left = append(left, window{q.hi, w.hi})
			}
		}
		rest = left
	}
	var added []suspect
	for _, w := range rest {
		added = append(added, suspect{w, structural})
	}
	if first {
		s.queue = append(added, s.queue...)
	} else {
		s.queue = append(s.queue, added...)
	}
}

// structural says whether the tally knows nothing of what is found at a time.
func (s *suspects) structural(at int64) bool {
	for _, q := range s.queue {
		if q.structural && q.lo <= at && at < q.hi {
			return true
		}
	}
	return false
}

// pending says whether counts may be off.
func (s *suspects) pending() bool { return len(s.queue) > 0 }

// clear ends the doubt.
func (l *ledger) clearSuspects() {
	s := &l.suspects
	if s.reasons[ReasonUnexplained] {
		l.tally.settle(l.nullable())
		if s.found == 0 {
			s.share = max(s.share/2, l.t.hurry/16)
		}
	}
	if s.found > 0 {
		s.share = l.t.hurry
	}
	s.queue, s.reasons, s.found = nil, nil, 0
}

// recheckNow counts the suspects again in the poll's own snapshot, where they
// are few enough: then nothing was off at all.
func (l *ledger) recheckNow(ctx context.Context, q *recounter) error {
	s := &l.suspects
	if !s.pending() || l.backfill.active {
		return nil
	}
	var rows int64
	for _, x := range s.queue {
		rows += l.book.Rows(x.lo, x.hi)
	}
	if rows > l.t.inlineRows {
		return nil
	}
	for len(s.queue) > 0 {
		x := s.queue[0]
		changes, err := q.recountAll(ctx, x.lo, x.hi)
		l.corrected(changes)
		if timedOut(err) {
			return nil // what it has counted stands; the chunks go on
		}
		if err != nil {
			return err
		}
		s.queue = s.queue[1:]
	}
	l.clearSuspects()
	return nil
}

// corrected counts what a recount found to be off.
func (l *ledger) corrected(changes []cells.Change) {
	for _, c := range changes {
		n := max(c.After.Count-c.Before.Count, c.Before.Count-c.After.Count)
		l.scrub.corrections += n
		l.suspects.found += n
		l.tally.corrected += n
	}
}

// recheck goes on with the suspects in snapshots of its own, for a share of
// the poll's time. What it finds is of a moment later than the poll, so the
// poll stays flagged.
func (l *ledger) recheck(ctx context.Context, r *reading) {
	s := &l.suspects
	for why := range s.reasons {
		r.reasons[why] = true
	}
	if !s.pending() || l.backfill.active {
		return
	}
	if s.share == 0 {
		s.share = l.t.hurry
	}
	until := time.Now().Add(time.Duration(s.share * float64(5*time.Second)))
	if deadline, ok := ctx.Deadline(); ok {
		until = time.Now().Add(time.Duration(s.share * float64(time.Until(deadline))))
	}
	for tries := 0; s.pending() && (tries == 0 || time.Now().Before(until)); tries++ {
		err := l.recheckChunk(ctx, r)
		if timedOut(err) {
			if s.span > l.width {
				s.span = max(cells.Floor(s.span/4, l.width), l.width)
				continue
			}
			// Dead rows nobody may remove yet can make a span slow: the others
			// first.
			s.queue = append(s.queue[1:], s.queue[0])
		}
		if err != nil {
			err = explain("recount of table "+l.table.String(), err)
			r.problems = append(r.problems, poll.Problem{Kind: poll.Kind(err), Entity: "recount of " + l.table.String(), Err: err})
			return
		}
	}
	if !s.pending() {
		l.clearSuspects()
	}
}

// recheckChunk counts the next part of the first suspect again.
func (l *ledger) recheckChunk(ctx context.Context, r *reading) error {
	s := &l.suspects
	x := &s.queue[0]
	if s.span == 0 {
		s.span = 24 * cells.Hour
	}
	lo, top := x.lo, x.hi
	if l.tailOpen {
		top = min(top, l.tailFrom) // the next poll counts what lies beyond
	}
	if lo < top {
		lo, _ = l.book.Span(cells.Floor(lo, l.width), lo+1)
		if !l.tailOpen || top < l.tailFrom {
			_, top = l.book.Span(top-1, cells.Ceil(top, l.width))
		}
	}
	if lo >= top {
		s.queue = s.queue[1:]
		return nil
	}
	hi, began := top, time.Now()
	var counted []*cells.Bucket
	err := l.store.inSnapshot(ctx, bounds{index: true}, func(conn *transaction) error {
		oldest, found, err := l.count.first(ctx, conn, lo, top)
		if err != nil || !found {
			return err
		}
		start := max(lo, cells.Floor(oldest, l.width))
		start, _ = l.book.Span(start, start+1)
		start = max(start, lo)
		switch {
		case start < firstTime:
			hi = min(cells.Floor(firstTime, l.width), top)
		case start <= lastTime:
			hi = min(cells.Floor(start, l.width)+max(s.span, l.width), top)
		}
		if hi < top {
			if _, hi = l.book.Span(hi-1, hi); hi > top {
				hi = top
			}
		}
		counted, err = l.countBetween(ctx, conn, start, hi)
		return err
	})
	if err != nil {
		return err
	}
	l.corrected(l.apply(r, lo, hi, counted))
	if x.lo = hi; hi >= top {
		s.queue = s.queue[1:]
	}
	l.bound()
	s.span = cells.Floor(min(max(l.stride(s.span, time.Since(began)), l.width), 30*24*cells.Hour), l.width)
	return nil
}
