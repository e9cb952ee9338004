// Package prune removes markers that nothing can ask for any more, in bounded
// steps beside a running consumer.
package prune

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"oncewatch/reference-consumer/schema"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/retry"
)

// Config of Run.
type Config struct {
	// DSN of the database; empty: libpq's PG* variables. The connection must
	// be a session of its own (not through pgbouncer in transaction mode).
	DSN string
	// BeforeConnect changes where and as whom the next connection is made;
	// nil: as the DSN says.
	BeforeConnect func(context.Context, *pgx.ConnConfig) error
	// Client holds the options to reach the brokers, whose topics' retention
	// limits ours.
	Client []kgo.Opt
	// Topics whose markers are in the table, besides those with progress.
	Topics []string

	// Retention is how long markers are kept; default 8 days.
	Retention time.Duration
	// Batch is the most rows one statement deletes (default 10,000), Pause
	// the rest between two of them (default 200 ms).
	Batch int
	Pause time.Duration
	// Every is the time between two runs (default one minute); Once ends
	// after one.
	Every time.Duration
	Once  bool
	// Allow waives assertions by name: AssertRetention.
	Allow []string

	// PartitionWidth and PartitionsAhead of a partitioned table; defaults 24 h
	// and 48 h.
	PartitionWidth, PartitionsAhead time.Duration

	Registerer prometheus.Registerer
	Log        *slog.Logger
	// Now is the clock for partitions; default time.Now. Rows are judged by
	// the server's clock.
	Now func() time.Time
	// Failpoint is called at named boundaries; for crash tests only.
	Failpoint func(name string)
}

// lock is the key of the advisory lock (an arbitrary constant).
const lock = 7_310_577_062

func (cfg *Config) defaults() error {
	if cfg.Retention < 0 || cfg.Batch < 0 || cfg.Pause < 0 || cfg.Every < 0 {
		return errors.New("--retention, --batch, --pause and --every must not be negative")
	}
	for _, name := range cfg.Allow {
		if name != AssertRetention {
			return fmt.Errorf("--allow=%s: no such assertion, there is %s", name, AssertRetention)
		}
	}
	def(&cfg.Retention, 8*24*time.Hour)
	def(&cfg.Batch, 10_000)
	def(&cfg.Pause, 200*time.Millisecond)
	def(&cfg.Every, time.Minute)
	def(&cfg.PartitionWidth, 24*time.Hour)
	def(&cfg.PartitionsAhead, 48*time.Hour)
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Failpoint == nil {
		cfg.Failpoint = func(string) {}
	}
	return nil
}

func def[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Run prunes every Config.Every until ctx ends, or once. A retention that is
// too short is refused with a *RefusedError; one that becomes too short later,
// because a topic's was raised, stops the pruning until it is put right.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.defaults(); err != nil {
		return err
	}
	p := &pruner{cfg: cfg, m: newMetrics(cfg.Registerer, cfg.Now)}
	defer p.m.unregister()
	for first := true; ; first = false {
		err := p.cycle(ctx)
		var refused *RefusedError
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (cfg.Once || first && errors.As(err, &refused)):
			return err
		case err != nil:
			cfg.Log.Error("pruning failed", "error", err)
		}
		if cfg.Once {
			return nil
		}
		if retry.Wait(ctx, cfg.Every) != nil {
			return nil
		}
	}
}

type pruner struct {
	cfg Config
	m   *metrics
	// from is the processed_at up to which everything is gone: starting there
	// spares walking over dead index entries that an old snapshot keeps.
	from time.Time
}

// cycle is one run: check, then delete batches or drop partitions.
func (p *pruner) cycle(ctx context.Context) error {
	conn, err := schema.Connect(ctx, p.cfg.DSN, "prune", p.cfg.BeforeConnect)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		// The server ends a session some time after its client has gone, and a
		// next run at once would find the lock held.
		_, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock_all()")
		_ = conn.Close(ctx)
	}()
	var mine bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(lock)).Scan(&mine); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if !mine {
		p.cfg.Log.Info("another pruner is at work")
		return nil
	}
	if err := p.assertRetention(ctx, conn); err != nil {
		return err
	}
	var partitioned bool
	err = conn.QueryRow(ctx, "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('processed_events')").Scan(&partitioned)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("there is no table processed_events: run `reference-consumer migrate`")
	}
	if err != nil {
		return fmt.Errorf("look at processed_events: %w", err)
	}
	if partitioned {
		err = p.partitions(ctx, conn)
	} else {
		err = p.batches(ctx, conn)
	}
	if err == nil {
		p.m.success()
	}
	return err
}

// A ctid is unique within one table only: in a partitioned one the same ctid
// names a row of each partition, so these are never deleted this way.
//
// The rows' places are collected into an array first: with IN the planner
// joins, three times as slow; starting from the last deleted time keeps a
// batch's cost constant while a snapshot holds dead rows back.
const batchSQL = `WITH doomed AS MATERIALIZED (
    SELECT ctid, processed_at FROM processed_events
    WHERE processed_at >= $1 AND processed_at < now() - $2::interval
    ORDER BY processed_at LIMIT $3
), gone AS (
    DELETE FROM processed_events WHERE ctid = ANY (ARRAY(SELECT ctid FROM doomed)) RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT max(processed_at) FROM doomed)`

// lockTries is how often a batch is tried while another session holds one of
// its rows.
const lockTries = 10

func (p *pruner) batches(ctx context.Context, conn *pgx.Conn) error {
	from := p.from
	for blocked := 0; ; {
		start := time.Now()
		n, upTo, err := p.batch(ctx, conn, from)
		var pg *pgconn.PgError
		switch {
		case err == nil:
			blocked = 0
			p.m.batch(n, time.Since(start))
			if upTo != nil {
				from = *upTo
			}
			if n < int64(p.cfg.Batch) {
				// What commits late may still come in below: look again from a
				// little earlier the next time.
				p.from = from.Add(-time.Hour)
				return nil
			}
		case errors.As(err, &pg) && pg.Code == "55P03" && blocked+1 < lockTries:
			blocked++
			p.cfg.Log.Warn("another session holds a marker that is due: trying the batch again", "tries", blocked, "error", err)
		default:
			return fmt.Errorf("delete markers: %w", err)
		}
		if retry.Wait(ctx, p.cfg.Pause) != nil {
			return ctx.Err()
		}
	}
}

// batch deletes one batch in one transaction. It waits for others' locks only
// briefly, since it holds locks itself the while.
func (p *pruner) batch(ctx context.Context, conn *pgx.Conn, from time.Time) (n int64, upTo *time.Time, err error) {
	p.cfg.Failpoint("before_prune_batch")
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '1s'"); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, batchSQL, from, p.cfg.Retention, p.cfg.Batch).Scan(&n, &upTo); err != nil {
			return err
		}
		p.cfg.Failpoint("in_prune_batch")
		return nil
	})
	return n, upTo, err
}
