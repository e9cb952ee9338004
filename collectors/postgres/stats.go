package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/postgres/cells"
)

// The server tallies the rows that every table gains and loses, committed or
// not. A session reports when a transaction of its own ends, at most once a
// second, and when it has been idle for 10 s (PostgreSQL 14: when it goes on
// or ends). So the tally lags, but it never runs ahead: where the server tells
// of more than the ledger has found, the ledger has missed something, or
// something was rolled back. Only a whole recount can tell.

const statsSQL = `SELECT oid::bigint, coalesce(pg_relation_filenode(oid), 0)::bigint,
  pg_stat_get_tuples_inserted(oid), pg_stat_get_tuples_updated(oid), pg_stat_get_tuples_deleted(oid), pg_stat_get_live_tuples(oid),
  pg_stat_get_vacuum_count(oid) + pg_stat_get_autovacuum_count(oid) + pg_stat_get_analyze_count(oid) + pg_stat_get_autoanalyze_count(oid)
FROM unnest(ARRAY[%s]::oid[]) oid`

// leafStats is the server's tally of a table that holds rows.
type leafStats struct {
	oid, file                  int64
	inserted, updated, deleted int64
	live                       int64
	estimated                  int64 // how often vacuum or analyze replaced live by an estimate
}

func readStats(ctx context.Context, conn *transaction, in *session) ([]leafStats, error) {
	if len(in.Table.Leaves) == 0 {
		return nil, nil
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(statsSQL, in.Table.leafOIDs()))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s leafStats, err error) {
		err = row.Scan(&s.oid, &s.file, &s.inserted, &s.updated, &s.deleted, &s.live, &s.estimated)
		return s, err
	})
}

// sums are rows that came, went and, where that is told apart, were updated.
type sums struct{ in, out, updated int64 }

func (a sums) plus(b sums) sums { return sums{a.in + b.in, a.out + b.out, a.updated + b.updated} }

func (a sums) minus(b sums) sums { return sums{a.in - b.in, a.out - b.out, a.updated - b.updated} }

func (a sums) above(b sums) bool { return a.in > b.in || a.out > b.out || a.updated > b.updated }

func (a sums) max(b sums) sums {
	return sums{max(a.in, b.in), max(a.out, b.out), max(a.updated, b.updated)}
}

func (a sums) min(b sums) sums {
	return sums{min(a.in, b.in), min(a.out, b.out), min(a.updated, b.updated)}
}

// tally compares what the server and the ledger have seen to come and go.
type tally struct {
	leaves map[int64]leafStats
	// fresh says that no poll has been compared yet.
	fresh          bool
	server, ledger sums
	// base is the highest excess of the server that means nothing: rows that
	// were rolled back, and no less than the sessions had yet to report.
	base sums
	// told is what the server told before the snapshot that is counted now: all
	// of it was there to be found. alarm is its excess at the last alarm.
	told, alarm sums
	// corrected is how many rows recounts have found since the last reading.
	corrected int64
	// readings counts the polls compared without an alarm; low is the least
	// excess among them.
	readings int
	low      sums
	// late holds what the ledger saw to come and go of late: so much the
	// sessions may have yet to report.
	late []lateRows
}

// lateRows came and went in a bucket, and were found at a time.
type lateRows struct {
	found  time.Time
	bucket int64
	n      sums
}

// reportLag is how long a session may keep what it did to itself.
const reportLag = 11 * time.Second

// follow takes up another set of leaves, or their rewritten files. What before
// tells of them was done before the snapshot, and is found by its recounts.
func (t *tally) follow(before []leafStats) {
	was := t.leaves
	t.leaves = make(map[int64]leafStats, len(before))
	for _, s := range before {
		if old, ok := was[s.oid]; ok && old.file == s.file {
			s = old
		}
		t.leaves[s.oid] = s
	}
}

// read adds what the server tells since the last reading. It is false where
// the statistics were reset, so that something may have been lost. nullable
// says that rows get their time by an update, as a rule.
func (t *tally) read(inside []leafStats, nullable bool) bool {
	t.late = slices.DeleteFunc(t.late, func(l lateRows) bool { return time.Since(l.found) > reportLag })
	whole := true
	for _, s := range inside {
		was, ok := t.leaves[s.oid]
		if !ok {
			continue // it came this moment, and is met at the next poll
		}
		t.leaves[s.oid] = s
		if s.inserted < was.inserted || s.updated < was.updated || s.deleted < was.deleted {
			whole = false
			continue
		}
		updated, out := s.updated-was.updated, s.deleted-was.deleted
		in := s.live - was.live + out // but for what was rolled back
		if in < 0 || s.estimated != was.estimated || s.file != was.file {
			in = s.inserted - was.inserted
		}
		if !nullable {
			in, out = in+updated, out+updated // a row that went and one that came
		}
		t.server.updated += updated
		t.server.in += in
		t.server.out += out
	}
	return whole
}

