package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/poll"
)

// Delivery is a record as the broker has it.
type Delivery struct {
	EventID   string
	Partition int32
	Offset    int64
	// PayloadHash is the first eight bytes of the value's SHA-256, big endian,
	// as the reference consumer keeps it; 0 where nobody compares it.
	PayloadHash int64
}

// Finding is what the marker table says of a delivery that is not plainly
// marked: where it is silent, there is a marker of this very record.
type Finding struct {
	// Delivery is its number in the list that was asked for.
	Delivery int
	// Marked says that there is a marker of the event. The rest is of that
	// marker.
	Marked bool
	// Elsewhere says that it is of another record: the event was published
	// more than once. Topic is empty where the table has no such column.
	Elsewhere bool
	Topic     string
	Partition int32
	Offset    int64
	// OtherPayload says that its payload was another.
	OtherPayload bool
}

// Lookup finds the markers of a consumer group by event id: thousands in one
// statement, on the key that makes them unique, one statement at a time.
type Lookup struct {
	store    *Store
	group    string
	database string
	table    *Table
	uuids    bool
	key      []string
	bounds   bounds
	hash     string
	size     int
	largest  int

	// How many there were, and the longest of them.
	statements int
	longest    time.Duration
}

// Of a statement: it starts small and grows while it takes far less than its
// timeout.
const (
	lookupStart = 1000
	lookupMost  = 5000
	lookupLeast = 20
)

// hashColumn is where the reference consumer keeps the payload's hash.
const hashColumn = "payload_hash"

// Lookup prepares to look up a group's markers. It fails where the table has no
// unique key that holds the event id: its markers then guard nothing.
func (s *Store) Lookup(ctx context.Context, group string) (*Lookup, error) {
	l := &Lookup{store: s, group: group, size: lookupStart, largest: lookupMost}
	var limit int64
	err := s.inSnapshot(ctx, bounds{}, func(conn *transaction) error {
		session, _, err := s.discover(ctx, conn)
		if err != nil {
			return err
		}
		l.table, l.database = session.Table, cmp.Or(s.cfg.Database, session.Database)
		return conn.QueryRow(ctx, `SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout'`).Scan(&limit)
	})
	if err != nil {
		return nil, explain("table "+s.cfg.Table, err)
	}
	l.bounds.statement = statementTimeout
	if limit > 0 { // the role's own
		l.bounds.statement = min(l.bounds.statement, time.Duration(limit)*time.Millisecond)
	}
	has := l.table.Has
	if has.EventID == "" {
		return nil, &poll.KindError{Kind: "missing", Err: fmt.Errorf("table %s has no event id to look for: set postgres.column.event-id to one of %s", l.table, l.table.columnNames())}
	}
	mayHold := []string{has.Group, has.EventID, has.Topic}
	for _, i := range l.table.Indexes {
		within := !slices.ContainsFunc(i.Columns, func(c string) bool { return c == "" || !slices.Contains(mayHold, c) })
		if i.Unique && i.Valid && !i.Partial && within && slices.Contains(i.Columns, has.EventID) && (l.key == nil || len(i.Columns) < len(l.key)) {
			l.key = i.Columns
		}
	}
	if l.key == nil {
		return nil, &poll.KindError{Kind: "missing", Err: fmt.Errorf("table %s has no valid unique index on (%s, %s): its markers stop no event from being applied twice, so nothing can be told by them; see oncewatch check",
			l.table, has.Group, has.EventID)}
	}
	l.uuids = l.table.Column(has.EventID).Type == "uuid"
	if c := l.table.Column(hashColumn); c != nil && c.Type == "bigint" && c.Readable {
		l.hash = quote(hashColumn)
	}
	return l, nil
}

// Table is the table that is looked at.
func (l *Lookup) Table() *Table { return l.table }

// ComparesPayloads says whether the table keeps the payload's hash.
func (l *Lookup) ComparesPayloads() bool { return l.hash != "" }

// Takes says whether a text can be an event id of the table.
func (l *Lookup) Takes(id string) bool {
	if strings.ContainsRune(id, 0) {
		return false
	}
	return !l.uuids || uuid.Validate(id) == nil
}

