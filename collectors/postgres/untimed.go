package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/poll"
)

// untimedSQL counts the rows that are no markers yet: frameworks that write
// the time when the handler is through leave it empty until then. An index on
// the time finds them.
const untimedSQL = `SELECT coalesce(%s, ''), count(*) FROM %s WHERE %s IS NULL GROUP BY 1`

var untimedDesc = prometheus.NewDesc("processed_events_rows_without_time",
	"Rows whose time column is NULL: entries that never finished. They are not counted as markers. Absent where the column cannot be NULL.",
	[]string{"database", "consumer_group"}, nil)

// untimed are the rows without a time, by group.
type untimed struct {
	rows map[string]int64 // nil: not known
	next time.Time        // when they may be counted again
}

// countUntimed counts the rows without a time, as often as a small share of
// the time allows. Its failure is a problem and no error.
func (l *ledger) countUntimed(ctx context.Context, r *reading) {
	u := &l.untimed
	if !l.nullable() {
		u.rows = nil
		return
	}
	began := time.Now()
	if began.Before(u.next) {
		return
	}
	group := "NULL"
	if l.table.Has.Group != "" {
		group = quote(l.table.Has.Group) + "::text"
	}
	rows := map[string]int64{}
	err := l.store.inSnapshot(ctx, bounds{index: l.table.TimeIndex != ""}, func(conn *transaction) error {
		found, err := conn.Query(ctx, fmt.Sprintf(untimedSQL, group, l.table.sql(), l.count.at))
		if err != nil {
			return err
		}
		var g string
		var n int64
		_, err = pgx.ForEachRow(found, []any{&g, &n}, func() error { rows[g] = n; return nil })
		return err
	})
	u.next = began.Add(time.Duration(float64(time.Since(began)) / l.t.duty))
	if err != nil {
		u.rows = nil
		err = explain("rows of table "+l.table.String()+" without a time", err)
		r.problems = append(r.problems, poll.Problem{Kind: poll.Kind(err), Entity: "rows without a time of " + l.table.String(), Err: err})
		return
	}
	u.rows = rows
}

// of is the rows without a time of each group that is known; nil where they
// are not counted.
func (u *untimed) of(series []Series) map[string]int64 {
	if u.rows == nil {
		return nil
	}
	out := make(map[string]int64, len(u.rows))
	for _, s := range series {
		out[s.Group] = 0
	}
	for g, n := range u.rows {
		out[g] = n
	}
	return out
}
