package checklist_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/postgres"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// Each statement that is printed runs as it is printed, on a plain table, one
// whose names need quotes, and a partitioned one.
func TestPrintedSQLRuns(t *testing.T) {
	conn, err := pgx.Connect(context.Background(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	run := func(sql string) error {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	statement := regexp.MustCompile(`(?:CREATE|DROP|REINDEX|ALTER TABLE|SELECT|SHOW) [^;]*;|DO \$\$.*?\$\$;`)
	for name, c := range map[string]struct {
		ddl, schema, table, group, at, partitioned string
	}{
		"plain":       {`CREATE TABLE processed_events (consumer_group text, event_id text, processed_at timestamptz); CREATE INDEX by_time ON processed_events (processed_at)`, "public", "processed_events", "consumer_group", "processed_at", ""},
		"quoted":      {`CREATE SCHEMA "My App"; CREATE TABLE "My App"."order" ("group" text, event_id text, "At" timestamptz); CREATE INDEX by_time ON "My App"."order" ("At")`, "My App", "order", "group", "At", ""},
		"partitioned": {`CREATE TABLE parted_events (consumer_group text, event_id text, processed_at timestamptz) PARTITION BY RANGE (event_id); CREATE TABLE parted_1 PARTITION OF parted_events FOR VALUES FROM ('a') TO ('b'); CREATE INDEX by_time_parted ON parted_events (processed_at)`, "public", "parted_events", "consumer_group", "processed_at", "RANGE (event_id)"},
	} {
		if err := run(c.ddl); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w := healthy()
		w.table.Schema, w.table.Name, w.table.PartitionedBy = c.schema, c.table, c.partitioned
		w.table.Has.Group, w.table.Has.ProcessedAt, w.table.TimeIndex = c.group, c.at, ""
		index := "by_time"
		if c.partitioned != "" {
			w.table.Kind, w.table.PartitionColumns, index = "p", []string{"event_id"}, "by_time_parted"
		}
		w.table.Indexes = []postgres.Index{{Name: "gone", Columns: []string{c.at}}}
		w.health.Indexes[0].Name, w.health.Indexes[0].Bloat = index, 3
		w.health.DeadRows, w.health.Autovacuum.DeadRows, w.series.LastDay = 1e6, 1e9, 1e6
		ran := 0
		for _, off := range []bool{false, true} {
			w.health.Autovacuum.Off = off
			w.health.Holders = []postgres.Holder{{Kind: []string{"session", "replication_slot"}[ran%2], Age: 10 * day}}
			for _, l := range w.lines() {
				for _, sql := range statement.FindAllString(strings.Join(append(l.Evidence, l.Remedy), " "), -1) {
					if strings.HasPrefix(sql, "DROP") {
						continue // of an index that this test has not got
					}
					ran++
					if err := run(sql); err != nil {
						t.Errorf("%s: %s prints %s\n%v", name, l.Rule, sql, err)
					}
				}
			}
		}
		if ran < 8 {
			t.Errorf("%s: only %d statements were printed", name, ran)
		}
	}
}
