package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/poll"
)

// sizesSQL reads the heap's sizes and the server's tally of each leaf; nothing
// of it reads the table.
const sizesSQL = `SELECT coalesce(sum(pg_table_size(oid)), 0)::bigint, coalesce(sum(pg_stat_get_dead_tuples(oid)), 0)::bigint,
  max(greatest(pg_stat_get_last_vacuum_time(oid), pg_stat_get_last_autovacuum_time(oid)))
FROM unnest(ARRAY[%s]::oid[]) oid`

// indexesSQL adds partitions' indexes up under the name of the parent's.
const indexesSQL = `WITH RECURSIVE up(leaf, idx) AS (
    SELECT indexrelid, indexrelid FROM pg_index WHERE indrelid = ANY (ARRAY[%s]::oid[])
    UNION ALL SELECT leaf, inhparent FROM up JOIN pg_inherits ON inhrelid = idx)
SELECT c.relname::text, sum(pg_relation_size(up.leaf))::bigint, bool_and(i.indisvalid)
FROM up JOIN pg_class c ON c.oid = up.idx JOIN pg_index i ON i.indexrelid = up.leaf
WHERE NOT EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = up.idx) GROUP BY 1 ORDER BY 1`

// horizonSQL tells for how long each kind of holder has kept vacuum from
// removing dead rows. A replication slot has no time, only its xmin.
const horizonSQL = `SELECT 'session', '', coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
  FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
UNION ALL SELECT 'prepared_transaction', '', max(extract(epoch FROM clock_timestamp() - prepared))::float8
  FROM pg_prepared_xacts WHERE database = current_database() HAVING count(*) > 0
UNION ALL SELECT 'replication_slot', slot_name || ' ' || xmin::text, 0 FROM pg_replication_slots WHERE xmin IS NOT NULL`

var (
	tableBytesDesc = prometheus.NewDesc("processed_events_table_bytes",
		"Size of the marker table without its indexes.", []string{"database"}, nil)
	indexBytesDesc = prometheus.NewDesc("processed_events_index_bytes",
		"Size of an index of the marker table.", []string{"database", "index"}, nil)
	deadRowsDesc = prometheus.NewDesc("processed_events_dead_rows",
		"Rows that vacuum has yet to remove, as the server estimates. Absent on a standby.", []string{"database"}, nil)
	lastVacuumDesc = prometheus.NewDesc("processed_events_last_vacuum_timestamp_seconds",
		"When the table, or the partition vacuumed last, was last vacuumed. Absent on a standby, and where it never was.", []string{"database"}, nil)
	bloatDesc = prometheus.NewDesc("processed_events_index_bloat_ratio",
		"Bytes of the index per marker over the least seen since the exporter started. Absent below 10,000 markers, and until these are counted.", []string{"database", "index"}, nil)
	horizonDesc = prometheus.NewDesc("processed_events_xmin_horizon_age_seconds",
		"How long a holder has kept vacuum from removing what was deleted since. Absent for holders that hold nothing, and without the rights of pg_read_all_stats.", []string{"database", "holder"}, nil)
)

// bloatRows is the least number of markers for which bytes per marker say
// anything: below, an index is mostly its first pages.
const bloatRows = 10_000

// TableHealth is what one poll knows of the table's storage. Nothing in it
// changes.
type TableHealth struct {
	Database string
	Table    *Table
	Bytes    int64
	Indexes  []IndexHealth
	// Standby says that the tally of dead rows and vacuums is not known here.
	Standby  bool
	DeadRows int64
	// LastVacuum is zero where the table never was vacuumed.
	LastVacuum time.Time
	// Autovacuum is when the table is vacuumed next by itself.
	Autovacuum Autovacuum
	// Holders keep vacuum from removing dead rows. Empty where the role may
	// not see them.
	Holders []Holder
}

// IndexHealth is one index, over all partitions.
type IndexHealth struct {
	Name  string
	Bytes int64
	// Valid is false for the remains of a failed CREATE INDEX CONCURRENTLY.
	Valid bool
	// Bloat is bytes per marker over the least seen; 0 where it is not known.
	Bloat float64
}

// Holder is what holds vacuum back: session, prepared_transaction or
// replication_slot.
type Holder struct {
	Kind string
	Age  time.Duration
}

// tableHealth is a poll.Source.
type tableHealth struct {
	store *Store
	least map[string]float64   // bytes per marker, by index
	slots map[string]time.Time // slot and xmin: since when they are seen
}

