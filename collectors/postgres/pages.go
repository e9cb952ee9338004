package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

// pagesSQL counts a part of a table that is not found by time.
const pagesSQL = `SELECT '-infinity'::timestamptz, %s, count(*), %s FROM %s WHERE %s GROUP BY 1%s`

// pages is the fallback for a table without an index on the time, and for a
// view: each leaf is counted whole, in chunks of pages with a snapshot each,
// and only as often as a small share of the time allows. Between two rounds
// its counts stand still, and the metrics say so.
type pages struct {
	leaves map[uint32]*leafPass
	begun  time.Time     // of the round that runs; zero: none does
	spent  time.Duration // by it
	next   time.Time     // when another may begin
}

// leafPass is the count of one leaf.
type leafPass struct {
	leaf   Leaf
	cells  []cells.Cell    // of the last complete pass
	done   bool            // there was one
	late   bool            // it came while we were looking: all in it is new
	due    bool            // in this round
	chunks []*cells.Bucket // of the pass that runs
	page   int64           // where it goes on
	step   int64           // pages a chunk
	// What has no pages, a view or a foreign table, is counted at once, and by
	// ranges of the time where that takes too long.
	paged, ranged bool
	next, span    int64
}

// complete says whether every leaf has been counted.
func (p *pages) complete() bool {
	for _, pass := range p.leaves {
		if !pass.done {
			return false
		}
	}
	return p.leaves != nil
}

// pollPages goes on with a round where one is due.
func (l *ledger) pollPages(ctx context.Context, r *reading) error {
	r.inside, r.read = r.before, l.store.now()
	if r.session.Table.Timed() {
		r.reasons[ReasonNoIndex] = true
	} else {
		r.reasons[ReasonNoTime] = true
	}
	l.clock = r.before.clock
	p := &l.pages
	l.meetLeaves(r)
	if p.begun.IsZero() {
		all := !time.Now().Before(p.next)
		for _, pass := range p.leaves {
			pass.due = !pass.done || all
			if pass.due {
				pass.page, pass.next, pass.chunks = 0, cells.MinTime, nil
				p.begun, p.spent = time.Now(), 0
			}
		}
	}
	until := time.Now().Add(time.Duration(l.t.share * float64(5*time.Second)))
	if deadline, ok := ctx.Deadline(); ok {
		until = time.Now().Add(time.Duration(l.t.share * float64(time.Until(deadline))))
	}
	for _, oid := range sortedOIDs(p.leaves) {
		for pass := p.leaves[oid]; pass.due; {
			if time.Now().After(until) {
				return nil
			}
			began := time.Now()
			err := l.store.inSnapshot(ctx, bounds{}, func(conn *transaction) error { return l.countPages(ctx, conn, r, pass) })
			p.spent += time.Since(began)
			if timedOut(err) {
				if err = pass.shrink(err, r.session.Table.Timed()); err == nil {
					continue
				}
			}
			if err != nil {
				return err
			}
		}
	}
	if !p.begun.IsZero() {
		l.scrub.since, l.scrub.round = p.begun, time.Duration(float64(p.spent)/l.t.duty)
		p.next = time.Now().Add(l.scrub.round)
		p.begun = time.Time{}
	}
	return nil
}

// meetLeaves adds new leaves and lets those go that were dropped, with their
// markers.
func (l *ledger) meetLeaves(r *reading) {
	leaves := r.session.Table.Leaves
	if len(leaves) == 0 { // a view
		t := r.session.Table
		leaves = []Leaf{{OID: t.OID, Schema: t.Schema, Name: t.Name, Readable: true}}
	}
	p := &l.pages
	late := p.leaves != nil
	if !late {
		p.leaves = map[uint32]*leafPass{}
	}
	current := map[uint32]bool{}
	for _, leaf := range leaves {
		current[leaf.OID] = true
		if p.leaves[leaf.OID] == nil {
			p.leaves[leaf.OID] = &leafPass{leaf: leaf, late: late, step: 256, paged: leaf.Kind == "r" || leaf.Kind == "m"}
		}
	}
	for oid, pass := range p.leaves {
		if !current[oid] {
			delete(p.leaves, oid)
			l.note(r, cells.DiffCells(cells.MinTime, pass.cells, nil))
		}
	}
}

