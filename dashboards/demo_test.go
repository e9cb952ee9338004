package dashboards

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/deploy/demo"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/payments"
)

// Every query returns data from a Prometheus that scraped the demo: no program
// exports a metric or a label under another name than the dashboards use. Poison
// and an outbox are switched on, whose series are born with their first event.
func TestDashboardsOfTheDemo(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresServer(t, pgserver.Options{})
	broker, err := demo.StartBroker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	s, err := demo.New(pg, broker, "dashboards", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Exporter.Poll.Interval = time.Second
	s.Exporter.Postgres.RowLimit = 1_000_000
	s.Producer.Rate, s.Producer.Poison, s.Producer.Duplicates = 200, 0.01, 0.01
	s.Consumer.Notify = payments.NotifyOperation
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	address := func(url string) string {
		return strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics")
	}
	p := startPrometheus(t, false, map[string]string{
		"oncewatch": address(s.ExporterURL()), "reference-consumer": address(s.ConsumerURL(0)),
	})
	// Series are born with their first event: ask until all are there.
	missing := func() map[string]string {
		empty := p.unanswered(t)
		for where := range demoLacks {
			delete(empty, where)
		}
		return empty
	}
	empty := missing()
	for tick := time.NewTicker(time.Second); len(empty) > 0 && ctx.Err() == nil; empty = missing() {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	for where, e := range empty {
		t.Errorf("%s: no data: %s", where, e)
	}

	// The table that every query is written from says what the programs export.
	for name, labels := range metrics {
		var series []map[string]string
		p.get(t, "/api/v1/series", url.Values{"match[]": {name}}, &series)
		seen := map[string]bool{}
		for _, s := range series {
			for l := range s {
				seen[l] = true
			}
		}
		for _, l := range []string{"__name__", "job", "instance"} {
			delete(seen, l)
		}
		got, want := slices.Sorted(maps.Keys(seen)), slices.Sorted(slices.Values(labels))
		if len(series) == 0 && unseen[name] != "" {
			continue
		}
		if !slices.Equal(slices.DeleteFunc(got, stamped), want) {
			t.Errorf("%s is exported with the labels %v, the table has %v (%d series)", name, got, want, len(series))
		}
	}
}

// stamped tells the labels that only a release has.
func stamped(label string) bool { return label == "version" || label == "branch" }

// demoLacks are the queries that the demo may leave without an answer, and why.
var demoLacks = map[string]string{
	"oncewatch-table / Ledger / B": "counts that are exact have no reason why they are not",
}

// unseen are the metrics that this Prometheus may not store, and why.
var unseen = map[string]string{
	"oncewatch_ledger_inexact":      demoLacks["oncewatch-table / Ledger / B"],
	"event_handle_duration_seconds": "it stores the histogram's classic buckets",
}
