// Package schema creates and upgrades the consumer's tables. Migrations expand
// first and contract only once no old binary is left, so that old and new
// binaries work side by side during a rolling deploy.
package schema

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed migrations/*.sql
var migrations embed.FS

// lock serializes concurrent migrations (an arbitrary constant).
const lock = 7_310_577_061

// Options of Migrate.
type Options struct {
	// Partitioned creates processed_events PARTITION BY RANGE (event_id) for
	// UUIDv7 ids. Only possible while the table does not exist yet.
	Partitioned bool
	// PartitionWidth is the time one partition covers; default 24 h.
	PartitionWidth time.Duration
	// PartitionsBehind is how far back the first partition reaches, so that
	// events already waiting on the broker find one; default 8 days.
	PartitionsBehind time.Duration
	// PartitionsAhead is how far ahead partitions are created; default 48 h.
	PartitionsAhead time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
	Log *slog.Logger
	// BeforeConnect changes where and as whom the next connection is made;
	// nil: as the DSN says.
	BeforeConnect func(context.Context, *pgx.ConnConfig) error
}

// ErrNotPartitioned says that an existing flat table cannot become partitioned
// in place.
var ErrNotPartitioned = errors.New("processed_events exists and is not partitioned: a flat table cannot be partitioned in place; migrate into a new database or copy the markers")

// Version is the newest migration this binary knows.
func Version() int {
	all, err := load()
	if err != nil || len(all) == 0 {
		return 0
	}
	return all[len(all)-1].version
}

// Application names a program's connections in pg_stat_activity: what it is, of
// which group, and which instance (default: the host's name), unless the
// connection string has given a name already.
func Application(cc *pgx.ConnConfig, what, instance string) {
	if cc.RuntimeParams["application_name"] != "" {
		return
	}
	if instance == "" {
		instance, _ = os.Hostname() // unknown: left out
	}
	name := strings.TrimSpace("reference-consumer " + what + " " + instance)
	cc.RuntimeParams["application_name"] = name[:min(len(name), 63)] // as the server would cut it
}

// Connect opens one connection named by Application. before may change where
// and as whom; nil: as the DSN says.
func Connect(ctx context.Context, dsn, what string, before func(context.Context, *pgx.ConnConfig) error) (*pgx.Conn, error) {
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("--postgres.dsn: %w", err)
	}
	Application(cc, what, "")
	if before != nil {
		if err := before(ctx, cc); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return conn, nil
}

// Migrate brings the database to Version. It is safe to run concurrently and
// repeatedly; each migration is one transaction.
func Migrate(ctx context.Context, dsn string, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	all, err := load()
	if err != nil {
		return err
	}
	conn, err := Connect(ctx, dsn, "migrate", o.BeforeConnect)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lock)); err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		if _, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS schema_migrations (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"); err != nil {
			return fmt.Errorf("create schema_migrations: %w", err)
		}
		if o.Partitioned {
			if err := createPartitioned(ctx, tx, o); err != nil {
				return err
			}
		}
		for _, m := range all {
			tag, err := tx.Exec(ctx, "INSERT INTO schema_migrations (version) VALUES ($1) ON CONFLICT DO NOTHING", m.version)
			if err != nil {
				return fmt.Errorf("migration %s: %w", m.name, err)
			}
			if tag.RowsAffected() == 0 {
				continue
			}
			if _, err := tx.Exec(ctx, m.sql); err != nil {
				return fmt.Errorf("migration %s: %w", m.name, err)
			}
			o.Log.Info("applied migration", "version", m.version, "name", m.name)
		}
		return nil
	})
}

// ErrOutdated says that the tables are missing or older than this binary.
var ErrOutdated = errors.New("run `reference-consumer migrate`")

// Check says whether the database has every migration this binary needs: an
// ErrOutdated where it has not, another error where it could not be asked.
func Check(ctx context.Context, conn interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}) error {
	var have *int
	err := conn.QueryRow(ctx, "SELECT max(version) FROM schema_migrations").Scan(&have)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000") { // no table, no schema
		return fmt.Errorf("the tables do not exist: %w", ErrOutdated)
	}
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if want := Version(); have == nil || *have < want {
		return fmt.Errorf("the schema is older than version %d: %w", want, ErrOutdated)
	}
	return nil
}

type migration struct {
	version int
	name    string
	sql     string
}

// load returns the embedded migrations in order; fs.Glob sorts by name.
func load() ([]migration, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	out := make([]migration, 0, len(names))
	for _, n := range names {
		b, err := migrations.ReadFile(n)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", n, err)
		}
		base := strings.TrimPrefix(n, "migrations/")
		number, _, _ := strings.Cut(base, "_")
		v, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("migration %s: the name must begin with its number: %w", base, err)
		}
		out = append(out, migration{v, base, string(b)})
	}
	return out, nil
}
