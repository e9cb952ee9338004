package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"

	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/telemetry"
)

type produceCmd struct {
	Count      int64   `help:"Events to publish; 0: until stopped."`
	Rate       float64 `default:"100" help:"Events per second; 0: as fast as possible."`
	Duplicates float64 `default:"0.005" help:"Share of events published twice."`
	ReuseIDs   float64 `name:"reuse-ids" help:"Share of events that get the id of an earlier one."`
	Gaps       float64 `help:"Share of events that are numbered but not published."`
	Poison     float64 `help:"Share of events that cannot be applied."`
	Partitions int32   `help:"Create the topic with so many partitions if it does not exist."`
	Accounts   int     `default:"1000" help:"Accounts to pay into."`
}

func (p *produceCmd) Run(ctx context.Context, s *Shared, out *output) error {
	log, err := s.Log.New(out.stderr)
	if err != nil {
		return err
	}
	client, err := s.Kafka.Options()
	if err != nil {
		return err
	}
	traceErrors(log)
	tracer, err := telemetry.StartTracer(ctx, prometheus.NewRegistry(), "", 1)
	if err != nil {
		return err
	}
	defer flush(tracer, log)
	stats, err := produce.Run(ctx, produce.Config{Client: client, Tracer: tracer, Topic: s.Topic, Partitions: p.Partitions, Count: p.Count, Rate: p.Rate,
		Duplicates: p.Duplicates, ReuseIDs: p.ReuseIDs, Gaps: p.Gaps, Poison: p.Poison, Accounts: p.Accounts, Log: log})
	fmt.Fprintf(out.stdout, "published %d events: %d twice, %d with a reused id, %d left out, %d poisoned\n", stats.Events, stats.Duplicates, stats.ReusedIDs, stats.Gaps, stats.Poison)
	return err
}

// traceErrors sends what the trace SDK has to complain about to the log, at a
// level at which an endpoint that is down does not drown the rest.
func traceErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("traces", "error", err) }))
}

// flush exports the last spans; an endpoint that hangs does not keep the
// program from ending.
func flush(t *telemetry.Tracer, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := t.Shutdown(ctx); err != nil {
		log.Warn("the last spans could not be exported", "error", err)
	}
}
