package checklist

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/postgres"
)

// sqlIn is the name of something in a table's schema.
func sqlIn(t *postgres.Table, name string) string {
	return pgx.Identifier{t.Schema, name}.Sanitize()
}

// alter sets storage parameters. PostgreSQL knows none of a partitioned table:
// its partitions have them.
func alter(t *postgres.Table, what string) string {
	if t.PartitionedBy == "" {
		return fmt.Sprintf("ALTER TABLE %s %s;", sqlIn(t, t.Name), what)
	}
	return fmt.Sprintf("DO $$ DECLARE leaf regclass; BEGIN FOR leaf IN SELECT relid FROM pg_partition_tree('%s') WHERE isleaf LOOP EXECUTE format('ALTER TABLE %%s %s', leaf); END LOOP; END $$;",
		strings.ReplaceAll(sqlIn(t, t.Name), "'", "''"), what)
}
