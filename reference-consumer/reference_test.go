//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/metricdoc"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/outbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/prune"
	"oncewatch/reference-consumer/telemetry"
)

var update = flag.Bool("update", false, "write METRICS.md")

// METRICS.md is what consumer, outbox and pruner register.
func TestMetricsReference(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1") // its metrics are there where traces are on
	s := newStage(t, testenv.Postgres(t), fake(t), "payments", 1)
	r := metricdoc.NewRecorder()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ok(t, "produce", "--count=1", "--rate=0", "--partitions=1", "--kafka.brokers="+s.spec.Brokers[0])
	tracer, err := telemetry.StartTracer(ctx, r, group, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer flush(tracer, slog.New(slog.DiscardHandler))
	if err := prune.Run(ctx, prune.Config{DSN: s.dsn, Once: true, Allow: []string{prune.AssertRetention}, Registerer: r}); err != nil {
		t.Fatal(err)
	}
	assigned := make(chan struct{}, 1)
	ended := make(chan error, 2)
	consumer := payments.Config{DSN: s.dsn, Client: []kgo.Opt{kgo.SeedBrokers(s.spec.Brokers...)}, Topic: "payments", Group: group,
		MarkerRetention: 30 * 24 * time.Hour, Registerer: r}
	consumer.Stream.Assigned = func(map[string][]int32) {
		select {
		case assigned <- struct{}{}:
		default:
		}
	}
	go func() { ended <- payments.Run(ctx, consumer) }()
	go func() {
		ended <- outbox.Run(ctx, outbox.Config{Pool: s.pool, Group: group, Endpoint: "http://127.0.0.1:1/", Registerer: r})
	}()
	select {
	case <-assigned:
	case err := <-ended:
		t.Fatal(err)
	}
	testenv.Eventually(t, "an event that was handled", func() bool {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		r.Seen(families)
		n, err := s.query("SELECT count(*) FROM processed_events")
		return err == nil && n == 1
	})
	cancel()
	for range 2 {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	metricdoc.Check(t, "METRICS.md", `# Metrics of the reference consumer

Written from what consumer, outbox and pruner register by `+"`go test ./reference-consumer -run TestMetricsReference -update`"+`. The Go runtime's and the process's own metrics (`+"`go_…`, `process_…`, `promhttp_…`"+`) are not listed. Series of a partition end when the partition is revoked.

`+r.Table(), *update)
}
