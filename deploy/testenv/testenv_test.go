package testenv_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestPostgresGivesEachTestADatabaseOfItsOwn(t *testing.T) {
	ctx := context.Background()
	for _, dsn := range []string{testenv.Postgres(t), testenv.Postgres(t)} {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "CREATE TABLE only_here (id int)"); err != nil {
			t.Error(err)
		}
		if err := conn.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestServerSurvivesACrashWithItsData(t *testing.T) {
	ctx := context.Background()
	s := testenv.PostgresServer(t, pgserver.Options{Config: map[string]string{"work_mem": "5MB"}})
	query := func(sql string) string {
		t.Helper()
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		var got string
		if err := conn.QueryRow(ctx, sql).Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := query("SHOW work_mem"); got != "5MB" {
		t.Errorf("work_mem = %s, want 5MB", got)
	}
	if err := s.CreateDatabase(ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(ctx, pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	if got := query("SELECT datname::text FROM pg_database WHERE datname = 'kept'"); got != "kept" {
		t.Errorf("after the crash: %q, want kept", got)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	s, err := pgserver.Start(context.Background(), pgserver.Options{})
	if err != nil {
		testenv.Missing(t, "PostgreSQL", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", s.Dir, err)
	}
}
