package stream

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/telemetry"
)

// Config of Run.
type Config struct {
	// Client holds the options to reach the brokers: seeds, TLS, SASL.
	Client []kgo.Opt
	// Consumer adds options to the consuming client alone. What the consumer
	// rests on (the group, its callbacks, what is read and from where) cannot be
	// replaced: Run refuses it.
	Consumer []kgo.Opt
	Topics   []string
	Pool     *pgxpool.Pool
	Inbox    *inbox.Inbox
	// Decode makes an event of a record; what it cannot decode it returns with
	// Event.Err set. Default: Decode, with the id in the header event_id.
	Decode func(*kgo.Record) inbox.Event

	// BatchSize is the most events one transaction takes; default 200, 1 is
	// one transaction an event. Batches shrink while a transaction takes
	// longer than TargetLatency (default 40 ms).
	BatchSize     int
	TargetLatency time.Duration

	// SessionTimeout (default 30 s), RebalanceTimeout (60 s) and
	// HeartbeatInterval (3 s) of the group.
	SessionTimeout, RebalanceTimeout, HeartbeatInterval time.Duration
	// InstanceID makes the membership static (KIP-345).
	InstanceID string
	// ServerSideBalancing uses the next generation of the group protocol
	// (KIP-848) where the brokers have it.
	ServerSideBalancing bool
	// RevokeTimeout is how long a revoked partition may take to finish its
	// transaction (default half the rebalance timeout), ShutdownTimeout how
	// long everything together may (default 15 s).
	RevokeTimeout, ShutdownTimeout time.Duration
	// PauseFor is how long a partition rests when an event can neither be
	// handled nor passed; default 30 s.
	PauseFor time.Duration
	// CrashLimit is how many processes may die in a batch that begins at one
	// offset until its events are tried one by one; default 3.
	CrashLimit int
	// GapGrace is how long a missing sequence number may still arrive; default
	// one minute.
	GapGrace time.Duration
	// LogStartEvery is how often the logs' starts are compared with where the
	// consumer is, for loss that no fetch shows; default 15 s.
	LogStartEvery time.Duration

	// Guard is asserted before the first record, and again every AssertEvery
	// (default one hour).
	Guard       Guard
	AssertEvery time.Duration
	// Redeliver is the share of events that are handed to the inbox a second
	// time, as a broker does after a rebalance; for demos.
	Redeliver float64

	Registerer prometheus.Registerer
	Tracer     *telemetry.Tracer // nil: no traces
	Log        *slog.Logger
	Now        func() time.Time
	// Assigned is called with the partitions that a rebalance added: none for
	// a member that stands by.
	Assigned func(map[string][]int32)
	// Failpoint is called at named boundaries; for crash tests only.
	Failpoint func(name string)
}

func (cfg *Config) defaults() error {
	switch {
	case cfg.Inbox == nil || cfg.Pool == nil:
		return errors.New("stream: Inbox and Pool are required")
	case len(cfg.Topics) == 0:
		return errors.New("stream: no topic to consume")
	}
	positive(&cfg.BatchSize, 200)
	positive(&cfg.TargetLatency, 40*time.Millisecond)
	positive(&cfg.SessionTimeout, 30*time.Second)
	positive(&cfg.RebalanceTimeout, 60*time.Second)
	positive(&cfg.HeartbeatInterval, min(3*time.Second, cfg.SessionTimeout/3))
	positive(&cfg.RevokeTimeout, cfg.RebalanceTimeout/2)
	positive(&cfg.ShutdownTimeout, 15*time.Second)
	positive(&cfg.PauseFor, 30*time.Second)
	positive(&cfg.CrashLimit, 3)
	positive(&cfg.GapGrace, time.Minute)
	positive(&cfg.LogStartEvery, 15*time.Second)
	positive(&cfg.AssertEvery, time.Hour)
	cfg.Guard.StatementTimeout, cfg.Guard.IdleTimeout, cfg.Guard.TransactionTimeout = cfg.Inbox.Timeouts()
	if cfg.Decode == nil {
		cfg.Decode = Decode
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Failpoint == nil {
		cfg.Failpoint = func(string) {}
	}
	if cfg.Assigned == nil {
		cfg.Assigned = func(map[string][]int32) {}
	}
	return nil
}

func positive[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// options of the group consumer. Auto-commit is off and both offsets are
// explicit; clientViolations reads all of them back from the client.
func (c *consumer) options() []kgo.Opt {
	cfg := c.cfg
	opts := []kgo.Opt{
		kgo.ConsumerGroup(cfg.Inbox.Group()),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.DisableAutoCommit(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// What ends a transaction takes an offset too: the position passes it,
		// or the lag behind a transactional producer never reaches 0.
		kgo.KeepControlRecords(),
		kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(cfg.SessionTimeout),
		kgo.RebalanceTimeout(cfg.RebalanceTimeout),
		kgo.HeartbeatInterval(cfg.HeartbeatInterval),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(c.assigned),
		kgo.OnPartitionsRevoked(c.revoked),
		kgo.OnPartitionsLost(c.lost),
		kgo.AdjustFetchOffsetsFn(c.reconcile),
	}
	if cfg.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(cfg.InstanceID))
	}
	if cfg.ServerSideBalancing {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	return slices.Concat(opts, cfg.Client, cfg.Consumer)
}
