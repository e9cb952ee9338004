package dashboards

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/alerts"
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
	// Nobody answers there: the panel of what could not be read needs something.
	s.Exporter.Consumer.MetricsURL = append(s.Exporter.Consumer.MetricsURL, "http://127.0.0.1:1/metrics")
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
		for where := range needsHistory {
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

	// The tables that every query and every rule is written from say what the
	// programs export.
	for name, labels := range metrics {
		p.exports(t, name, labels)
	}
	for _, program := range alerts.Metrics() {
		for name, m := range program {
			if m.Type == "histogram" {
				name, m.Labels = name+"_bucket", append(m.Labels, "le")
			}
			p.exports(t, name, m.Labels)
		}
	}
}

// exports fails where the stored series of a metric have other labels.
func (s server) exports(t *testing.T, name string, labels []string) {
	t.Helper()
	var series []map[string]string
	s.get(t, "/api/v1/series", url.Values{"match[]": {name}}, &series)
	if len(series) == 0 && unseen[name] != "" {
		return
	}
	seen := map[string]bool{}
	for _, one := range series {
		for l := range one {
			seen[l] = true
		}
	}
	for _, l := range []string{"__name__", "job", "instance"} {
		delete(seen, l)
	}
	ours := func(names []string) []string {
		slices.Sort(names)
		return slices.DeleteFunc(names, builds)
	}
	if got, want := ours(slices.Collect(maps.Keys(seen))), ours(slices.Clone(labels)); !slices.Equal(got, want) {
		t.Errorf("%s is exported with the labels %v, the table has %v (%d series)", name, got, want, len(series))
	}
}

// builds tells the labels of oncewatch_build_info that depend on how the program was
// built, or that no query uses.
func builds(label string) bool {
	return slices.Contains([]string{"version", "branch", "goarch", "goos", "tags"}, label)
}

// needsHistory are the queries that a Prometheus of a minute cannot answer, and
// why: the scenes answer them.
var needsHistory = map[string]string{
	"oncewatch-group / Lag in records, by partition / B":     "there are no more than ten partitions",
	"oncewatch-group / Lag in time, by partition / B":        "there are no more than ten partitions",
	"oncewatch-group / Commits outside the log / B":          "there are no more than ten partitions",
	"oncewatch-table / Share of the row limit in 7 days / A": "there are no counts of a day before",
	"oncewatch-table / Rows, and in 7 days / B":              "there are no counts of a day before",
	"oncewatch-table / Growth over 1d / A":                   "there are no counts of a day before",
	"oncewatch-overview / How many alerts fire / A":          "this Prometheus has not the rules that prove that they are evaluated",
	"oncewatch-overview / How many alerts fire / C":          "this Prometheus has not the rules that prove that they are evaluated",
}

// demoLacks are the queries that the demo may leave without an answer, and why.
var demoLacks = map[string]string{
	"oncewatch-group / Commits outside the log / C": "no commit of the demo lies outside the log",
	"oncewatch-table / Ledger / B":                  "counts that are exact have no reason why they are not",
}

// unseen are the metrics that this Prometheus may not store, and why.
var unseen = map[string]string{
	"oncewatch_ledger_inexact":            demoLacks["oncewatch-table / Ledger / B"],
	"processed_events_rows_without_time":  "the demo's column cannot be NULL",
	"consumer_records_expired_unverified": "the demo loses no record",
	"event_handle_duration_seconds":       "it stores the histogram's classic buckets",
}
