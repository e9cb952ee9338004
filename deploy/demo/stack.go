package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"oncewatch/collectors"
	"oncewatch/collectors/config"
	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/web"
	"oncewatch/deploy/pgserver"
	"oncewatch/reference-consumer/outbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/prune"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/stream"
)

// What a stack works on.
const (
	Topic          = "payments"
	Group          = "ledger-writer"
	partitionCount = 4
	maxMembers     = 2
	// watcher is the exporter's role: it reads, and no more than it must.
	watcher = "oncewatch"
)

// markerRetention is what the pruner keeps: the runbook's eight days for a
// seven-day topic.
const markerRetention = 8 * 24 * time.Hour

// Stack is a whole deployment in this process beside a database and a broker:
// producer, consumers, pruner, outbox and exporter. Its parts can be changed,
// stopped, killed and started again while the rest goes on. The exported
// configurations are those of the parts that are started from then on.
type Stack struct {
	PG     *pgserver.Server
	Broker Broker
	Log    *slog.Logger

	History     History
	Partitioned bool
	Consumer    payments.Config
	Producer    produce.Config
	Pruner      prune.Config
	Outbox      outbox.Config // runs where Consumer.Notify leaves intents
	Exporter    collectors.Config
	// ExporterAddress and ConsumerAddress are where to listen; another port is
	// taken where one is in use.
	ExporterAddress, ConsumerAddress string
	// RestartAfter is how long the orchestrator waits before it starts a
	// consumer again that ended by itself.
	RestartAfter time.Duration

	database string
	created  bool // the topic is ours to delete
	client   []kgo.Opt
	members  [maxMembers]*member
	side     *prometheus.Registry // of pruner and outbox
	receiver *receiver

	ctx      context.Context
	cancel   context.CancelFunc
	parts    sync.WaitGroup
	failed   chan error
	exporter *part
	producer *part
	pruner   *part
	outbox   *part
	url      string // of the exporter
	polled   func(context.Context) error
}

// New describes the stack of the demo on a server, a broker and a database of
// the name, which must not exist. Nothing is started.
func New(pg *pgserver.Server, broker Broker, database string, log *slog.Logger) (*Stack, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dsn := pg.DSN(database)
	client := []kgo.Opt{kgo.SeedBrokers(broker.Brokers()...)}
	s := &Stack{
		PG: pg, Broker: broker, Log: log, database: database, client: client,
		History:         Days(),
		ExporterAddress: "127.0.0.1:0", ConsumerAddress: "127.0.0.1:0",
		RestartAfter: time.Second,
		Consumer: payments.Config{
			DSN: dsn, Topic: Topic, Group: Group, MarkerRetention: markerRetention, Log: log,
			// A share of the events is handed over twice, as after a rebalance.
			Stream: stream.Config{Redeliver: 0.001},
		},
		// A producer outlives a topic that is gone for a moment.
		Producer: produce.Config{Client: append([]kgo.Opt{kgo.UnknownTopicRetries(-1)}, client...), Topic: Topic, Rate: 50, Accounts: accountCount, Log: log},
		Pruner:   prune.Config{DSN: dsn, Client: client, Topics: []string{Topic}, Retention: markerRetention, Every: 10 * time.Second, Log: log},
		Outbox:   outbox.Config{Group: Group, Log: log},
		failed:   make(chan error, 8),
		side:     prometheus.NewRegistry(),
	}
	e := &s.Exporter
	if err := config.Defaults(e); err != nil {
		return nil, err
	}
	e.Kafka.Brokers = broker.Brokers()
	e.Postgres.Config = dbconn.To(pg.UserDSN(database, watcher, ""))
	e.Postgres.Retention = markerRetention
	e.Postgres.Effect.Table = "ledger_entries"
	e.Postgres.Effect.Group = Group
	return s, nil
}

// Start writes the past and starts every part. It returns once the exporter's
// first page is complete. Close ends it, also after an error.
func (s *Stack) Start(ctx context.Context) error {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.CreateTopic(ctx); err != nil {
		return err
	}
	if err := s.createDatabase(ctx); err != nil {
		return err
	}
	if err := s.past(ctx); err != nil {
		return err
	}
	for i := range s.members {
		address := s.ConsumerAddress
		if i > 0 {
			address = "127.0.0.1:0"
		}
		m, err := newMember(ctx, s, address)
		if err != nil {
			return err
		}
		s.members[i] = m
	}
	s.Exporter.Consumer.MetricsURL = append(s.Exporter.Consumer.MetricsURL, s.ConsumerURL(0)+"/metrics")
	var err error
	if s.receiver, err = newReceiver(ctx); err != nil {
		return err
	}
	if err := s.StartConsumer(ctx, 0); err != nil {
		return err
	}
	if err := s.StartExporter(ctx); err != nil {
		return err
	}
	if s.Consumer.Notify != payments.NotifyNever {
		s.StartOutbox()
	}
	s.StartProducer()
	if err := s.Polled(ctx); err != nil {
		return err
	}
	s.StartPruner() // once the exporter has seen the table whole
	return nil
}

// Close ends every part.
func (s *Stack) Close() error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	s.parts.Wait()
	if s.receiver != nil {
		s.receiver.close()
	}
	if _, ok := s.Broker.(given); ok && s.created {
		return s.removeTopic()
	}
	return nil
}

// Failed yields the error of a part that ended by itself and is not started
// again.
func (s *Stack) Failed() <-chan error { return s.failed }

