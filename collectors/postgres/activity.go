package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"oncewatch/collectors/postgres/cells"
)

// A row's processed_at is the start of its transaction (now()), and it is seen
// when that transaction commits: perhaps minutes after its minute was counted.
// So the ledger keeps the transactions that were open, and counts the minute
// of each again once it has ended.
//
// A poll reads the activity twice. What is open *before* the counting snapshot
// may commit after it and is kept for the next poll. What is no longer open
// when asked *inside* the snapshot (the server takes the snapshot first and
// looks at its sessions afterwards) had ended, and is counted now. A session
// clears its start only after its commit is visible, so nothing falls between.
//
// It is never narrowed to transactions that have an xid: one that began, read
// and waits has none until it writes.

// activitySQL asks for the clock, the open transactions of this database, the
// prepared ones and, on a standby, how far it has replayed.
const activitySQL = `SELECT 'clock', '', %[1]s
UNION ALL SELECT 'replayed', '', %[2]s WHERE pg_is_in_recovery()
UNION ALL SELECT 'prepared', transaction::text, %[3]s FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL %[4]s`

// sessionsSQL names a transaction by its session and start.
const sessionsSQL = `SELECT 'open', pid || ' ' || extract(epoch FROM xact_start), %s FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
   AND backend_type NOT IN ('autovacuum worker', 'walsender', 'parallel worker')`

// locksSQL serves a role that may not see the sessions of others: everybody
// sees their virtual transaction ids. Their starts are hidden and lie between
// the last time we looked and the first time we saw them.
const locksSQL = `SELECT 'open', l.virtualxid, NULL::timestamptz FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted
   AND a.datname = current_database() AND l.pid <> pg_backend_pid()`

// window is a span of times, both ends included.
type window struct{ lo, hi int64 }

// activity is one reading.
type activity struct {
	clock    int64
	replayed int64 // of a standby; maxTime on a primary
	// open holds the start of each open transaction; hidden where it cannot be
	// seen.
	open map[string]int64
	// prepared holds when each prepared transaction was prepared.
	prepared map[string]int64
}

const hidden = int64(cells.MinTime)

// instant is an expression of a timestamptz, in the ledger's time.
func (c *counter) instant(expr, zone string) string {
	if c.zoned {
		return expr
	}
	return fmt.Sprintf("((%s) AT TIME ZONE '%s') AT TIME ZONE 'UTC'", expr, strings.ReplaceAll(zone, "'", "''"))
}

func readActivity(ctx context.Context, conn *transaction, c *counter, in *session) (*activity, error) {
	zone := in.Table.Zone
	sessions := locksSQL
	if in.ReadAllStats {
		sessions = fmt.Sprintf(sessionsSQL, c.instant("xact_start", zone))
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(activitySQL, c.instant("clock_timestamp()", zone),
		c.instant("pg_last_xact_replay_timestamp()", zone), c.instant("prepared", zone), sessions))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	a := &activity{replayed: cells.MaxTime, open: map[string]int64{}, prepared: map[string]int64{}}
	for rows.Next() {
		var kind, id string
		var at pgtype.Timestamptz
		if err := rows.Scan(&kind, &id, &at); err != nil {
			return nil, err
		}
		t := hidden
		if at.Valid {
			t = micros(at)
		}
		switch kind {
		case "clock":
			a.clock = t
		case "replayed":
			a.replayed = t
		case "prepared":
			a.prepared[id] = t
		case "open":
			a.open[id] = t
		}
	}
	return a, rows.Err()
}

// openTransactions is what the ledger remembers between polls.
type openTransactions struct {
	read  int64 // the clock when they were read; 0: never
	slack int64
	// reach is how far behind its start a transaction's rows may be stamped:
	// 0 where the column is filled with the start, DEFAULT now().
	reach int64
	// starts holds when each may have started: one instant where it is known.
	starts map[string][]window
	// owed are the times of ended ones that are yet to be counted again.
	owed []window
}

// ended takes the readings before and inside a counting snapshot. It returns
// the times at which transactions started that have ended since the previous
// poll, and what to remember. An end of minTime means that the start is not
// known.
func (o *openTransactions) ended(before, inside *activity) ([]window, *openTransactions) {
	since := hidden
	if o.read != 0 {
		since = min(o.read, before.clock) - o.slack
	}
	over := slices.Clone(o.owed)
	for id, w := range o.starts {
		_, open := inside.open[id]
		_, prepared := inside.prepared[id]
		if !open && !prepared {
			over = append(over, w...)
		}
	}
	next := &openTransactions{read: before.clock, slack: o.slack, reach: o.reach, starts: map[string][]window{}}
	for id, start := range before.open {
		switch known := o.starts[id]; {
		case known != nil:
			next.starts[id] = known
		case start != hidden:
			next.starts[id] = []window{{start, start}}
		default:
			next.starts[id] = []window{{since, before.clock}}
		}
	}
	for _, reading := range []*activity{before, inside} {
		for id, at := range reading.prepared {
			switch {
			case next.starts[id] != nil:
			case o.starts[id] != nil:
				next.starts[id] = o.starts[id]
			default:
				// A prepared transaction hides its start. It began after the
				// last poll, or was one of those open then that are no
				// longer.
				w := []window{{since, at}}
				for _, s := range over {
					if s.lo <= at {
						w = append(w, s)
					}
				}
				next.starts[id] = w
			}
		}
	}
	return o.stamped(over), next
}

// stamped widens the starts of ended transactions to the times their rows may
// carry. What came after the last poll is in the tail.
func (o *openTransactions) stamped(starts []window) []window {
	ws := slices.Clone(starts)
	for i, w := range ws {
		if w.lo != hidden {
			ws[i].hi = max(w.hi, min(w.hi+o.reach, o.read))
		}
	}
	return ws
}

// countEnded counts again where transactions started that have ended since
// the last poll.
func (l *ledger) countEnded(ctx context.Context, q *recounter) (*openTransactions, error) {
	r := q.reading
	over, next := l.open.ended(r.before, r.inside)
	if len(r.inside.prepared) > 0 {
		r.reasons[ReasonPrepared] = true
	}
	if !r.session.ReadAllStats {
		r.reasons[ReasonRole] = true
	}
	for _, w := range mergeWindows(over, l.width) {
		if w.lo == hidden {
			// It was open before we first looked: nobody can say since when.
			l.suspects.doubt(cells.MinTime, cells.MaxTime, ReasonUnexplained, false, false)
			continue
		}
		err := q.recount(ctx, w.lo, w.hi)
		if timedOut(err) {
			l.suspects.doubt(w.lo, w.hi, ReasonCatchingUp, false, true)
			r.reasons[ReasonCatchingUp] = true
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return next, nil
}

// mergeWindows widens windows to whole buckets and joins those that touch.
// Those of unknown start stay by themselves.
func mergeWindows(ws []window, width int64) []window {
	ws = slices.Clone(ws)
	for i, w := range ws {
		if w.lo != hidden {
			ws[i] = window{cells.Floor(w.lo, width), cells.Ceil(w.hi+1, width)}
		}
	}
	slices.SortFunc(ws, func(a, b window) int { return cmp.Compare(a.lo, b.lo) })
	var merged []window
	for _, w := range ws {
		if n := len(merged); n > 0 && merged[n-1].lo != hidden && w.lo <= merged[n-1].hi {
			merged[n-1].hi = max(merged[n-1].hi, w.hi)
			continue
		}
		merged = append(merged, w)
	}
	return merged
}