// sql looks deliveries up: $1 group, $2 topic, $3 event ids, $4 partitions, $5
// offsets, $6 hashes.
func (l *Lookup) sql() string {
	has := l.table.Has
	on := make([]string, 0, len(l.key))
	for _, c := range l.key {
		of := map[string]string{has.Group: "$1::text::", has.Topic: "$2::text::", has.EventID: "r.id::"}[c]
		on = append(on, "m."+quote(c)+" = "+of+l.table.Column(c).Type)
	}
	null := func(column, kind string) string {
		if column == "" {
			return "NULL::" + kind
		}
		return "m." + quote(column) + "::" + kind
	}
	topic, partition, offset, hash := null(has.Topic, "text"), null(has.Partition, "int"), null(has.Offset, "bigint"), "NULL::bigint"
	if l.hash != "" {
		hash = "m." + l.hash
	}
	return `SELECT r.n - 1, found.is, coalesce(found.elsewhere, false), coalesce(found.topic, ''), coalesce(found.part, -1), coalesce(found.off, -1), coalesce(found.other, false)
FROM unnest($3::text[], $4::int[], $5::bigint[], $6::bigint[]) WITH ORDINALITY AS r(id, part, off, hash, n)
LEFT JOIN ` + l.table.sql() + ` m ON ` + strings.Join(on, " AND ") + `
CROSS JOIN LATERAL (SELECT m.` + quote(has.EventID) + ` IS NOT NULL AS is, ` + topic + ` AS topic, ` + partition + ` AS part, ` + offset + ` AS off,
  ` + topic + ` <> $2 OR ` + partition + ` <> r.part OR ` + offset + ` <> r.off AS elsewhere, ` + hash + ` <> r.hash AS other) found
WHERE NOT found.is OR found.elsewhere OR found.other`
}

// Find looks the deliveries of one topic up.
func (l *Lookup) Find(ctx context.Context, topic string, deliveries []Delivery) ([]Finding, error) {
	var out []Finding
	sql, failures := l.sql(), 0
	for from := 0; from < len(deliveries); {
		some := deliveries[from:min(len(deliveries), from+l.size)]
		found, err := l.find(ctx, sql, topic, some)
		switch {
		case timedOut(err) && l.size > lookupLeast && ctx.Err() == nil:
			l.size = max(lookupLeast, l.size/4) // what was read stays in memory: the next goes better
			l.largest = max(lookupLeast, l.size*2)
			continue
		case err != nil && failures < 3 && ctx.Err() == nil && passing(err):
			failures++
			select {
			case <-time.After(time.Duration(failures) * time.Second):
			case <-ctx.Done():
			}
			continue
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, explain("table "+l.store.cfg.Table, err)
		}
		failures = 0
		for _, f := range found {
			f.Delivery += from
			out = append(out, f)
		}
		from += len(some)
	}
	return out, nil
}

// passing says whether an error may be gone in a second.
func passing(err error) bool {
	var known *poll.KindError
	kind := ""
	if errors.As(explain("", err), &known) {
		kind = known.Kind
	}
	return slices.Contains([]string{"timeout", "unreachable", "conflict"}, kind)
}

// find is one statement.
func (l *Lookup) find(ctx context.Context, sql, topic string, some []Delivery) (out []Finding, err error) {
	ids, partitions, offsets, hashes := make([]string, len(some)), make([]int32, len(some)), make([]int64, len(some)), make([]int64, len(some))
	for i, d := range some {
		ids[i], partitions[i], offsets[i], hashes[i] = d.EventID, d.Partition, d.Offset, d.PayloadHash
	}
	began := time.Now()
	err = l.store.inSnapshot(ctx, l.bounds, func(conn *transaction) error {
		// By the key, whatever the planner knows of the table.
		if _, err := conn.Exec(ctx, "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, sql, l.group, topic, ids, partitions, offsets, hashes)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f Finding, err error) {
			err = row.Scan(&f.Delivery, &f.Marked, &f.Elsewhere, &f.Topic, &f.Partition, &f.Offset, &f.OtherPayload)
			return f, err
		})
		return err
	})
	took := time.Since(began)
	if l.statements++; err == nil {
		l.longest = max(l.longest, took)
	}
	switch {
	case took > l.bounds.statement/3:
		l.size = max(lookupLeast, l.size/2)
	case took < l.bounds.statement/6 && len(some) == l.size:
		l.size = min(l.largest, l.size*2)
	}
	return out, err
}

// KeepsOffsets says whether the table tells of which record a marker is.
func (l *Lookup) KeepsOffsets() bool { return l.table.Has.Partition != "" && l.table.Has.Offset != "" }

// Cost is how many statements there were, and how long the longest took.
func (l *Lookup) Cost() (statements int, longest time.Duration) { return l.statements, l.longest }

// Any says whether there is any marker of the group. Where that takes too long
// to find out, there may be.
func (l *Lookup) Any(ctx context.Context) (any bool, err error) {
	group := l.table.Has.Group
	if group == "" {
		return true, nil
	}
	err = l.store.inSnapshot(ctx, l.bounds, func(conn *transaction) error {
		return conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM `+l.table.sql()+` WHERE `+quote(group)+` = $1::text::`+l.table.Column(group).Type+`)`, l.group).Scan(&any)
	})
	if timedOut(err) {
		return true, nil
	}
	return any, explain("table "+l.store.cfg.Table, err)
}

// Database is the value of the store's label.
func (l *Lookup) Database() string { return l.database }
