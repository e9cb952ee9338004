package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"oncewatch/collectors/postgres/cells"
)

// countSQL counts a range of times by bucket, series and partition. All that
// varies is built from the catalogue and from numbers, never from input. It
// groups by the bare columns and casts only what it returns.
const countSQL = `SELECT %s, %s, count(*), %s FROM %s WHERE %s GROUP BY %s%s`

// counter builds the statements for one table.
type counter struct {
	from  string // the table
	at    string // the time column, quoted; -infinity where there is none
	key   string // what a cell is of: group, topic, partition
	sums  string // oldest, newest, lowest and highest offset
	by    string // the key's columns, each preceded by a comma
	zoned bool   // timestamptz
	epoch epoch  // a number since 1970 instead
	ahead int64  // how far the column lies ahead of the ledger's time
}

func newCounter(t *Table) *counter {
	c := &counter{from: t.sql(), at: quote(t.Has.ProcessedAt), zoned: !t.Zoneless, epoch: t.Epoch, ahead: t.Ahead}
	if !t.Timed() {
		c.at, c.zoned, c.epoch, c.ahead = "'-infinity'::timestamptz", true, 0, 0
	}
	var by strings.Builder
	column := func(name, cast, none string) string {
		if name == "" {
			return none
		}
		by.WriteString(", " + quote(name))
		return quote(name) + cast
	}
	group := column(t.Has.Group, "::text", "NULL")
	topic := column(t.Has.Topic, "::text", "NULL")
	partition, offset := "NULL::bigint", "NULL::bigint"
	if t.Has.Partition != "" && t.Has.Offset != "" {
		partition, offset = column(t.Has.Partition, "::bigint", ""), quote(t.Has.Offset)
	}
	c.key = fmt.Sprintf("coalesce(%s, ''), coalesce(%s, ''), %s", group, topic, partition)
	c.sums = fmt.Sprintf("%s, %s, min(%s)::bigint, max(%s)::bigint", c.raw("min("+c.at+")"), c.raw("max("+c.at+")"), offset, offset)
	c.by = by.String()
	return c
}

// literal writes a time as the column's type. The statement's text varies, so
// that the planner sees the value and prunes partitions.
func (c *counter) literal(t int64) string {
	if t > cells.MinTime && t <= lastTime {
		t += c.ahead
	}
	if c.epoch > 0 {
		return c.epoch.literal(t)
	}
	kind := "TIMESTAMP"
	if c.zoned {
		kind = "TIMESTAMPTZ"
	}
	switch u := time.UnixMicro(max(t, firstTime)).UTC(); {
	case t == cells.MinTime:
		return kind + " '-infinity'"
	case t > lastTime:
		return kind + " 'infinity'"
	case u.Year() <= 0:
		return fmt.Sprintf("%s '%04d-%s+00 BC'", kind, 1-u.Year(), u.Format("01-02 15:04:05.000000"))
	default:
		return fmt.Sprintf("%s '%04d-%s+00'", kind, u.Year(), u.Format("01-02 15:04:05.000000"))
	}
}

