//go:build linux

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// The database's password rotates while consumer and pruner run: they go on
// with the new one, and neither is restarted.
func TestThePasswordRotates(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{HBA: "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.Background()) }()
	do := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	password := filepath.Join(t.TempDir(), "password")
	rotate := func(secret string) {
		t.Helper()
		do("ALTER ROLE consumer PASSWORD '" + secret + "'")
		if err := os.WriteFile(password+".new", []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(password+".new", password); err != nil {
			t.Fatal(err)
		}
		do("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'consumer'")
	}
	do("CREATE ROLE consumer LOGIN")
	do("CREATE DATABASE app OWNER consumer")
	rotate("hunter-one")
	brokers := strings.Join(fake(t), ",")
	with := func(args ...string) []string {
		return append(args, "--postgres.dsn="+server.UserDSN("app", "consumer", ""), "--postgres.password-file="+password, "--kafka.brokers="+brokers, "--web.listen-address=127.0.0.1:0")
	}
	ok(t, with("migrate")...)
	publish := func() {
		t.Helper()
		ok(t, with("produce", "--count=50", "--rate=0", "--duplicates=0", "--partitions=2")...)
	}
	publish()

	var log testenv.Log
	running, stop := context.WithCancel(t.Context())
	defer stop()
	exits := make(chan int, 2)
	for _, args := range [][]string{with("run"), with("prune", "--every=50ms", "--allow=marker-retention")} {
		go func() { exits <- execute(running, args, io.Discard, &log) }()
	}
	app, err := pgx.Connect(ctx, server.DSN("app"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Close(context.Background()) }()
	markers := func(want int) {
		t.Helper()
		testenv.Eventually(t, "the markers", func() bool {
			var n int
			err := app.QueryRow(ctx, "SELECT count(*) FROM processed_events").Scan(&n)
			return err == nil && n == want
		})
	}
	markers(50)
	rotate("hunter-two")
	publish()
	markers(100)
	before := len(log.String())
	rotate("hunter-three")
	publish()
	markers(150)
	stop()
	for range 2 {
		if code := <-exits; code != 0 {
			t.Errorf("exit %d\n%s", code, log.String())
		}
	}
	if strings.Contains(log.String(), "hunter") {
		t.Errorf("the log tells the password:\n%s", log.String())
	}
	// The pruner may connect between the server's change and the file's.
	if said := log.String()[before:]; strings.Count(said, "password authentication failed") > 1 {
		t.Errorf("after the rotation:\n%s", said)
	}
}
