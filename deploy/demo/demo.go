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
	"strings"
	"time"

	"oncewatch/deploy/pgserver"
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

// injectAfter is how long everything runs well before the fault.
const injectAfter = 10 * time.Second

// Run runs the demo until ctx or Options.Duration ends, then ends everything
// it started and removes what it wrote.
func Run(ctx context.Context, o Options, out io.Writer, log *slog.Logger) (err error) {
	fault, err := findFault(o.Fault)
	if err != nil {
		return err
	}
	if o.Duration < 0 || !(o.Rate > 0) {
		return errors.New("--duration must not be negative, and --rate must be above 0")
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

	var broker Broker = given(o.Brokers)
	if len(o.Brokers) == 0 {
		b, err := StartBroker()
		if err != nil {
			return err
		}
		defer b.Close()
		broker = b
	}
	s, err := New(pg, broker, "demo", log)
	if err != nil {
		return err
	}
	s.ExporterAddress, s.ConsumerAddress = o.Listen, o.Consumer
	s.Exporter.Poll.Interval = o.Interval
	s.Producer.Rate = o.Rate
	if fault != nil {
		fault.Prepare(s)
	}
	say("Writing nine days of history …")
	defer func() {
		err = errors.Join(err, s.Close())
		say("Ended; everything that was started is stopped and removed.")
	}()
	if err := s.Start(ctx); err != nil {
		return err
	}
	say("Exporter            %s  (metrics: %s/metrics)", s.ExporterURL(), s.ExporterURL())
	say("Reference consumer  %s/metrics", s.ConsumerURL(0))
	for asked, got := range map[string]string{o.Listen: s.ExporterURL(), o.Consumer: s.ConsumerURL(0)} {
		if !strings.HasSuffix(asked, ":0") && !strings.HasSuffix(got, asked) {
			say("%s is in use: another port was taken.", asked)
		}
	}
	say("PostgreSQL          %s", s.Consumer.DSN)
	say("Kafka               %s", strings.Join(broker.Brokers(), ","))
	say("First full page after %.1f s. Open %s to see the checklist; Ctrl-C ends it all.", time.Since(began).Seconds(), s.ExporterURL())
	if o.Ready != nil {
		o.Ready(Addresses{Exporter: s.ExporterURL(), Consumer: s.ConsumerURL(0), DSN: s.Consumer.DSN, Brokers: broker.Brokers()})
	}
	inject := make(<-chan time.Time)
	if fault != nil {
		say("In %s: %s", injectAfter, fault.Story)
		inject = time.After(injectAfter)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.Failed():
			return err
		case <-inject:
			say("Now: %s.", fault.Name)
			if err := fault.Inject(ctx, s); err != nil {
				return fmt.Errorf("fault %s: %w", fault.Name, err)
			}
		}
	}
}
