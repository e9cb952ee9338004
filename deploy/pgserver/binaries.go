package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// versions are those that embedded-postgres has binaries of.
var versions = map[int]embeddedpostgres.PostgresVersion{
	14: embeddedpostgres.V14, 15: embeddedpostgres.V15, 16: embeddedpostgres.V16, 17: embeddedpostgres.V17, 18: embeddedpostgres.V18,
}

// binaries returns a folder with initdb, pg_ctl and postgres: of any version
// from PATH, from the places where distributions put them, else fetched; of a
// wanted one from such a place, else fetched.
func binaries(ctx context.Context, major int, repository string) (string, error) {
	if major != 0 {
		if dir := fmt.Sprintf("/usr/lib/postgresql/%d/bin", major); complete(dir) {
			return dir, nil
		}
		if versions[major] == "" {
			return "", fmt.Errorf("%w of PostgreSQL %d: want 14 to 18", ErrNoBinaries, major)
		}
		dir, err := fetch(ctx, major, repository)
		if err != nil {
			return "", fmt.Errorf("%w of PostgreSQL %d (fetching them failed: %w)", ErrNoBinaries, major, err)
		}
		return dir, nil
	}
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil && complete(filepath.Dir(p)) {
			return filepath.Dir(p), nil
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/usr/lib/postgresql*/bin",
		"/usr/libexec/postgresql*",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/usr/local/pgsql/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern)
		sort.Slice(found, func(i, j int) bool { return majorIn(found[i]) > majorIn(found[j]) })
		for _, dir := range found {
			if complete(dir) {
				return dir, nil
			}
		}
	}
	dir, err := fetch(ctx, newest, repository)
	if err != nil {
		return "", fmt.Errorf("%w (fetching them failed too: %w)", ErrNoBinaries, err)
	}
	return dir, nil
}

func complete(dir string) bool {
	for _, p := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			return false
		}
	}
	return true
}

// majorIn is the first number in a path, so that 17 sorts before 9.
func majorIn(path string) int {
	i := strings.IndexAny(path, "0123456789")
	if i < 0 {
		return 0
	}
	j := i
	for j < len(path) && path[j] >= '0' && path[j] <= '9' {
		j++
	}
	n, _ := strconv.Atoi(path[i:j])
	return n
}

// newest is what is fetched where nothing is wanted in particular.
const newest = 17

// fetch has embedded-postgres download and unpack a server into a cache that
// every user can read. The library cannot only fetch: it also starts what it
// fetched, which it refuses to do as root. By then the binaries are there, and
// that is all that is wanted of it.
func fetch(ctx context.Context, major int, repository string) (string, error) {
	cache := filepath.Join(os.TempDir(), fmt.Sprintf("oncewatch-postgres-%d", os.Getuid()))
	server := "server"
	if major != newest {
		server = fmt.Sprintf("server-%d", major)
	}
	bin := filepath.Join(cache, server, "bin")
	if complete(bin) {
		return bin, nil
	}
	scratch, err := os.MkdirTemp("", "oncewatch-fetch-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	port, err := freePort()
	if err != nil {
		return "", err
	}
	config := embeddedpostgres.DefaultConfig().
		Version(versions[major]).
		Port(uint32(port)).
		CachePath(filepath.Join(cache, "archive")).
		BinariesPath(filepath.Join(cache, server)).
		RuntimePath(scratch).
		DataPath(filepath.Join(scratch, "data")).
		Logger(nil)
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	done := make(chan error, 1)
	go func() {
		db := embeddedpostgres.NewDatabase(config)
		err := db.Start()
		if err == nil {
			err = db.Stop()
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if complete(bin) {
		return bin, nil
	}
	return "", err
}
