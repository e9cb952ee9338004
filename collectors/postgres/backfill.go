package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/poll"
)

// backfill counts a range in chunks, oldest first, each in a short snapshot of
// its own: all that was there before the first poll, or what came during a
// long absence. What lies between next and end is not counted yet; what
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
}

func (f *backfill) begin(from, to int64, initial bool) {
	*f = backfill{active: true, initial: initial, next: from, end: to, from: from, span: minute, began: time.Now()}
}

// progress is the share of the range that is counted.
func (f *backfill) progress() float64 {
	if !f.active {
		return 1
	}
	if f.next == minTime || f.end <= f.from {
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
		err := l.store.inSnapshot(ctx, bounds{index: true}, func(conn *pgx.Conn) error { return l.fillChunk(ctx, r, conn) })
		if timedOut(err) && f.span > l.t.fine {
			f.span = max(f.span/4, l.t.fine)
			continue
		}
		if err != nil {
			err = explain("backfill of table "+l.table.String(), err)
			r.problems = append(r.problems, poll.Problem{Kind: poll.Kind(err), Entity: "backfill of " + l.table.String(), Err: err})
			break
		}
	}
	if f.active {
		l.store.log.Info("counting the markers that are there already", "progress", f.progress(), "rows", f.rows, "for", time.Since(f.began).Round(time.Second))
	} else {
		l.store.log.Info("counted the markers that were there already", "rows", f.rows, "took", time.Since(f.began).Round(time.Millisecond), "cells", l.book.size())
	}
	return nil
}

func (l *ledger) fillChunk(ctx context.Context, r *reading, conn *pgx.Conn) error {
	f := &l.backfill
	began := time.Now()
	oldest, found, err := l.count.first(ctx, conn, f.next, f.end)
	if err != nil {
		return err
	}
	if !found {
		l.filled(r, f.next, f.end, nil)
		l.filledAll()
		return nil
	}
	if f.next == minTime {
		f.from = max(oldest, firstLiteral)
	}
	lo := max(f.next, floor(oldest, l.width))
	hi, width := min(l.chunkEnd(lo), f.end), l.width
	if hi-lo < width {
		width = l.t.fine
	}
	cold, err := l.countBetween(ctx, conn, lo, min(hi, l.hotFrom), width)
	if err != nil {
		return err
	}
	hot, err := l.countBetween(ctx, conn, max(lo, l.hotFrom), hi, l.t.fine)
	if err != nil {
		return err
	}
	l.filled(r, f.next, hi, append(cold, hot...))
	f.next = hi
	if hi >= f.end {
		l.filledAll()
		return nil
	}
	// Aim at the wanted time, without leaps.
	ratio := float64(l.t.chunk) / float64(max(time.Since(began), time.Millisecond))
	f.span = max(int64(float64(f.span)*min(max(ratio, 0.25), 4)), l.t.fine)
	f.span = max(floor(min(f.span, 24*hour), l.t.fine), l.t.fine)
	return nil
}

// chunkEnd is where a chunk that begins at lo ends: at a border of coarse
// buckets, unless a single one is too much.
func (l *ledger) chunkEnd(lo int64) int64 {
	border := ceil(max(lo, firstLiteral)+1, l.width)
	switch {
	case lo <= firstLiteral:
		return border
	case l.backfill.span < l.width:
		return min(lo+l.backfill.span, border)
	case floor(lo, l.width) != lo:
		return border
	}
	return lo + floor(l.backfill.span, l.width)
}

func (l *ledger) countBetween(ctx context.Context, conn *pgx.Conn, lo, hi, width int64) ([]*bucket, error) {
	if lo >= hi {
		return nil, nil
	}
	return l.count.count(ctx, conn, lo, hi, width, l.series.intern)
}

// filled puts a chunk in the book.
func (l *ledger) filled(r *reading, lo, hi int64, counted []*bucket) {
	for _, b := range counted {
		l.backfill.rows += b.rows()
	}
	if l.backfill.initial {
		l.book.replace(lo, hi, counted)
	} else {
		l.apply(r, lo, hi, counted)
	}
}

func (l *ledger) filledAll() {
	l.backfill.active = false
	l.scrub.since = l.backfill.began
}