// The first and last finite times of the ledger: those of PostgreSQL, but for
// its last 29 years, which microseconds since 1970 cannot hold.
var (
	firstTime = cells.Floor(time.Date(-4712, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), 24*cells.Hour)
	lastTime  = time.Date(294247, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
)

// within is the condition lo <= time < hi.
func (c *counter) within(lo, hi int64) string {
	var conds []string
	if lo > cells.MinTime {
		conds = append(conds, c.at+" >= "+c.literal(lo))
	}
	if hi < cells.MaxTime {
		conds = append(conds, c.at+" < "+c.literal(hi))
	}
	if len(conds) == 0 {
		return c.at + " IS NOT NULL"
	}
	return strings.Join(conds, " AND ")
}

// raw is an expression of the column's type as timestamptz in the ledger's
// time, whatever the session's zone.
func (c *counter) raw(expr string) string {
	switch {
	case c.epoch > 0:
		expr = c.epoch.timestamp(expr)
	case !c.zoned:
		expr = "(" + expr + ") AT TIME ZONE 'UTC'"
	}
	if c.ahead > 0 {
		return fmt.Sprintf("(%s) - interval '%d microseconds'", expr, c.ahead)
	}
	return expr
}

func (c *counter) bin(width int64) string {
	if c.epoch > 0 {
		return c.epoch.bin(width, c.at, c.ahead)
	}
	return fmt.Sprintf("date_bin('%d microseconds', %s, %s)", width, c.at, c.literal(0))
}

// count counts a range in buckets of the given width. The range's ends must be
// borders of such buckets (or no bound).
func (c *counter) count(ctx context.Context, conn *transaction, lo, hi, width int64, intern func(group, topic string) int32) ([]*cells.Bucket, error) {
	return c.countWhere(ctx, conn, c.within(lo, hi), width, intern)
}

func (c *counter) countWhere(ctx context.Context, conn *transaction, where string, width int64, intern func(group, topic string) int32) ([]*cells.Bucket, error) {
	sql := fmt.Sprintf(countSQL, c.raw(c.bin(width)), c.key, c.sums, c.from, where, c.bin(width), c.by)
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return collect(rows, width, intern)
}

// countRanges counts several ranges, whose ends are borders of such buckets, in
// one statement.
func (c *counter) countRanges(ctx context.Context, conn *transaction, ranges []window, width int64, intern func(group, topic string) int32) ([]*cells.Bucket, error) {
	conds := make([]string, len(ranges))
	for i, w := range ranges {
		conds[i] = "(" + c.within(w.lo, w.hi) + ")"
	}
	return c.countWhere(ctx, conn, strings.Join(conds, " OR "), width, intern)
}

// collect reads a count's rows. It returns buckets only when it has seen all
// rows: a statement that fails at the fifth row has counted nothing.
func collect(rows pgx.Rows, width int64, intern func(group, topic string) int32) ([]*cells.Bucket, error) {
	byStart := map[int64]*cells.Bucket{}
	var (
		bin, oldest, newest       pgtype.Timestamptz
		group, topic              string
		partition, minOff, maxOff *int64
		n                         int64
	)
	for rows.Next() {
		if err := rows.Scan(&bin, &group, &topic, &partition, &n, &oldest, &newest, &minOff, &maxOff); err != nil {
			return nil, err
		}
		lo := micros(bin)
		b := byStart[lo]
		if b == nil {
			b = &cells.Bucket{Lo: lo, Hi: lo + width}
			if lo == cells.MinTime || lo == cells.MaxTime {
				b.Lo = min(lo, cells.MaxTime-1)
				b.Hi = b.Lo + 1
			}
			byStart[lo] = b
		}
		series := intern(group, topic)
		i := slices.IndexFunc(b.Cells, func(c cells.Cell) bool { return c.Series == series })
		if i < 0 {
			i = len(b.Cells)
			b.Cells = append(b.Cells, cells.Cell{Series: series, Min: cells.MaxTime, Max: cells.MinTime})
		}
		c := &b.Cells[i]
		c.Count += n
		c.Min, c.Max = min(c.Min, micros(oldest)), max(c.Max, micros(newest))
		if partition != nil && minOff != nil {
			c.Offsets = cells.AddOffsets(c.Offsets, cells.Offsets{Partition: *partition, Min: *minOff, Max: *maxOff, N: min(n, *maxOff-*minOff+1)})
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	buckets := make([]*cells.Bucket, 0, len(byStart))
	for _, b := range byStart {
		slices.SortFunc(b.Cells, func(x, y cells.Cell) int { return int(x.Series) - int(y.Series) })
		buckets = append(buckets, b)
	}
	slices.SortFunc(buckets, func(x, y *cells.Bucket) int {
		switch {
		case x.Lo < y.Lo:
			return -1
		case x.Lo > y.Lo:
			return 1
		}
		return 0
	})
	return buckets, nil
}

func micros(t pgtype.Timestamptz) int64 {
	switch t.InfinityModifier {
	case pgtype.Infinity:
		return cells.MaxTime
	case pgtype.NegativeInfinity:
		return cells.MinTime
	}
	if t.Time.Year() >= 294247 {
		return lastTime
	}
	return t.Time.UnixMicro()
}

// first finds the oldest row at or after lo and before hi: one probe of the
// index, in its order, and no walk over what was pruned below lo.
func (c *counter) first(ctx context.Context, conn *transaction, lo, hi int64) (int64, bool, error) {
	if err := conn.bound(ctx); err != nil {
		return 0, false, err
	}
	if _, err := conn.Exec(ctx, "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_indexscan = on"); err != nil {
		return 0, false, err
	}
	at, found, err := c.probe(ctx, conn, lo, hi)
	if err != nil {
		return 0, false, err
	}
	_, err = conn.Exec(ctx, "SET LOCAL enable_bitmapscan = on; SET LOCAL enable_indexscan = off")
	return at, found, err
}

func (c *counter) probe(ctx context.Context, conn *transaction, lo, hi int64) (int64, bool, error) {
	sql := fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT 1", c.raw(c.at), c.from, c.within(lo, hi), c.at)
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	found, at := false, int64(math.MinInt64)
	for rows.Next() {
		var t pgtype.Timestamptz
		if err := rows.Scan(&t); err != nil {
			return 0, false, err
		}
		found, at = true, micros(t)
	}
	return at, found, rows.Err()
}
