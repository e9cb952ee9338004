package postgres

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"oncewatch/collectors/dbconn"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// extension makes an extension of a package.
func (b *bench) extension(name, schema, pkg string) {
	b.Helper()
	var there bool
	if err := b.conn.QueryRow(b.Context(), "SELECT EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = $1)", name).Scan(&there); err != nil {
		b.Fatal(err)
	}
	if !there {
		testenv.Missing(b, pkg, errors.New("the package is not installed"))
	}
	b.exec(fmt.Sprintf("CREATE SCHEMA IF NOT EXISTS %s; CREATE EXTENSION %s SCHEMA %s", schema, name, schema))
}

// pg_partman makes the days' partitions and drops those that are older than
// its retention: every poll is exact or flagged, and what was dropped is seen
// as pruned.
func TestPgPartmanDropsOldDays(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, `CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL,
	  "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE (processed_at); CREATE INDEX ON processed_events (processed_at)`)
	b.extension("pg_partman", "partman", "postgresql-15-partman")
	b.exec("SELECT partman.create_parent('public.processed_events', 'processed_at', 'native', 'daily', p_start_partition := (now() - interval '10 days')::text)")
	b.exec(`INSERT INTO processed_events SELECT 'g' || i % 2, 'e' || i, 't', 0, i, now() - i * interval '200 seconds' FROM generate_series(0, 3999) i`)
	b.large()
	b.until(10)
	before := b.pollExact().Rows()
	b.exec("UPDATE partman.part_config SET retention = '4 days', retention_keep_table = false, infinite_time_partitions = true")
	b.exec("CALL partman.run_maintenance_proc()")
	b.exec("SELECT partman.run_maintenance()")
	b.until(10)
	m := b.pollExact()
	if m.Rows() >= before || m.Rows() == 0 {
		t.Errorf("%d rows before the maintenance, %d after", before, m.Rows())
	}
	for _, g := range []string{"g0", "g1"} {
		s := m.find(g, "t")
		if age := m.Age(s.Oldest, m.ReadAt); age > 5*24*time.Hour+time.Minute || !s.Pruning || s.Pruned == 0 {
			t.Errorf("%s: oldest %s, %+v", g, age, s)
		}
	}
}

// The target of logical replication gets its markers when the subscription
// comes to them, with the times that they had at the source.
func TestLogicalReplicationsTarget(t *testing.T) {
	t.Parallel()
	config := map[string]string{"wal_level": "logical"}
	source, target := testenv.PostgresServer(t, pgserver.Options{Config: config}), testenv.PostgresServer(t, pgserver.Options{Config: config})
	from := dial(t, source.DSN("postgres"))
	run(t, from, runbookDDL)
	run(t, from, "CREATE PUBLICATION markers FOR TABLE processed_events")
	b := newBench(t, Config{Config: dbconn.To(target.DSN("postgres"))}, runbookDDL)
	b.exec(fmt.Sprintf("CREATE SUBSCRIPTION markers CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=postgres' PUBLICATION markers", source.Port))
	w := &workload{bench: b}
	written, deleted := 0, 0
	write := func(n int) {
		run(t, from, fmt.Sprintf(`INSERT INTO processed_events SELECT 'g' || i %% 2, 'e' || i, 't', 0, i FROM generate_series(%d, %d) i`, written, written+n-1))
		written += n
	}
	// arrived waits until the target has it all, and its tally tells of it.
	arrived := func() {
		t.Helper()
		w.await(b.conn, fmt.Sprintf("SELECT count(*) = %d FROM processed_events", written-deleted))
		w.await(b.conn, fmt.Sprintf("SELECT pg_stat_get_tuples_inserted(oid) >= %d AND pg_stat_get_tuples_deleted(oid) >= %d FROM pg_class WHERE relname = 'processed_events'", written, deleted))
	}
	write(500)
	arrived()
	b.large()
	b.until(10)
	for range 3 {
		write(100)
		arrived()
		b.until(10)
	}
	b.exec("ALTER SUBSCRIPTION markers DISABLE")
	// As if it had been away for an hour.
	run(t, from, `INSERT INTO processed_events SELECT 'g0', 'late' || i, 't', 0, i, now() - i * interval '12 seconds' FROM generate_series(1, 300) i`)
	written += 300
	run(t, from, "DELETE FROM processed_events WHERE event_id IN ('e1', 'e250', 'e499')")
	deleted += 3
	b.until(10)
	b.exec("ALTER SUBSCRIPTION markers ENABLE")
	arrived()
	b.until(10)
	if n := b.pollExact().Rows(); n != int64(written-deleted) {
		t.Errorf("%d rows, want %d", n, written-deleted)
	}
	b.exec("DROP SUBSCRIPTION markers")
}