// note adds what the ledger has found in a bucket. Where rows get their time by
// an update, so many updates are explained by it; else none is.
func (t *tally) note(bucket, came, went int64, nullable bool) {
	n := sums{in: came, out: went}
	if nullable {
		n.updated = came
	}
	t.ledger = t.ledger.plus(n)
	t.late = append(t.late, lateRows{time.Now(), bucket, n})
}

// unreported is what of the rows found in a span of time the sessions may have
// yet to report.
func (t *tally) unreported(w window) (n sums) {
	for _, l := range t.late {
		if w.lo <= l.bucket && l.bucket < w.hi {
			n = n.plus(l.n)
		}
	}
	return n
}

// disturbed says that tables with rows of a span came, went or were rewritten:
// what is reported of them only now is told by nobody.
func (t *tally) disturbed(w window) { t.base = t.base.minus(t.unreported(w)) }

// excess says whether the server tells of more than the ledger has found.
// tolerance is a share of the range in which the excess moves amid traffic.
func (t *tally) excess(tolerance float64) bool {
	late := t.unreported(everything)
	t.corrected = 0
	now := t.server.minus(t.ledger)
	limit := t.base
	if tolerance > 0 {
		if t.readings < 4 {
			limit = limit.plus(late)
		} else {
			more := func(high, low int64) int64 { return high + int64(tolerance*float64(max(0, high-low))) }
			limit = sums{more(limit.in, t.low.in), more(limit.out, t.low.out), more(limit.updated, t.low.updated)}
		}
	}
	if now.above(limit) {
		t.alarm = t.told.minus(t.ledger)
		return true
	}
	if t.readings++; t.readings == 1 {
		t.low = now
	}
	t.low = t.low.min(now)
	told := t.told.minus(t.ledger)
	t.alarm = t.alarm.min(told) // the rest has been found
	// What the server told too little for good, as where it lost a report,
	// hides nothing: soon nothing is unreported.
	t.base = t.base.max(told).min(now.plus(late))
	return false
}

// explained says that the ledger has found all that the server tells to have
// gone.
func (t *tally) explained() bool {
	now := t.server.minus(t.ledger)
	return now.out <= t.base.out && now.updated <= t.base.updated
}

// settle ends an alarm after a whole recount: what of the excess it has not
// corrected means nothing.
func (t *tally) settle(nullable bool) {
	left := sums{t.alarm.in - t.corrected, t.alarm.out - t.corrected, t.alarm.updated}
	if nullable {
		left.updated -= t.corrected
	}
	t.base = t.base.max(left)
	t.alarm = sums{}
}

// restart begins anew with what the server told before a snapshot, in which
// all is counted again.
func (t *tally) restart(before []leafStats) {
	*t = tally{fresh: true}
	t.follow(before)
}

// readTally reads the tally just after the snapshot was taken: what is told
// later, the snapshot does not hold.
func (l *ledger) readTally(ctx context.Context, conn *transaction, r *reading) error {
	if r.session.Standby {
		return nil // it knows nothing of the primary's tally
	}
	inside, err := readStats(ctx, conn, r.session)
	if err != nil {
		return err
	}
	t := &l.tally
	r.lost = !t.read(r.stats, l.nullable())
	t.told = t.server
	r.lost = !t.read(inside, l.nullable()) || r.lost
	return nil
}

// suspect doubts all counts where the server tells of more than the ledger has
// found.
func (l *ledger) suspect(r *reading) {
	if r.session.Standby {
		r.reasons[ReasonStandby] = true
		return
	}
	if r.lost {
		l.doubtAll(r, ReasonStatistics)
	}
	if l.tally.fresh {
		l.tally.ledger, l.tally.fresh = sums{}, false // the tail of this poll began before the tally
	}
	if r.lost || l.backfill.active || r.reasons[ReasonCatchingUp] {
		return // known to be behind
	}
	tolerance := 0.0
	if l.book.Rows(cells.MinTime, cells.MaxTime) > l.t.costly {
		tolerance = 0.25
	}
	if l.tally.excess(tolerance) {
		l.suspects.doubt(cells.MinTime, cells.MaxTime, ReasonUnexplained, false, false)
	}
}

// doubtAll has everything counted again, the newest first, and begins a new
// tally.
func (l *ledger) doubtAll(r *reading, why Reason) {
	l.tally.restart(r.stats)
	recent := cells.Floor(l.tailFrom-cells.Hour, 24*cells.Hour)
	l.suspects.doubt(recent, cells.MaxTime, why, true, true)
	l.suspects.doubt(cells.MinTime, recent, why, true, false)
}

// nullable says that rows may get their time after they are inserted.
func (l *ledger) nullable() bool {
	return l.table.Timed() && !l.table.Column(l.table.Has.ProcessedAt).NotNull
}
