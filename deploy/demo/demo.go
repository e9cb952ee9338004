// Package demo runs everything on one machine with nothing set up beforehand:
// a throw-away PostgreSQL, a Kafka broker, the reference consumer with its
// pruner, a producer that also redelivers, and the exporter that watches them.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"oncewatch/collectors"
	"oncewatch/collectors/config"
	"oncewatch/collectors/web"
	"oncewatch/deploy/pgserver"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/prune"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/stream"
)

// What the demo works on.
const (
	Topic          = "payments"
	Group          = "ledger-writer"
	partitionCount = 4
	database       = "demo"
)

// Options are the flags of `oncewatch demo`.
type Options struct {
	Duration time.Duration `placeholder:"DURATION" help:"End by itself after this time. Default: on Ctrl-C."`
	Fault    string        `placeholder:"NAME" help:"Let one thing go wrong and see it found: ${demo_faults}."`
	Rate     float64       `default:"50" help:"Events per second."`
	Brokers  []string      `name:"kafka.brokers" placeholder:"HOST:PORT" help:"A Kafka cluster to use instead of a broker in this process. The topic payments is created in it, and deleted at the end."`
	Listen   string        `name:"web.listen-address" default:"127.0.0.1:10077" help:"Address of the exporter."`
	Consumer string        `name:"consumer.listen-address" default:"127.0.0.1:10078" help:"Address of the reference consumer's metrics."`
	Interval time.Duration `name:"poll.interval" default:"5s" help:"Time between two polls of the exporter."`

	BinaryRepository string `name:"postgres.binary-repository" placeholder:"URL" help:"Maven repository to fetch PostgreSQL from where the machine has none."`

	// Ready is called once everything runs; for tests.
	Ready func(Addresses) `kong:"-"`
}

// Addresses of a running demo.
type Addresses struct {
	Exporter, Consumer, DSN string
	Brokers                 []string
}

// Run runs the demo until ctx or Options.Duration ends, then ends everything
// it started and removes what it wrote.
func Run(ctx context.Context, o Options, out io.Writer, log *slog.Logger) (err error) {
	fault, err := findFault(o.Fault)
	if err != nil {
		return err
	}
	if o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	defer func() {
		if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
			err = nil // asked to end while still starting
		}
	}()
	began := time.Now()
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }

	say("Starting PostgreSQL …")
	pg, err := pgserver.Start(ctx, pgserver.Options{BinaryRepository: o.BinaryRepository})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	if err := pg.CreateDatabase(ctx, database); err != nil {
		return err
	}
	dsn := pg.DSN(database)

	brokers, closeBroker, err := startBroker(ctx, o.Brokers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBroker()) }()
	client := []kgo.Opt{kgo.SeedBrokers(brokers...)}

	say("Writing nine days of history …")
	if err := schema.Migrate(ctx, dsn, schema.Options{Log: log}); err != nil {
		return err
	}
	now := time.Now()
	events := history(now)
	var seed errgroup.Group
	seed.Go(func() error { return writeTopic(ctx, client, events, now) })
	seed.Go(func() error { return writeTables(ctx, dsn, events) })
	if err := seed.Wait(); err != nil {
		return err
	}

	s := &stack{
		dsn: dsn, client: client, log: log, registry: prometheus.NewRegistry(),
		// A share of the events is handed over twice, as after a rebalance.
		consumer: payments.Config{DSN: dsn, Client: client, Topic: Topic, Group: Group, MarkerRetention: markerRetention, Stream: stream.Config{Redeliver: 0.004}},
		producer: produce.Config{Client: client, Topic: Topic, Rate: o.Rate, Accounts: accountCount},
		pruner:   prune.Config{DSN: dsn, Client: client, Topics: []string{Topic}, Retention: markerRetention, Every: 10 * time.Second},
	}
	if fault != nil {
		fault.apply(s)
		say("Fault: %s. %s", fault.Name, fault.Story)
	}
	return s.run(ctx, o, brokers, say, began)
}

// markerRetention is what the demo's pruner keeps: the runbook's eight days
// for a seven-day topic.
const markerRetention = 8 * 24 * time.Hour

// topicConfig is that of a seven-day topic whose segments roll soon enough for
// eight days of markers: a record stays up to retention.ms + segment.ms.
func topicConfig() map[string]*string {
	return map[string]*string{"retention.ms": kadm.StringPtr("604800000"), "segment.ms": kadm.StringPtr("14400000")}
}

