package payments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/stream"
	"oncewatch/reference-consumer/telemetry"
)

// Config of the sample service.
type Config struct {
	// DSN of the database; empty: libpq's PG* variables.
	DSN string
	// BeforeConnect changes where and as whom the next connection is made;
	// nil: as the DSN says.
	BeforeConnect func(context.Context, *pgx.ConnConfig) error
	// Client holds the options to reach the brokers.
	Client []kgo.Opt
	Topic  string
	Group  string
	// IDFromKey takes the event id from the record's key.
	IDFromKey bool
	// SetBased applies a batch's effects in one statement.
	SetBased bool
	// Notify leaves intents to confirm payments in the outbox.
	Notify NotifyPer
	// MaxConnections to the database; default 16.
	MaxConnections int32
	// MarkerRetention is how long the pruner keeps markers; 0: for ever.
	MarkerRetention time.Duration
	// RedeliverFrom names further topics events may come back from.
	RedeliverFrom []string
	// Allow waives startup assertions by name.
	Allow []string

	// Configure changes the pool's configuration before it is opened.
	Configure func(*pgxpool.Config)
	// Inbox and Stream tune the two layers; what Run sets itself is ignored.
	Inbox  inbox.Config
	Stream stream.Config

	Registerer prometheus.Registerer
	Tracer     *telemetry.Tracer // nil: no traces
	Log        *slog.Logger
	Now        func() time.Time
}

// Run consumes payments until ctx ends; see stream.Run. A *stream.RefusedError
// says which startup assertions do not hold.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Topic == "" {
		return errors.New("no topic given: set --topic")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	pool, err := open(ctx, cfg.DSN, cfg.MaxConnections, func(pc *pgxpool.Config) {
		pc.BeforeConnect = cfg.BeforeConnect
		schema.Application(pc.ConnConfig, cfg.Group, cfg.Stream.InstanceID)
		if cfg.Configure != nil {
			cfg.Configure(pc)
		}
	})
	if err != nil {
		return err
	}
	defer closePool(pool)

	ic := cfg.Inbox
	ic.Group, ic.Log = cfg.Group, cfg.Log
	if ic.Handler == nil {
		ic.Handler = Handler(cfg.Group, cfg.Notify)
	}
	if cfg.SetBased && cfg.Notify == NotifyNever {
		ic.BatchHandler = SetHandler(cfg.Group)
	}
	in, err := inbox.New(ic)
	if err != nil {
		return err
	}
	sc := cfg.Stream
	sc.Client, sc.Topics, sc.Pool, sc.Inbox, sc.Decode = cfg.Client, []string{cfg.Topic}, pool, in, stream.Decode
	if cfg.IDFromKey {
		sc.Decode = stream.DecodeKey
	}
	sc.Registerer, sc.Tracer, sc.Log, sc.Now = cfg.Registerer, cfg.Tracer, cfg.Log, cfg.Now
	sc.Guard = stream.Guard{MarkerRetention: cfg.MarkerRetention, RedeliverFrom: cfg.RedeliverFrom, Allow: cfg.Allow}
	return stream.Run(ctx, sc)
}

// closePool does not wait for a handler that never returns its connection.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(2 * time.Second):
	}
}

// Pool opens a connection pool.
func Pool(ctx context.Context, dsn string, maxConnections int32) (*pgxpool.Pool, error) {
	return open(ctx, dsn, maxConnections, nil)
}

func open(ctx context.Context, dsn string, maxConnections int32, configure func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("--postgres.dsn: %w", err)
	}
	if maxConnections <= 0 {
		maxConnections = 16
	}
	pc.MaxConns = maxConnections
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	if configure != nil {
		configure(pc)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open the pool: %w", err)
	}
	return pool, nil
}
