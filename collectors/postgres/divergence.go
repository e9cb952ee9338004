package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
)

// A marker and its effect are written in one transaction. That the two tables
// hold equally many rows proves little: with every other effect on a
// connection of its own both counts are the same. So each marker of a closed
// minute is joined with its effect, and the transactions are compared: by a
// column that holds pg_current_xact_id(), else by the two rows' now().

// markersSQL joins the markers of a range with their effects, by index.
const markersSQL = `SELECT date_bin('1 minute', m.%[1]s, %[2]s)%[10]s, %[3]s, count(*) FILTER (WHERE e.found IS NULL), count(*) FILTER (WHERE NOT e.same)
FROM %[4]s m LEFT JOIN LATERAL (SELECT true AS found, %[5]s AS same FROM %[6]s x WHERE x.%[7]s = %[8]s HAVING count(*) > 0) e ON true
WHERE %[9]s GROUP BY 1, 2`

// effectsSQL finds the effects of a range that have no marker.
const effectsSQL = `SELECT date_bin('1 minute', x.%[1]s, %[2]s)%[8]s, %[3]s, count(*), 0
FROM %[4]s x WHERE %[5]s AND NOT EXISTS (SELECT 1 FROM %[6]s m WHERE %[7]s) GROUP BY 1, 2`

// differenceSQL compares mere counts, where the effects carry no event id.
const differenceSQL = `SELECT date_bin('1 minute', at, %[1]s)%[9]s, %[2]s, sum(n)::bigint, 0 FROM (
  SELECT m.%[3]s AS at, 1 AS n FROM %[4]s m WHERE %[5]s
  UNION ALL SELECT x.%[6]s, -1 FROM %[7]s x WHERE %[8]s) both_sides GROUP BY 1, 2`

var divergentDesc = prometheus.NewDesc("processed_events_divergent_rows",
	"Rows of the closed minutes of the window where marker and effect do not belong together. Absent without postgres.effect.table.",
	[]string{"database", "consumer_group", "kind"}, nil)

// The kinds of divergence.
const (
	MarkerWithoutEffect  = "marker_without_effect"
	EffectWithoutMarker  = "effect_without_marker"
	DifferentTransaction = "different_transaction"
	CountDifference      = "count_difference"
)

// compareTimeout bounds a statement of a comparison, which takes two of them:
// both after a spent budget still end the snapshot within a second.
const compareTimeout = 250 * time.Millisecond

// closedAfter is how old a minute must be to be compared.
const closedAfter = cells.Minute

// Divergence is what one poll knows of markers and effects that do not belong
// together. Nothing in it changes.
type Divergence struct {
	Database string
	// Effects is the effect table's name.
	Effects string
	// Rows holds what was compared, 0 where nothing diverges; what could not
	// be compared is absent.
	Rows []Diverging
	// Compared says how much of the window has been compared, 0 to 1.
	Compared float64
	problems []poll.Problem
}

// Diverging is the number of rows of one kind.
type Diverging struct {
	Group, Kind string
	Rows        int64
}

// divergence is a poll.Source.
type divergence struct {
	store *Store
	// minutes holds what was found, and from where minutes are yet to be
	// compared.
	minutes map[int64]map[divergingKey]int64
	next    int64
	span    int64 // of the next comparison
	groups  map[string]bool
}

type divergingKey struct{ group, kind string }

// Divergence is the source that compares markers with effects. Its snapshots
// are *Divergence. Nil where no effect table is configured.
func (s *Store) Divergence() poll.Source {
	if s.cfg.Effect.Table == "" {
		return nil
	}
	return &divergence{store: s, minutes: map[int64]map[divergingKey]int64{}, span: 5 * cells.Minute, groups: map[string]bool{}}
}

// Describe implements poll.Source.
func (*divergence) Describe(ch chan<- *prometheus.Desc) { ch <- divergentDesc }

