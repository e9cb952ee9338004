package checklist

import (
	"fmt"
	"regexp"
	"strings"

	"oncewatch/collectors/postgres"
)

var plainName = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)

// sqlName quotes a name for SQL where it may need that: no reserved word of
// PostgreSQL has an underscore but those of the current session.
func sqlName(name string) string {
	if name == "public" || plainName.MatchString(name) && !strings.HasPrefix(name, "current_") && !strings.HasPrefix(name, "session_") && name != "system_user" {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// sqlNames are names as a list of columns.
func sqlNames(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = sqlName(n)
	}
	return strings.Join(quoted, ", ")
}

// sqlIn is the name of something in a table's schema.
func sqlIn(t *postgres.Table, name string) string { return sqlName(t.Schema) + "." + sqlName(name) }

// alter sets storage parameters. PostgreSQL knows none of a partitioned table:
// its partitions have them.
func alter(t *postgres.Table, what string) string {
	if t.PartitionedBy == "" {
		return fmt.Sprintf("ALTER TABLE %s %s;", sqlIn(t, t.Name), what)
	}
	return fmt.Sprintf("DO $$ DECLARE leaf regclass; BEGIN FOR leaf IN SELECT relid FROM pg_partition_tree('%s') WHERE isleaf LOOP EXECUTE format('ALTER TABLE %%s %s', leaf); END LOOP; END $$;",
		strings.ReplaceAll(sqlIn(t, t.Name), "'", "''"), what)
}
