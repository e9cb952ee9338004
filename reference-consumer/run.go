package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"oncewatch/reference-consumer/outbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/telemetry"
)

type runCmd struct {
	BatchSize           int           `default:"200" help:"Most events a transaction; 1: one transaction an event."`
	Allow               []string      `placeholder:"NAME" help:"Waive a startup assertion."`
	Retention           time.Duration `default:"8d" help:"How long the pruner keeps markers (0: for ever); must exceed the topic's retention."`
	RedeliverFrom       []string      `placeholder:"TOPIC" help:"Further topics events may come back from, such as a retry topic."`
	EventID             string        `name:"event-id" enum:"header,key" default:"header" help:"Where the event id is: the header event_id, or the record's key."`
	SetBased            bool          `help:"Apply a batch's effects in one statement."`
	InstanceID          string        `name:"instance-id" help:"Static membership: a name of this instance's own."`
	ServerSideBalancing bool          `help:"Use the group protocol of KIP-848 (Kafka 4.0 and later)."`
	SessionTimeout      time.Duration `default:"30s" help:"Group session timeout."`
	RebalanceTimeout    time.Duration `default:"60s" help:"Group rebalance timeout."`
	ShutdownTimeout     time.Duration `default:"15s" help:"Most time to finish after SIGTERM."`
	HandlerTimeout      time.Duration `default:"20s" help:"Most time one event may be handled; then its partition is paused, and the event tried again."`
	Notify              string        `placeholder:"URL" help:"Deliver confirmations from the outbox to this address."`
	NotifyPer           string        `enum:"operation,event" default:"operation" help:"Identity of a confirmation: the business operation, or the event."`
}

func (r *runCmd) Run(ctx context.Context, s *Shared, out *output) error {
	log, err := s.Log.New(out.stderr)
	if err != nil {
		return err
	}
	client, err := s.Kafka.Options()
	if err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	var ready atomic.Bool
	stop, err := s.serve(reg, log, ready.Load)
	if err != nil {
		return err
	}
	defer stop()
	traceErrors(log)
	tracer, err := telemetry.StartTracer(ctx, reg, s.Group, r.BatchSize)
	if err != nil {
		return err
	}
	defer flush(tracer, log)
	dsn, err := s.Postgres.ConnString()
	if err != nil {
		return err
	}
	cfg := payments.Config{
		DSN: dsn.Reveal(), BeforeConnect: s.Postgres.BeforeConnect(), MaxConnections: s.Postgres.MaxConnections, Client: client, Topic: s.Topic, Group: s.Group,
		IDFromKey: r.EventID == "key", SetBased: r.SetBased, MarkerRetention: r.Retention, RedeliverFrom: r.RedeliverFrom, Allow: r.Allow,
		Notify: payments.NotifyNever, Registerer: reg, Tracer: tracer, Log: log,
	}
	cfg.Stream.BatchSize, cfg.Stream.InstanceID, cfg.Stream.ServerSideBalancing = r.BatchSize, r.InstanceID, r.ServerSideBalancing
	cfg.Stream.SessionTimeout, cfg.Stream.RebalanceTimeout, cfg.Stream.ShutdownTimeout = r.SessionTimeout, r.RebalanceTimeout, r.ShutdownTimeout
	cfg.Inbox.HandlerTimeout, cfg.Inbox.TransactionTimeout = r.HandlerTimeout, max(30*time.Second, r.HandlerTimeout+10*time.Second)
	cfg.Stream.Assigned = func(map[string][]int32) { ready.Store(true) }
	g, ctx := errgroup.WithContext(ctx)
	if r.Notify != "" {
		cfg.Notify = payments.NotifyPer(r.NotifyPer)
		pool, err := s.Postgres.pool(ctx, 4)
		if err != nil {
			return err
		}
		defer pool.Close()
		g.Go(func() error {
			return outbox.Run(ctx, outbox.Config{Pool: pool, Group: s.Group, Endpoint: r.Notify, Registerer: reg, Log: log})
		})
	}
	g.Go(func() error { return payments.Run(ctx, cfg) })
	return g.Wait()
}

// check refuses values that would otherwise be taken for something else.
func (r *runCmd) check() error {
	if r.BatchSize < 1 {
		return fmt.Errorf("--batch-size=%d: at least 1", r.BatchSize)
	}
	if r.Retention < 0 {
		return fmt.Errorf("--retention=%s: not below 0, which means for ever", r.Retention)
	}
	for flag, d := range map[string]time.Duration{"session-timeout": r.SessionTimeout, "rebalance-timeout": r.RebalanceTimeout, "shutdown-timeout": r.ShutdownTimeout, "handler-timeout": r.HandlerTimeout} {
		if d <= 0 {
			return fmt.Errorf("--%s=%s: must be positive", flag, d)
		}
	}
	if r.Notify == "" {
		return nil
	}
	if u, err := url.Parse(r.Notify); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("--notify: no URL: give it as http://host/path")
	}
	return nil
}