// Poll implements poll.Source.
func (d *divergence) Poll(ctx context.Context) (poll.Snapshot, error) {
	s := d.store
	out := &Divergence{Effects: s.cfg.Effect.Table}
	var in *session
	var e *effects
	// The catalogue is read in a snapshot of its own: it may take its time.
	err := s.inSnapshot(ctx, bounds{}, func(conn *transaction) (err error) {
		if in, _, err = s.discover(ctx, conn); err != nil {
			return err
		}
		e, err = s.effects(ctx, conn, in)
		return err
	})
	if err != nil {
		return nil, explain("compare "+s.cfg.Table+" with "+s.cfg.Effect.Table, err)
	}
	d.fill(out, cmp.Or(s.cfg.Database, in.Database), e)
	until := time.Now().Add(time.Second)
	for more := true; more && time.Now().Before(until); {
		err := s.inSnapshot(ctx, bounds{statement: compareTimeout}, func(conn *transaction) (err error) {
			more, err = d.step(ctx, conn, in, e, out)
			return err
		})
		if timedOut(err) && d.span > cells.Minute {
			d.span = max(cells.Floor(d.span/4, cells.Minute), cells.Minute)
			continue
		}
		if err != nil {
			return nil, explain("compare "+s.cfg.Table+" with "+s.cfg.Effect.Table, err)
		}
	}
	return out, nil
}

// step compares the next minutes, and again those where something diverged: a
// repair shows.
func (d *divergence) step(ctx context.Context, conn *transaction, in *session, e *effects, out *Divergence) (more bool, err error) {
	began := time.Now()
	a, err := readActivity(ctx, conn, newCounter(in.Table), in)
	if err != nil {
		return false, err
	}
	end := cells.Floor(a.clock-closedAfter, cells.Minute)
	start := cells.Floor(end-d.store.cfg.Effect.Window.Microseconds(), cells.Minute)
	for at := range d.minutes {
		if at < start {
			delete(d.minutes, at)
		}
	}
	if d.next > end+cells.Minute { // the clock jumped back
		d.next = start
	}
	d.next = max(d.next, start)
	again := d.next
	if hi := min(d.next+d.span, end); hi > d.next {
		comparing := time.Now()
		if err := d.compare(ctx, conn, e, d.next, hi); err != nil {
			return false, err
		}
		d.next = hi
		d.span = min(max(cells.Floor(aim(d.span, 200*time.Millisecond, time.Since(comparing)), cells.Minute), cells.Minute), 6*cells.Hour)
	}
	// A map is walked in another order each time: every minute has its turn.
	for at, found := range d.minutes {
		if time.Since(began) > snapshotBudget {
			break
		}
		if len(found) > 0 && at < again {
			if err := d.compare(ctx, conn, e, at, at+cells.Minute); err != nil {
				return false, err
			}
		}
	}
	d.fill(out, cmp.Or(d.store.cfg.Database, in.Database), e)
	if end > start {
		out.Compared = float64(d.next-start) / float64(end-start)
	}
	return d.next < end, nil
}

