package postgres

import (
	"fmt"
	"slices"
	"strings"
)

// CreateIndex is the statement that makes an index on columns of the table,
// as it can be run on it; empty for what can have none. It keeps no writer
// waiting, but on a partitioned table, where PostgreSQL offers nothing else in
// one statement.
func (t *Table) CreateIndex(columns ...string) string { return t.createIndex("INDEX", columns) }

// AddTime is the statement that gives the markers a time; empty for what is no
// table. It waits for the table's lock and holds it for a moment: a default that
// is the same for all rows is written to none of them (PostgreSQL 11). Markers
// that are there get the statement's time, so none is pruned too early.
func (t *Table) AddTime() string {
	if t.Kind != "r" && t.Kind != "p" {
		return ""
	}
	name := "processed_at"
	if t.Column(name) != nil {
		name = "marked_at"
	}
	return fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s timestamptz NOT NULL DEFAULT now()", t.sql(), quote(name))
}

// CreateUniqueIndex is the same for a unique index; empty, too, where the
// table is partitioned by a column that is none of them: no index of such a
// table can guarantee it.
func (t *Table) CreateUniqueIndex(columns ...string) string {
	if slices.ContainsFunc(t.PartitionColumns, func(c string) bool { return !slices.Contains(columns, c) }) {
		return ""
	}
	return t.createIndex("UNIQUE INDEX", columns)
}

func (t *Table) createIndex(kind string, columns []string) string {
	concurrently := " CONCURRENTLY"
	switch t.Kind {
	case "p":
		concurrently = ""
	case "r", "m":
	default: // a view, a foreign table
		return ""
	}
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = quote(c)
	}
	return fmt.Sprintf("CREATE %s%s ON %s (%s)", kind, concurrently, t.sql(), strings.Join(quoted, ", "))
}