// startBroker starts a broker in this process, or uses the ones given, and
// creates the topic.
func startBroker(ctx context.Context, given []string) (addresses []string, end func() error, err error) {
	addresses, end = given, func() error { return nil }
	if len(given) == 0 {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, nil, fmt.Errorf("start a broker in this process: %w", err)
		}
		addresses, end = cluster.ListenAddrs(), func() error { cluster.Close(); return nil }
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.RetryTimeout(10*time.Second))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--kafka.brokers: %w", err), end())
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	created, err := admin.CreateTopic(ctx, partitionCount, -1, topicConfig(), Topic)
	if err == nil {
		err = created.Err
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		err = fmt.Errorf("it is there already, and the demo would delete it at its end: use another cluster")
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("create topic %s: %w", Topic, err), end())
	}
	if len(given) == 0 {
		return addresses, end, nil
	}
	return addresses, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		client, err := kgo.NewClient(kgo.SeedBrokers(given...), kgo.RetryTimeout(10*time.Second))
		if err != nil {
			return err
		}
		defer client.Close()
		admin := kadm.NewClient(client)
		_, err1 := admin.DeleteTopics(ctx, Topic)
		_, err2 := admin.DeleteGroups(ctx, Group)
		return errors.Join(err1, err2)
	}, nil
}

// stack is what runs; a fault changes it before it starts.
type stack struct {
	dsn      string
	client   []kgo.Opt
	log      *slog.Logger
	registry *prometheus.Registry

	consumer payments.Config
	producer produce.Config
	pruner   prune.Config
	// also run beside the rest.
	also []func(context.Context) error
}

func (s *stack) run(ctx context.Context, o Options, brokers []string, say func(string, ...any), began time.Time) error {
	consumerListener, err := listen(ctx, o.Consumer)
	if err != nil {
		return err
	}
	var exporter collectors.Config
	if err := config.Defaults(&exporter); err != nil {
		return err
	}
	exporter.Poll.Interval = o.Interval
	exporter.Consumer.MetricsURL = []string{"http://" + consumerListener.Addr().String() + "/metrics"}
	exporter.Kafka.Brokers = brokers
	exporter.Postgres.DSN = s.dsn
	exporter.Postgres.Retention = markerRetention
	exporter.Postgres.Effect.Table = "ledger_entries"
	exporter.Postgres.Effect.Group = Group
	webConfig := web.Config{ListenAddress: []string{freeOr(ctx, o.Listen)}, TelemetryPath: "/metrics"}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	start := func(what string, f func(context.Context) error) {
		g.Go(func() error {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	s.consumer.Registerer, s.consumer.Log = s.registry, s.log
	s.pruner.Registerer, s.pruner.Log = s.registry, s.log
	s.producer.Log = s.log
	polled := make(chan struct{})
	start("exporter", func(ctx context.Context) error {
		return collectors.Serve(ctx, exporter, webConfig, s.log, func(e collectors.Started) {
			go func() { // ends with e.Polled or ctx
				if e.Polled(ctx) == nil {
					say("Exporter            %s  (metrics: %s/metrics)", e.URL, e.URL)
					say("Reference consumer  http://%s/metrics", consumerListener.Addr())
					say("PostgreSQL          %s", s.dsn)
					say("Kafka               %v", brokers)
					say("First full page after %.1f s. Open %s to see the checklist; Ctrl-C ends it all.", time.Since(began).Seconds(), e.URL)
					close(polled)
					if o.Ready != nil {
						o.Ready(Addresses{Exporter: e.URL, Consumer: "http://" + consumerListener.Addr().String(), DSN: s.dsn, Brokers: brokers})
					}
				}
			}()
		})
	})
	start("consumer", func(ctx context.Context) error { return payments.Run(ctx, s.consumer) })
	start("consumer's metrics", func(ctx context.Context) error { return serveMetrics(ctx, consumerListener, s.registry) })
	start("producer", func(ctx context.Context) error { _, err := produce.Run(ctx, s.producer); return err })
	start("pruner", func(ctx context.Context) error {
		select { // let the exporter see the table whole first
		case <-polled:
		case <-ctx.Done():
			return nil
		}
		return prune.Run(ctx, s.pruner)
	})
	for _, f := range s.also {
		start("fault", f)
	}
	err = g.Wait()
	say("Ended; everything that was started is stopped and removed.")
	return err
}

func serveMetrics(ctx context.Context, l net.Listener, reg *prometheus.Registry) error {
	srv := &http.Server{
		Handler:           promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}),
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

// freeOr is the address, or one with port 0 where it is in use.
func freeOr(ctx context.Context, address string) string {
	l, err := listen(ctx, address)
	if err != nil {
		return address // the exporter says what is wrong with it
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