// compare replaces what is known of the minutes of a range.
func (d *divergence) compare(ctx context.Context, conn *transaction, e *effects, lo, hi int64) error {
	found := map[int64]map[divergingKey]int64{}
	for _, q := range e.queries(lo, hi) {
		rows, err := conn.Query(ctx, q.sql)
		if err != nil {
			return err
		}
		var at pgtype.Timestamp
		var group string
		var first, second int64
		_, err = pgx.ForEachRow(rows, []any{&at, &group, &first, &second}, func() error {
			d.groups[group] = true
			t := at.Time.UnixMicro()
			if found[t] == nil {
				found[t] = map[divergingKey]int64{}
			}
			for i, n := range []int64{first, second} {
				if n != 0 && q.kinds[i] != "" {
					found[t][divergingKey{group, q.kinds[i]}] += max(n, -n)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for at := lo; at < hi; at += cells.Minute {
		delete(d.minutes, at)
	}
	for at, f := range found {
		d.minutes[at] = f
	}
	return nil
}

func (d *divergence) fill(out *Divergence, database string, e *effects) {
	out.Database, out.problems, out.Rows = database, e.problems, nil
	sum := map[divergingKey]int64{}
	d.groups[e.group] = true
	for group := range d.groups {
		for _, kind := range e.kinds {
			if group == "" && e.grouped && kind != EffectWithoutMarker && kind != CountDifference {
				continue // effects of no group in particular
			}
			if kind == EffectWithoutMarker && group != e.group {
				continue
			}
			sum[divergingKey{group, kind}] = 0
		}
	}
	for _, found := range d.minutes {
		for k, n := range found {
			sum[k] += n
		}
	}
	for k, n := range sum {
		out.Rows = append(out.Rows, Diverging{k.group, k.kind, n})
	}
	slices.SortFunc(out.Rows, func(a, b Diverging) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind))
	})
}

// effects knows how to compare.
type effects struct {
	group    string
	grouped  bool // the markers have groups
	kinds    []string
	problems []poll.Problem
	queries  func(lo, hi int64) []divergenceQuery
}

// divergenceQuery yields minute, group and the numbers of two kinds.
type divergenceQuery struct {
	sql   string
	kinds [2]string
}

// effects reads the effect table's structure and decides what can be
// compared.
func (s *Store) effects(ctx context.Context, conn *transaction, in *session) (*effects, error) {
	cfg, t := s.cfg.Effect, in.Table
	name, err := parseName(cfg.Table)
	if err != nil {
		return nil, err
	}
	var text string
	if err := conn.QueryRow(ctx, schemaSQL, name.Sanitize()).Scan(&text); err != nil {
		return nil, err
	}
	var other session
	if err := json.Unmarshal([]byte(text), &other); err != nil {
		return nil, fmt.Errorf("read the catalogue: %w", err)
	}
	x := other.Table
	if x == nil {
		return nil, absentTable(ctx, conn, in, name, cfg.Table, "postgres.effect.table")
	}
	e := &effects{group: cfg.Group, grouped: t.Has.Group != ""}
	problem := func(format string, args ...any) {
		err := fmt.Errorf("table "+x.String()+": "+format, args...)
		e.problems = append(e.problems, poll.Problem{Kind: "not_compared", Entity: "table " + x.String(), Err: err})
	}
	m := newCounter(t)
	if !t.Timed() {
		return nil, &poll.KindError{Kind: "unsupported", Err: fmt.Errorf("%s cannot be compared: its markers carry no time; leave out postgres.effect.table, or add the time", t)}
	}
	if t.TimeIndex == "" {
		return nil, &poll.KindError{Kind: "no_index", Err: fmt.Errorf("%s cannot be compared without an index that leads with %s", t, m.at)}
	}
	if m.epoch > 0 || m.ahead > 0 {
		return nil, &poll.KindError{Kind: "unsupported", Err: fmt.Errorf("%s cannot be compared: %s is no timestamp of the marker's transaction; leave out postgres.effect.table", t, m.at)}
	}
	at := func(alias, column string) *counter { return &counter{at: alias + "." + quote(column), zoned: m.zoned} }
	marker := at("m", t.Has.ProcessedAt)
	utc := ""
	if m.zoned {
		utc = " AT TIME ZONE 'UTC'"
	}
	mine := "" // the markers of the effects' group
	groupSQL := "''"
	if t.Has.Group != "" {
		groupSQL = "coalesce(m." + quote(t.Has.Group) + "::text, '')"
		if cfg.Group != "" {
			mine = " AND m." + quote(t.Has.Group) + "::text = " + literal(cfg.Group)
		}
	}
	timeOf := x.Column(cfg.Time)
	timed := timeOf != nil && timeOf.Type == t.Column(t.Has.ProcessedAt).Type && x.leads(cfg.Time)
	id := x.Column(cfg.EventID)
	if id == nil || t.Has.EventID == "" {
		if !timed {
			return nil, &poll.KindError{Kind: "missing", Err: errors.New("table " + x.String() + " has neither the event id nor an indexed time of the markers' type: set postgres.effect.event-id or postgres.effect.time")}
		}
		if mine == "" && t.Has.Group != "" && len(s.groups()) > 1 {
			problem("set postgres.effect.consumer-group: the marker table holds several groups")
		}
		e.kinds = []string{CountDifference}
		e.queries = func(lo, hi int64) []divergenceQuery {
			return []divergenceQuery{{fmt.Sprintf(differenceSQL, m.literal(0), literal(cfg.Group), quote(t.Has.ProcessedAt), t.sql(), marker.within(lo, hi)+mine,
				quote(cfg.Time), x.sql(), at("x", cfg.Time).within(lo, hi), utc), [2]string{CountDifference, ""}}}
		}
		return e, nil
	}
	if !x.leads(cfg.EventID) {
		return nil, &poll.KindError{Kind: "no_index", Err: fmt.Errorf("table %s has no index that leads with %s: %s", x, cfg.EventID, cmp.Or(x.CreateIndex(cfg.EventID), "name the table beneath"))}
	}
	e.kinds = []string{MarkerWithoutEffect}
	same := "true"
	switch {
	case cfg.TxID != absent && x.Column(cfg.TxID) != nil && t.Column(cfg.TxID) != nil:
		same = fmt.Sprintf("bool_and(x.%[1]s = m.%[1]s)", quote(cfg.TxID))
	case timeOf != nil && timeOf.Type == t.Column(t.Has.ProcessedAt).Type && transactionTime(timeOf) && transactionTime(t.Column(t.Has.ProcessedAt)):
		same = fmt.Sprintf("bool_and(x.%s = m.%s)", quote(cfg.Time), quote(t.Has.ProcessedAt))
	default:
		problem("the transactions cannot be compared: both tables need a column %s with pg_current_xact_id(), or a time of one type with DEFAULT now() (postgres.effect.time)", cfg.TxID)
	}
	if same != "true" {
		e.kinds = append(e.kinds, DifferentTransaction)
	}
	eventID, effectID := "m."+quote(t.Has.EventID), "x."+quote(cfg.EventID)
	if t.Column(t.Has.EventID).Type != id.Type {
		eventID += "::" + id.Type
		effectID += "::" + t.Column(t.Has.EventID).Type
	}
	// The key of the markers leads with the group: without it each effect
	// would search the whole key.
	groups := s.groups()
	if cfg.Group != "" {
		groups = []string{cfg.Group}
	}
	find := "m." + quote(t.Has.EventID) + " = " + effectID
	if t.Has.Group != "" && !t.leads(t.Has.EventID) {
		quoted := make([]string, len(groups))
		for i, g := range groups {
			quoted[i] = literal(g)
		}
		find = fmt.Sprintf("m.%s IN (%s) AND %s", quote(t.Has.Group), strings.Join(quoted, ", "), find)
	}
	backward := timed && (len(groups) > 0 || t.leads(t.Has.EventID))
	if backward {
		e.kinds = append(e.kinds, EffectWithoutMarker)
	} else if !timed {
		problem("effects without a marker are not looked for: %s needs an index and the markers' type (postgres.effect.time)", cfg.Time)
	}
	e.queries = func(lo, hi int64) []divergenceQuery {
		qs := []divergenceQuery{{fmt.Sprintf(markersSQL, quote(t.Has.ProcessedAt), m.literal(0), groupSQL, t.sql(), same, x.sql(), quote(cfg.EventID), eventID, marker.within(lo, hi)+mine, utc),
			[2]string{MarkerWithoutEffect, DifferentTransaction}}}
		if backward {
			qs = append(qs, divergenceQuery{fmt.Sprintf(effectsSQL, quote(cfg.Time), m.literal(0), literal(cfg.Group), x.sql(), at("x", cfg.Time).within(lo, hi), t.sql(), find, utc),
				[2]string{EffectWithoutMarker, ""}})
		}
		return qs
	}
	return e, nil
}

// groups are the consumer groups that the ledger has seen.
func (s *Store) groups() []string { return s.facts().groups }

// leads says whether a valid, whole index leads with a column.
func (t *Table) leads(column string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool {
		return i.Valid && !i.Partial && i.Method == "btree" && len(i.Columns) > 0 && i.Columns[0] == column
	})
}

// transactionTime says whether a column is filled with the start of its
// transaction.
func transactionTime(c *Column) bool {
	switch strings.ToLower(c.Default) {
	case "now()", "current_timestamp", "transaction_timestamp()", "localtimestamp":
		return true
	}
	return false
}

// literal quotes a string for SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'::text" }

// Problems implements poll.Snapshot.
func (d *Divergence) Problems() []poll.Problem { return d.problems }

// Collect implements poll.Snapshot.
func (d *Divergence) Collect(_ time.Time, ch chan<- prometheus.Metric) {
	for _, r := range d.Rows {
		poll.Gauge(ch, divergentDesc, float64(r.Rows), d.Database, r.Group, r.Kind)
	}
}
