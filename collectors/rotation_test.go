package collectors_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// Secrets rotate while the exporter runs: a password in a file, in a passfile,
// in the connection string's file, and client and authority certificates. The
// next connection takes the new ones: nothing is restarted, at most one poll of
// a store fails, with one line.
func TestSecretsRotate(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{HBA: `
host    all postgres 127.0.0.1/32 trust
hostssl all by_cert  127.0.0.1/32 cert
host    all all      127.0.0.1/32 scram-sha-256
`})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(ctx) }()
	do := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roles := []string{"by_file", "by_passfile", "by_dsn", "by_cert"}
	for _, role := range roles {
		do("CREATE ROLE " + role + " LOGIN; GRANT pg_read_all_data, pg_read_all_stats TO " + role)
	}
	markerTable(t, server.DSN("postgres"), "processed_events")

	// onServer gives the server what it accepts, onClient the files what it
	// presents.
	onServer := func(generation string) *testenv.Authority {
		t.Helper()
		for _, role := range roles {
			do(fmt.Sprintf("ALTER ROLE %s PASSWORD 'hunter-%s'", role, generation))
		}
		ca := testenv.NewAuthority(t)
		ca.Sign("server")
		ca.Sign("by_cert")
		for setting, from := range map[string]string{"ssl_ca_file": ca.Path("authority", "crt"), "ssl_cert_file": ca.Path("server", "crt"), "ssl_key_file": ca.Path("server", "key")} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			path, err := server.WriteFile(setting, text)
			if err != nil {
				t.Fatal(err)
			}
			do("ALTER SYSTEM SET " + setting + " = '" + path + "'")
		}
		do("ALTER SYSTEM SET ssl = on")
		do("SELECT pg_reload_conf()")
		return ca
	}
	onClient := func(generation string, ca *testenv.Authority) {
		t.Helper()
		password := "hunter-" + generation
		write("password", password+"\n")
		write("passfile", "127.0.0.1:*:*:by_passfile:"+password+"\n")
		write("dsn", server.UserDSN("postgres", "by_dsn", password)+"\n")
		for name, from := range map[string]string{"root.crt": ca.Path("authority", "crt"), "client.crt": ca.Path("by_cert", "crt"), "client.key": ca.Path("by_cert", "key")} {
			if err := os.Rename(from, file(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	terminate := func() {
		t.Helper()
		do("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename LIKE 'by\\_%'")
	}
	onClient("one", onServer("one"))

	c := defaults(t)
	with := func(user, query string) string {
		u, err := url.Parse(server.UserDSN("postgres", user, ""))
		if err != nil {
			t.Fatal(err)
		}
		u.RawQuery = query
		return u.String()
	}
	c.Stores = stores(t, fmt.Sprintf(`
stores:
  - {database: by_file, dsn: %q, password-file: %q}
  - {database: by_passfile, dsn: %q}
  - {database: by_dsn, dsn-file: %q}
  - {database: by_cert, dsn: %q}
`, with("by_file", "sslmode=disable"), file("password"), with("by_passfile", "sslmode=disable&passfile="+file("passfile")), file("dsn"),
		with("by_cert", "sslmode=verify-full&sslrootcert="+file("root.crt")+"&sslcert="+file("client.crt")+"&sslkey="+file("client.key"))))
	var log testenv.Log
	e, err := collectors.New(c, slog.New(slog.NewTextHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	failing := func() (failed []string) {
		for _, s := range e.Facts().Sources {
			if s.Err != nil && s.ID.Store != "" {
				failed = append(failed, s.ID.String())
			}
		}
		return failed
	}
	e.Once(ctx)
	if f := failing(); len(f) > 0 {
		t.Fatalf("before any rotation: %v\n%s", f, log.String())
	}

	t.Run("files are rewritten in time", func(t *testing.T) {
		before := len(log.String())
		onClient("two", onServer("two"))
		terminate()
		failures := map[string]int{}
		for range 3 {
			e.Once(ctx)
			for _, f := range failing() {
				failures[f]++
			}
		}
		if f := failing(); len(f) > 0 {
			t.Errorf("still failing: %v", f)
		}
		said := log.String()[before:]
		for collector, n := range failures {
			if n > 1 {
				t.Errorf("%s failed %d times", collector, n)
			}
			if lines := strings.Count(said, `msg="cannot read" collector=`+collector+" "); lines > 1 {
				t.Errorf("%d lines of %s, want one", lines, collector)
			}
		}
		if len(said) > 0 {
			t.Logf("said: %s", said)
		}
	})
	t.Run("files are rewritten late", func(t *testing.T) {
		ca := onServer("three")
		terminate()
		e.Once(ctx)
		e.Once(ctx)
		if f := failing(); len(f) != 2*len(roles) {
			t.Errorf("with old secrets only these fail: %v", f)
		}
		onClient("three", ca)
		e.Once(ctx)
		if f := failing(); len(f) > 0 {
			t.Errorf("with the new secrets these fail: %v\n%s", f, log.String())
		}
	})
	if strings.Contains(log.String(), "hunter") {
		t.Errorf("the log tells a secret:\n%s", log.String())
	}
}
