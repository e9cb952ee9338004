package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The server's own tally of inserted and deleted rows lags (a session reports
// up to some seconds late) and counts what was rolled back, so it is no count.
// But it never runs ahead: where it has seen more come or go than the ledger,
// the ledger has missed something, and the scrub hurries.

const statsSQL = `SELECT oid::bigint, coalesce(pg_relation_filenode(oid), 0)::bigint,
  pg_stat_get_live_tuples(oid), pg_stat_get_tuples_deleted(oid),
  pg_stat_get_vacuum_count(oid) + pg_stat_get_autovacuum_count(oid) + pg_stat_get_analyze_count(oid) + pg_stat_get_autoanalyze_count(oid)
FROM unnest(ARRAY[%s]::oid[]) oid`

// leafStats is the server's tally of a table that holds rows.
type leafStats struct {
	oid, file     int64
	live, deleted int64
	rewritten     int64 // how often vacuum or analyze replaced live by an estimate
}

func readStats(ctx context.Context, conn *pgx.Conn, in *session) ([]leafStats, error) {
	if in.Standby || len(in.Table.Leaves) == 0 {
		return nil, nil // a standby knows nothing of the primary's tally
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(statsSQL, in.Table.leafOIDs()))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s leafStats, err error) {
		err = row.Scan(&s.oid, &s.file, &s.live, &s.deleted, &s.rewritten)
		return s, err
	})
}

// tally compares the server's and the ledger's sums of what came and went.
type tally struct {
	leaves map[int64]leafStats
	// server's and ledger's sums since the start
	serverInserted, serverPruned int64
	inserted, pruned             int64
	// what the ledger saw at this poll and the one before: the server's tally
	// may not have it yet.
	lastInserted, lastPruned [2]int64
	// the excess of the server over the ledger that means nothing
	baseInserted, basePruned int64
}

// rebase takes the present excess as meaning nothing.
func (t *tally) rebase() {
	t.baseInserted, t.basePruned = t.serverInserted-t.inserted, t.serverPruned-t.pruned
}

// excess says whether the server has seen more rows come or go than the
// ledger.
func (t *tally) excess(stats []leafStats) bool {
	now := map[int64]leafStats{}
	reset := t.leaves == nil || len(stats) != len(t.leaves)
	for _, s := range stats {
		now[s.oid] = s
		was, ok := t.leaves[s.oid]
		if !ok || was.file != s.file || was.rewritten != s.rewritten || s.deleted < was.deleted {
			reset = true // created, truncated, vacuumed, or the statistics were reset
			continue
		}
		gone := s.deleted - was.deleted
		t.serverPruned += gone
		t.serverInserted += s.live - was.live + gone
	}
	t.leaves = now
	t.lastInserted = [2]int64{t.inserted, t.lastInserted[0]}
	t.lastPruned = [2]int64{t.pruned, t.lastPruned[0]}
	inserted, pruned := t.serverInserted-t.inserted, t.serverPruned-t.pruned
	if reset {
		t.rebase()
		return false
	}
	if inserted > t.baseInserted+t.lastInserted[0]-t.lastInserted[1] || pruned > t.basePruned+t.lastPruned[0]-t.lastPruned[1] {
		return true
	}
	t.baseInserted, t.basePruned = max(t.baseInserted, inserted), max(t.basePruned, pruned)
	return false
}

// suspect brings the scrub forward where the server has seen more than the
// ledger.
func (l *ledger) suspect(r *reading) {
	if r.session.Standby {
		r.reasons[ReasonStandby] = true
		return
	}
	switch excess := l.tally.excess(r.stats); {
	case l.backfill.active || time.Since(l.backfill.ended) < l.t.settle:
		l.tally.rebase() // sessions still report what the backfill has counted
	case r.reasons[ReasonCatchingUp]: // known to be behind
	case excess && !l.scrub.fast:
		l.scrub.hurry()
	}
}
