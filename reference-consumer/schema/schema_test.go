package schema

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// Several pods may migrate at once.
func TestMigrateConcurrently(t *testing.T) {
	for _, partitioned := range []bool{false, true} {
		dsn := testenv.Postgres(t)
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				if err := Migrate(t.Context(), dsn, Options{Partitioned: partitioned}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(t.Context(), conn); err != nil {
			t.Error(err)
		}
		var applied int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM schema_migrations").Scan(&applied); err != nil || applied != Version() {
			t.Errorf("%d migrations applied, want %d (%v)", applied, Version(), err)
		}
		_ = conn.Close(t.Context())
	}
}

// The columns of 002 arrive on a table that is already full without rewriting
// it.
func TestExpandDoesNotRewrite(t *testing.T) {
	dsn := testenv.Postgres(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"CREATE TABLE schema_migrations (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())",
		"INSERT INTO schema_migrations VALUES (1)", all[0].sql,
		`INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset") SELECT 'g', 'e' || g, 't', 0, g FROM generate_series(1, 1000) g`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	file := func() (node uint32) {
		if err := conn.QueryRow(t.Context(), "SELECT pg_relation_filenode('processed_events')").Scan(&node); err != nil {
			t.Fatal(err)
		}
		return node
	}
	before := file()
	if err := Migrate(t.Context(), dsn, Options{}); err != nil {
		t.Fatal(err)
	}
	if after := file(); after != before {
		t.Error("the migration rewrote the table")
	}
	var old, fresh int
	if _, err := conn.Exec(t.Context(), `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset") VALUES ('g', 'new', 't', 0, 0)`); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE txid IS NULL), count(*) FILTER (WHERE txid IS NOT NULL) FROM processed_events").Scan(&old, &fresh); err != nil || old != 1000 || fresh != 1 {
		t.Errorf("%d rows without txid, %d with, want 1,000 and 1 (%v)", old, fresh, err)
	}
}

func TestBounds(t *testing.T) {
	at := time.Date(2026, 8, 1, 12, 34, 56, 789_000_000, time.UTC)
	if got, ok := BoundTime(Bound(at)); !ok || !got.Equal(at) {
		t.Errorf("%v, want %v", got, at)
	}
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	made, ok := BoundTime(id.String())
	if !ok || time.Since(made).Abs() > time.Minute || Bound(made) > id.String() || Bound(made.Add(time.Millisecond)) <= id.String() {
		t.Errorf("id %s made at %v lies outside its millisecond", id, made)
	}
	if _, ok := BoundTime("evt-42"); ok {
		t.Error("evt-42 is no UUID")
	}
	p := PartitionAt(at, 24*time.Hour)
	if p.Name != "processed_events_20260801_000000" || !p.From.Equal(at.Truncate(24*time.Hour)) || p.To.Sub(p.From) != 24*time.Hour {
		t.Errorf("%+v", p)
	}
}
