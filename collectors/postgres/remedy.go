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
