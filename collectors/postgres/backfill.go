package postgres

import (
	"context"
	"time"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

// backfill counts a range in chunks, oldest first, each in a short snapshot of
// its own: all that was there before the first poll (the past, and then what
// lies ahead of the first tail), or what came during a long absence. What lies between next and end is not counted yet; what
// changes below next is followed as everywhere.
type backfill struct {
	active  bool
	initial bool // what it finds was there before we came
	next    int64
	end     int64
	from    int64 // its first row
	span    int64 // of the next chunk
	rows    int64
	began   time.Time
	ended   time.Time
}

func (f *backfill) begin(from, to int64, initial bool) {
	*f = backfill{active: true, initial: initial, next: from, end: to, from: from, span: cells.Minute, began: time.Now()}
}

// ahead says that the future is being counted.
func (f *backfill) ahead() bool { return f.active && f.end == cells.MaxTime }

// progress is the share of the range that is counted; of the past, as the
// future has no end to measure by.
func (f *backfill) progress() float64 {
	if !f.active || f.ahead() {
		return 1
	}
	if f.next == cells.MinTime || f.end <= f.from {
		return 0
	}
	return float64(f.next-f.from) / float64(f.end-f.from)
}

// fill goes on with the backfill for a share of the poll's time. Its failure
// is a problem and no error: the poll has counted what it must.
func (l *ledger) fill(ctx context.Context, r *reading) error {
	f := &l.backfill
	if !f.active {
		return nil
	}
	until := time.Now().Add(5 * time.Second)
	if deadline, ok := ctx.Deadline(); ok {
		until = time.Now().Add(time.Duration(l.t.share * float64(time.Until(deadline))))
	}
	for f.active && time.Now().Before(until) {
		err := l.fillChunk(ctx, r)
		if timedOut(err) && f.span > l.fine {
			f.span = max(f.span/4, l.fine)
			continue
		}
		if err != nil {
			err = explain("backfill of table "+l.table.String(), err)
			r.problems = append(r.problems, poll.Problem{Kind: poll.Kind(err), Entity: "backfill of " + l.table.String(), Err: err})
			break
		}
	}
	if f.ahead() {
		r.reasons[ReasonFuture] = true
	}
	if f.active {
		l.store.log.Info("counting the markers that are there already", "progress", f.progress(), "rows", f.rows, "for", time.Since(f.began).Round(time.Second))
	} else {
		l.store.log.Info("counted the markers that were there already", "rows", f.rows, "took", time.Since(f.began).Round(time.Millisecond), "cells", l.book.Size())
	}
	return nil
}

// fillChunk counts the next chunk. Chunks begin and end at borders of coarse
// buckets; one that holds too much for a statement is counted in pieces.
func (l *ledger) fillChunk(ctx context.Context, r *reading) error {
	f := &l.backfill
	lo, hi := f.next, f.end
	var counted []*cells.Bucket
	began, done := time.Now(), false
	err := l.store.inSnapshot(ctx, bounds{index: true}, func(conn *transaction) error {
		oldest, found, err := l.count.first(ctx, conn, f.next, f.end)
		if err != nil || !found {
			done = err == nil
			return err
		}
		if f.next == cells.MinTime {
			f.from = max(oldest, firstTime)
		}
		lo = max(f.next, cells.Floor(oldest, l.width))
		hi = min(l.chunkEnd(lo), f.end)
		if f.span < l.width && lo > firstTime && lo <= lastTime {
			return nil
		}
		done = true
		counted, err = l.countBetween(ctx, conn, lo, hi)
		return err
	})
	if timedOut(err) && f.next == cells.MinTime && !done {
		return l.skipDead(ctx)
	}
	if err != nil {
		return err
	}
	for piece := lo; !done && piece < hi; piece += f.span {
		err := l.store.inSnapshot(ctx, bounds{index: true}, func(conn *transaction) error {
			some, err := l.count.count(ctx, conn, piece, min(piece+f.span, hi), l.fine, l.series.Intern)
			counted = append(counted, some...)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, b := range counted {
		f.rows += b.Rows()
	}
	if f.initial {
		l.book.Replace(f.next, hi, counted)
	} else {
		l.untold = l.compares
		l.apply(r, f.next, hi, counted)
		l.untold = false
	}
	f.next = hi
	if f.ahead() {
		l.farFrom = hi
	}
	l.bound()
	if f.next >= f.end {
		if l.farFrom < cells.MaxTime {
			rows, began := f.rows, f.began
			f.begin(l.farFrom, cells.MaxTime, !l.compares)
			f.rows, f.began = rows, began
			return nil
		}
		f.active, f.ended, l.compares = false, time.Now(), false
		l.scrub.since = f.began
		return nil
	}
	f.span = cells.Floor(min(max(l.stride(f.span, time.Since(began)), l.width), 24*cells.Hour), l.width)
	return nil
}

// stride is the span of the next chunk after one that took so long. What every
// chunk takes, however small (with hundreds of partitions planning alone is
// much), is no reason to make it smaller.
func (l *ledger) stride(span int64, took time.Duration) int64 {
	took = max(took, time.Millisecond)
	if l.fixed == 0 || took < l.fixed {
		l.fixed = took
	}
	fixed := min(l.fixed-time.Millisecond, statementTimeout/2)
	return aim(span, l.t.chunk, took-fixed)
}

// aim is the size of the next step after one of this size that took so long: it
// approaches the wanted time, without leaps.
func aim(size int64, want, took time.Duration) int64 {
	ratio := float64(want) / float64(max(took, time.Millisecond))
	return int64(float64(size) * min(max(ratio, 0.25), 4))
}

// skipDead finds where to begin when the way from the very start is too long:
// so many pruned rows that an old snapshot keeps. It goes down from the end by
// growing steps until a search takes too long. Older rows than that, if there
// are any, are the scrub's.
func (l *ledger) skipDead(ctx context.Context) error {
	f := &l.backfill
	next := f.end
	for span := cells.Hour; f.end-span > firstTime; span *= 2 {
		err := l.store.inSnapshot(ctx, bounds{index: true}, func(conn *transaction) error {
			_, _, err := l.count.first(ctx, conn, f.end-span, f.end)
			return err
		})
		if timedOut(err) {
			break
		}
		if err != nil {
			return err
		}
		next = cells.Floor(f.end-span, l.width)
		if span > 365*24*cells.Hour {
			break
		}
	}
	f.next, f.from = next, next
	l.suspects.doubt(cells.MinTime, next, ReasonUnexplained, false, false)
	return nil
}

// chunkEnd is where a chunk that begins at lo ends.
func (l *ledger) chunkEnd(lo int64) int64 {
	if lo < firstTime {
		return cells.Floor(firstTime, l.width)
	}
	if lo > lastTime {
		return cells.MaxTime
	}
	return cells.Floor(lo, l.width) + max(cells.Floor(l.backfill.span, l.width), l.width)
}

// widen moves the ends to borders of wider buckets.
func (f *backfill) widen(width int64) {
	f.next, f.end = cells.Floor(f.next, width), cells.Ceil(f.end, width)
}

// countBetween counts a range as wide as its buckets should be.
func (l *ledger) countBetween(ctx context.Context, conn *transaction, lo, hi int64) ([]*cells.Bucket, error) {
	var counted []*cells.Bucket
	for _, part := range []struct{ lo, hi, width int64 }{{lo, min(hi, l.hotFrom), l.width}, {max(lo, l.hotFrom), hi, l.fine}} {
		if part.lo >= part.hi {
			continue
		}
		some, err := l.count.count(ctx, conn, part.lo, part.hi, part.width, l.series.Intern)
		if err != nil {
			return nil, err
		}
		counted = append(counted, some...)
	}
	return counted, nil
}
