// Package postgres reads everything the exporter knows of PostgreSQL: the
// markers through the ledger, the table's health, and the divergence of
// markers and effects.
//
// The ledger keeps exact counts of a table of any size by counting again only
// what can have changed. Its parts, a file each:
//
//	cells/       counts per time bucket and series, in memory, and what vanished
//	count.go     the one statement that counts a range
//	epoch.go     times that are numbers since 1970
//	zone.go      times that are a wall clock's
//	recount.go   a range counted again in one snapshot
//	tail.go      what came since the last poll
//	activity.go  transactions that were open then and have ended since
//	edge.go      what the pruner took at the old end
//	scrub.go     everything else, a little at each poll, verified
//	suspect.go   what is doubted, counted again
//	structure.go tables that came, went or were rewritten, and another server
//	stats.go     the server's own tally, to notice what the others missed
//	backfill.go  the first count of all that was there before
//	pages.go     the fallback where no index on the time exists
//	untimed.go   rows without a time
//	transaction.go a snapshot, and how long it may be held
//	ledger.go    a poll, in order
//	snapshot.go  what a poll yields, as data and as metrics
//
// It only reads: every statement runs in a READ ONLY transaction with a
// statement and a lock timeout, no snapshot is held for a second, and at most
// two connections are used.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/poll"
)

// Bounds on what a poll may ask of the server.
const (
	maxConnections   = 2
	maxMessage       = 16 << 20 // bytes of one row, or of another answer
	statementTimeout = 500 * time.Millisecond
	lockTimeout      = 250 * time.Millisecond
)

// Store is one database with a marker table.
type Store struct {
	cfg  Config
	name pgx.Identifier // of the table
	pool *pgxpool.Pool
	log  *slog.Logger
	now  func() time.Time

	group func(string) bool // which groups are watched; nil: all

	ledger *ledger

	mu     sync.Mutex
	shared facts
}

// facts are what the ledger found out and the other sources use.
type facts struct {
	rows   int64 // of the marker table, exact; -1 where that is not known
	groups []string
}

// New makes a store. It never connects: a database that is away is a poll's
// error. now is the clock of ages; nil means time.Now.
func New(cfg Config, log *slog.Logger, now func() time.Time) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withPreset()
	if err != nil {
		return nil, err
	}
	cfg.Table = cmp.Or(cfg.Table, "processed_events")
	cfg.Columns = cfg.Columns.withDefaults()
	cfg.ScrubRound = cmp.Or(cfg.ScrubRound, 24*time.Hour)
	cfg.MaxCells = cmp.Or(cfg.MaxCells, 1_000_000)
	e := &cfg.Effect
	e.EventID, e.Time, e.TxID = cmp.Or(e.EventID, "event_id"), cmp.Or(e.Time, "created_at"), cmp.Or(e.TxID, "txid")
	e.Window = cmp.Or(e.Window, time.Hour)
	pc, err := poolConfig(cfg.Config)
	if err != nil {
		return nil, err
	}
	name, err := parseName(cfg.Table)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		return nil, errors.New("postgres.dsn: cannot be used; check its form")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if p, ok := presets[cfg.Preset]; ok {
		log.Info("the table is read as a framework makes it", "preset", cfg.Preset, "table", cfg.Table, "lacks", p.lacks)
	}
	if now == nil {
		now = time.Now
	}
	s := &Store{cfg: cfg, name: name, pool: pool, log: log, now: now, shared: facts{rows: -1}}
	s.ledger = newLedger(s, defaultTuning())
	return s, nil
}

// Watch lets the snapshots of markers tell of these groups only; the ledger
// counts the others too. It is called before the first poll.
func (s *Store) Watch(group func(string) bool) { s.group = group }

// Close ends the store's connections.
func (s *Store) Close() { s.pool.Close() }

// Config is the store's configuration with its defaults filled in.
func (s *Store) Config() Config { return s.cfg }

// Markers is the source of the marker ledger. Its snapshots are *Markers.
func (s *Store) Markers() poll.Source { return s.ledger }

func (s *Store) learn(f func(*facts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.shared)
}

func (s *Store) facts() facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shared
}

// poolConfig is that of the exporter's connections to a database.
func poolConfig(to dbconn.Config) (*pgxpool.Config, error) {
	pc, err := to.Pool()
	if err != nil {
		return nil, err
	}
	pc.MaxConns, pc.MinConns, pc.MinIdleConns = maxConnections, 0, 0
	pc.MaxConnLifetime = time.Hour
	pc.MaxConnIdleTime = 5 * time.Minute
	cc := pc.ConnConfig
	// What is no PostgreSQL may claim a message of a gigabyte, and pgx would
	// allocate it.
	cc.BuildFrontend = dbconn.Bounded(maxMessage)
	// Unnamed statements: a pooler in transaction mode may give each
	// transaction another server session.
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	cc.StatementCacheCapacity, cc.DescriptionCacheCapacity = 0, 0
	// No settings of ours at start: a pooler refuses those it does not know.
	// The zone of the session must not matter, so it is not set either.
	for k := range cc.RuntimeParams {
		if strings.EqualFold(k, "timezone") {
			delete(cc.RuntimeParams, k)
		}
	}
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "oncewatch"
	}
	return pc, nil
}

// Target says where the markers are read from, without a secret.
func (c Config) Target() (string, error) {
	c, err := c.withPreset()
	if err != nil {
		return "", err
	}
	pc, err := c.Pool()
	if err != nil {
		return "", err
	}
	cc := pc.ConnConfig
	return fmt.Sprintf("table %s of database %s at %s, port %d, as %s", cmp.Or(c.Table, "processed_events"), cmp.Or(cc.Database, cc.User), cc.Host, cc.Port, cc.User), nil
}