func (s *Stack) createDatabase(ctx context.Context) error {
	if err := s.PG.CreateDatabase(ctx, s.database); err != nil {
		return err
	}
	o := schema.Options{Log: s.Log, Partitioned: s.Partitioned, PartitionsBehind: s.History.Markers + 48*time.Hour}
	if err := schema.Migrate(ctx, s.Consumer.DSN, o); err != nil {
		return err
	}
	return s.SQL(ctx,
		"DO $$ BEGIN CREATE ROLE "+watcher+" LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$",
		"GRANT pg_monitor TO "+watcher,
		"GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+watcher,
		// The audit looks for effects without a marker by time.
		"CREATE INDEX ON ledger_entries (created_at)")
}

// past writes what happened before the stack began.
func (s *Stack) past(ctx context.Context) error {
	now := time.Now()
	events := s.History.events(now)
	if len(events) == 0 {
		return nil
	}
	var g errgroup.Group
	g.Go(func() error { return s.History.writeTopic(ctx, s.client, events, now) })
	g.Go(func() error { return writeTables(ctx, s.Consumer.DSN, events) })
	return g.Wait()
}

// SQL runs statements as the superuser.
func (s *Stack) SQL(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.Consumer.DSN)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// part is something that runs until it is stopped.
type part struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (p *part) stop() {
	if p != nil {
		p.cancel()
		<-p.done
	}
}

// run starts a part. One that ends with an error before it is stopped fails
// the stack.
func (s *Stack) run(name string, f func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(s.ctx)
	p := &part{cancel: cancel, done: make(chan struct{})}
	s.parts.Go(func() {
		defer close(p.done)
		defer cancel()
		if err := f(ctx); err != nil && ctx.Err() == nil {
			select {
			case s.failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	})
	return p
}

// Go runs something of a fault in the background until the stack ends.
func (s *Stack) Go(name string, f func(context.Context) error) { s.run(name, f) }

// StartProducer starts a producer by s.Producer, after the one that runs.
func (s *Stack) StartProducer() {
	s.StopProducer()
	cfg := s.Producer
	s.producer = s.run("producer", func(ctx context.Context) error {
		for {
			_, err := produce.Run(ctx, cfg)
			if err == nil || ctx.Err() != nil {
				return nil
			}
			s.Log.Warn("the producer ended, and is started again", "error", err)
			if !sleep(ctx, time.Second) {
				return nil
			}
		}
	})
}

// StopProducer stops the producer.
func (s *Stack) StopProducer() { s.producer.stop(); s.producer = nil }

// StartPruner starts a pruner by s.Pruner, after the one that runs.
func (s *Stack) StartPruner() {
	s.StopPruner()
	cfg := s.Pruner
	cfg.Registerer = s.side
	s.pruner = s.run("pruner", func(ctx context.Context) error { return prune.Run(ctx, cfg) })
}

// StopPruner stops the pruner.
func (s *Stack) StopPruner() { s.pruner.stop(); s.pruner = nil }

// StartExporter starts the exporter by s.Exporter, on the port it had.
func (s *Stack) StartExporter(ctx context.Context) error {
	s.StopExporter()
	cfg := s.Exporter
	started := make(chan collectors.Started, 1)
	failed := make(chan error, 1)
	address := freeOr(ctx, s.ExporterAddress)
	s.exporter = s.run("exporter", func(ctx context.Context) error {
		err := collectors.Serve(ctx, cfg, web.Config{ListenAddress: []string{address}, TelemetryPath: "/metrics"}, s.Log, func(e collectors.Started) { started <- e })
		if err != nil {
			failed <- err
		}
		return err
	})
	select {
	case e := <-started:
		s.url, s.polled = e.URL, e.Polled
		s.ExporterAddress = address
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Polled waits until each of the exporter's collectors has succeeded once.
func (s *Stack) Polled(ctx context.Context) error { return s.polled(ctx) }

// StopExporter stops the exporter.
func (s *Stack) StopExporter() { s.exporter.stop(); s.exporter = nil }

// ExporterURL is the exporter's address.
func (s *Stack) ExporterURL() string { return s.url }

// ConsumerURL is the address of a consumer's metrics; that of the first one
// also serves those of pruner and outbox.
func (s *Stack) ConsumerURL(i int) string { return "http://" + s.members[i].address }

// StartOutbox starts the outbox relay by s.Outbox, after the one that runs.
// One that is killed is started again.
func (s *Stack) StartOutbox() {
	s.outbox.stop()
	cfg := s.Outbox
	cfg.Registerer, cfg.Endpoint = s.side, "http://"+s.receiver.address
	s.outbox = s.run("outbox", func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := s.relay(ctx, cfg); err != nil && ctx.Err() == nil {
				s.Log.Warn("the relay ended, and is started again", "error", err)
			}
			sleep(ctx, s.RestartAfter)
		}
		return nil
	})
}

// relay runs the outbox until ctx ends or the receiver kills it.
func (s *Stack) relay(ctx context.Context, cfg outbox.Config) error {
	c := newCable()
	pool, err := openPool(ctx, s.Consumer.DSN, c)
	if err != nil {
		return err
	}
	defer pool.Close()
	cfg.Pool = pool
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.receiver.kill.Store(func() { c.cut(); cancel() })
	return outbox.Run(ctx, cfg)
}

// serveMetrics serves what the gatherers have until ctx ends.
func serveMetrics(ctx context.Context, l net.Listener, g prometheus.Gatherer) error {
	srv := &http.Server{
		Handler:           promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError}),
		ReadHeaderTimeout: 5 * time.Second,
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listen listens on the address, or on a free port where it is in use.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err == nil {
		return l, nil
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
}

// freeOr is the address, or one with another port where it is in use.
func freeOr(ctx context.Context, address string) string {
	l, err := listen(ctx, address)
	if err != nil {
		return address // the exporter says what is wrong with it
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// sleep is false where ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