// shrink makes the next chunk smaller after one that took too long.
func (p *leafPass) shrink(err error, timed bool) error {
	switch {
	case p.paged && p.step > 1:
		p.step = max(p.step/4, 1)
	case p.paged:
		return err
	case !timed:
		return &poll.KindError{Kind: "unsupported", Err: fmt.Errorf("%s.%s has no pages and no time, so it cannot be counted in short statements: set postgres.table to the table beneath: %w", p.leaf.Schema, p.leaf.Name, err)}
	case !p.ranged:
		p.ranged, p.next, p.span, p.chunks = true, cells.MinTime, 24*cells.Hour, nil
	case p.span > cells.Second:
		p.span = max(p.span/8, cells.Second)
	default:
		return &poll.KindError{Kind: "unsupported", Err: fmt.Errorf("%s.%s has no pages, and no index beneath it finds a range of its time within %s, so it cannot be counted in short statements: set postgres.table to the table beneath, or make an index there that leads with the time: %w",
			p.leaf.Schema, p.leaf.Name, statementTimeout, err)}
	}
	return nil
}

// countRange counts the next range of what has no pages.
func (l *ledger) countRange(ctx context.Context, conn *transaction, r *reading, pass *leafPass) error {
	c := *l.count
	c.from = pgx.Identifier{pass.leaf.Schema, pass.leaf.Name}.Sanitize()
	began := time.Now()
	oldest, found, err := c.probe(ctx, conn, pass.next, cells.MaxTime)
	if err != nil {
		return err
	}
	if !found {
		l.finishPass(r, pass)
		return nil
	}
	hi := int64(cells.MaxTime)
	switch {
	case oldest < firstTime:
		hi = firstTime
	case oldest < lastTime-pass.span:
		hi = oldest + pass.span
	}
	if err := l.addChunk(ctx, conn, pass, c.from, c.within(max(oldest, pass.next), hi)); err != nil {
		return err
	}
	if pass.next = hi; hi == cells.MaxTime {
		l.finishPass(r, pass)
		return nil
	}
	pass.span = max(aim(pass.span, l.t.chunk, time.Since(began)), cells.Second)
	return nil
}

// addChunk counts a part of a leaf and adds it to the pass.
func (l *ledger) addChunk(ctx context.Context, conn *transaction, pass *leafPass, from, where string) error {
	c := l.count
	rows, err := conn.Query(ctx, fmt.Sprintf(pagesSQL, c.key, c.sums, from, where, c.by))
	if err != nil {
		return err
	}
	defer rows.Close()
	counted, err := collect(rows, 1, l.series.Intern)
	if err != nil {
		return err
	}
	pass.chunks = []*cells.Bucket{{Cells: cells.Merge(append(pass.chunks, counted...))}}
	return nil
}

// finishPass takes up what a whole pass has counted.
func (l *ledger) finishPass(r *reading, pass *leafPass) {
	all := cells.Merge(pass.chunks)
	if pass.done || pass.late {
		l.note(r, cells.DiffCells(cells.MinTime, pass.cells, all))
	}
	pass.cells, pass.done, pass.due, pass.chunks = all, true, false, nil
}

// countPages counts the next chunk of a leaf.
func (l *ledger) countPages(ctx context.Context, conn *transaction, r *reading, pass *leafPass) error {
	if pass.ranged {
		return l.countRange(ctx, conn, r, pass)
	}
	began := time.Now()
	c := l.count
	from, where, last := pgx.Identifier{pass.leaf.Schema, pass.leaf.Name}.Sanitize(), c.at+" IS NOT NULL", true
	if pass.paged {
		var blocks int64
		err := conn.QueryRow(ctx, fmt.Sprintf("SELECT pg_relation_size(%d) / current_setting('block_size')::bigint", pass.leaf.OID)).Scan(&blocks)
		if err != nil {
			return err
		}
		from = "ONLY " + from
		if !pass.leaf.Readable { // granted on the parent alone
			from, where = l.table.sql(), fmt.Sprintf("tableoid = %d AND %s", pass.leaf.OID, where)
		}
		where += fmt.Sprintf(" AND ctid >= '(%d,0)'", pass.page)
		if end := pass.page + pass.step; end < blocks {
			where, last = where+fmt.Sprintf(" AND ctid < '(%d,0)'", min(end, math.MaxUint32)), false
		}
	}
	if err := l.addChunk(ctx, conn, pass, from, where); err != nil {
		return err
	}
	pass.page += pass.step
	if !last {
		pass.step = max(aim(pass.step, l.t.chunk, time.Since(began)), 1)
		return nil
	}
	l.finishPass(r, pass)
	return nil
}

func sortedOIDs(m map[uint32]*leafPass) []uint32 {
	oids := make([]uint32, 0, len(m))
	for oid := range m {
		oids = append(oids, oid)
	}
	slices.Sort(oids)
	return oids
}