// TableHealth is the source of the table's storage. Its snapshots are
// *TableHealth.
func (s *Store) TableHealth() poll.Source {
	return &tableHealth{store: s, least: map[string]float64{}, slots: map[string]time.Time{}}
}

// Describe implements poll.Source.
func (h *tableHealth) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tableBytesDesc, indexBytesDesc, deadRowsDesc, lastVacuumDesc, bloatDesc, horizonDesc} {
		ch <- d
	}
}

// Poll implements poll.Source.
func (h *tableHealth) Poll(ctx context.Context) (poll.Snapshot, error) {
	s := h.store
	out := &TableHealth{}
	err := s.inSnapshot(ctx, bounds{}, func(conn *transaction) error {
		in, _, err := s.discover(ctx, conn)
		if err != nil {
			return err
		}
		out.Database, out.Table, out.Standby = cmp.Or(s.cfg.Database, in.Database), in.Table, in.Standby
		oids := in.Table.leafOIDs()
		var vacuum *time.Time
		if err := conn.QueryRow(ctx, fmt.Sprintf(sizesSQL, oids)).Scan(&out.Bytes, &out.DeadRows, &vacuum); err != nil {
			return err
		}
		if vacuum != nil {
			out.LastVacuum = *vacuum
		}
		if out.Autovacuum, err = readAutovacuum(ctx, conn, oids); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, fmt.Sprintf(indexesSQL, oids))
		if err != nil {
			return err
		}
		out.Indexes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (i IndexHealth, err error) {
			err = row.Scan(&i.Name, &i.Bytes, &i.Valid)
			return i, err
		})
		if err != nil || !in.ReadAllStats {
			return err
		}
		rows, err = conn.Query(ctx, horizonSQL)
		if err != nil {
			return err
		}
		out.Holders, err = h.holders(rows)
		return err
	})
	if err != nil {
		return nil, explain("table "+s.cfg.Table, err)
	}
	if n := s.facts().rows; n >= bloatRows {
		for i := range out.Indexes {
			x := &out.Indexes[i]
			each := float64(x.Bytes) / float64(n)
			if least, ok := h.least[x.Name]; !ok || each < least {
				h.least[x.Name] = each
			}
			x.Bloat = each / h.least[x.Name]
		}
	}
	return out, nil
}

// holders reads what holds vacuum back. A slot counts from when its xmin was
// first seen.
func (h *tableHealth) holders(rows pgx.Rows) ([]Holder, error) {
	defer rows.Close()
	seen, slots := map[string]time.Duration{}, map[string]time.Time{}
	now := h.store.now()
	for rows.Next() {
		var kind, slot string
		var seconds float64
		if err := rows.Scan(&kind, &slot, &seconds); err != nil {
			return nil, err
		}
		age := time.Duration(seconds * float64(time.Second))
		if slot != "" {
			since, ok := h.slots[slot]
			if !ok {
				since = now
			}
			slots[slot], age = since, now.Sub(since)
		}
		seen[kind] = max(seen[kind], age)
	}
	h.slots = slots
	var holders []Holder
	for _, kind := range sortedKeys(seen) {
		holders = append(holders, Holder{kind, seen[kind]})
	}
	return holders, rows.Err()
}

// leafOIDs is the list of the leaves' oids for SQL.
func (t *Table) leafOIDs() string {
	oids := make([]string, len(t.Leaves))
	for i, leaf := range t.Leaves {
		oids[i] = strconv.FormatUint(uint64(leaf.OID), 10)
	}
	return strings.Join(oids, ",")
}

// Problems implements poll.Snapshot.
func (*TableHealth) Problems() []poll.Problem { return nil }

// Collect implements poll.Snapshot.
func (h *TableHealth) Collect(_ time.Time, ch chan<- prometheus.Metric) {
	db := h.Database
	poll.Gauge(ch, tableBytesDesc, float64(h.Bytes), db)
	for _, i := range h.Indexes {
		poll.Gauge(ch, indexBytesDesc, float64(i.Bytes), db, i.Name)
		if i.Bloat > 0 {
			poll.Gauge(ch, bloatDesc, i.Bloat, db, i.Name)
		}
	}
	if !h.Standby {
		poll.Gauge(ch, deadRowsDesc, float64(h.DeadRows), db)
		if !h.LastVacuum.IsZero() {
			poll.Gauge(ch, lastVacuumDesc, float64(h.LastVacuum.UnixMicro())/1e6, db)
		}
	}
	for _, x := range h.Holders {
		poll.Gauge(ch, horizonDesc, x.Age.Seconds(), db, x.Kind)
	}
}
