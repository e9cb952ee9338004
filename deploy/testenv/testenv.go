// Package testenv gives tests the real programs they need: PostgreSQL, Apache
// Kafka, Prometheus' tools. What the machine has is used, the rest is installed
// by package name; what cannot be had skips the test by name, and fails it
// where CI=true.
package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"oncewatch/deploy/pgserver"
)

// env is what one test process shares: servers that are started by the first
// test that asks and ended by Main.
type env struct {
	mu       sync.Mutex
	postgres *pgserver.Server
	failed   error
	closers  []func() error
	missing  map[string]int
	database atomic.Int64
}

var shared = &env{missing: map[string]int{}}

// Main runs a package's tests, ends the servers they started and says at the
// end what was skipped for want of a program:
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for i := len(shared.closers) - 1; i >= 0; i-- {
		if err := shared.closers[i](); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = max(code, 1)
		}
	}
	what := make([]string, 0, len(shared.missing))
	for w, n := range shared.missing {
		what = append(what, fmt.Sprintf("%s (%d)", w, n))
	}
	sort.Strings(what)
	if len(what) > 0 {
		fmt.Fprintf(os.Stderr, "SKIPPED for want of: %s\n", strings.Join(what, ", "))
	}
	return code
}

// Missing skips a test because something it needs cannot be had, and fails it
// where CI=true.
func Missing(t testing.TB, what string, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing: %v", what, err)
	}
	shared.mu.Lock()
	shared.missing[what]++
	shared.mu.Unlock()
	t.Skipf("%s is missing: %v", what, err)
}

// OnExit registers what Main ends after the tests, last first.
func OnExit(f func() error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.closers = append(shared.closers, f)
}

// Postgres returns the DSN, as superuser, of a fresh database in a cluster
// that the package's tests share. It is dropped with the test.
func Postgres(t testing.TB) string {
	t.Helper()
	s := sharedPostgres(t)
	name := fmt.Sprintf("test_%d_%s", shared.database.Add(1), strings.ToLower(safe(t.Name())))
	if len(name) > 60 {
		name = name[:60]
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.CreateDatabase(ctx, name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.DropDatabase(ctx, name); err != nil {
			t.Error(err)
		}
	})
	return s.DSN(name)
}

func sharedPostgres(t testing.TB) *pgserver.Server {
	t.Helper()
	shared.mu.Lock()
	if shared.postgres == nil && shared.failed == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		shared.postgres, shared.failed = pgserver.Start(ctx, pgserver.Options{})
		if shared.failed == nil {
			shared.closers = append(shared.closers, shared.postgres.Close)
		}
	}
	s, err := shared.postgres, shared.failed
	shared.mu.Unlock()
	if err != nil {
		Missing(t, "PostgreSQL", err)
	}
	return s
}

// PostgresServer returns a cluster of the test's own, to stop, restart or
// configure. It is closed with the test.
func PostgresServer(t testing.TB, o pgserver.Options) *pgserver.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s, err := pgserver.Start(ctx, o)
	if err != nil {
		Missing(t, "PostgreSQL", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Tool returns the command for one of Prometheus' programs (prometheus,
// promtool, amtool): the machine's own where it has one of the version that the
// project supports or newer, else one built from tools.mod, which takes minutes
// once. TOOLS=newest in the environment builds it in any case.
func Tool(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := tools.path(name)
	if err != nil {
		Missing(t, name, err)
	}
	return exec.Command(path, args...)
}

// Root is the repository's root.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Build builds a program of this repository for a test, by its folder.
func Build(t testing.TB, folder string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", program, folder)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v: %s", folder, err, out)
	}
	return program
}

func safe(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}
