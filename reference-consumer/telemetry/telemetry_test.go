package telemetry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestMetricsFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := NewConsumer(reg, "g", time.Unix(1_700_000_000, 0))
	topic := c.Topic("payments")
	c.Partition("payments", "0")
	const want = `
# HELP consumer_rebalances_total Times the group's assignment changed for this member.
# TYPE consumer_rebalances_total counter
consumer_rebalances_total{consumer_group="g"} 0
# HELP consumer_start_time_seconds Unix time at which consuming began.
# TYPE consumer_start_time_seconds gauge
consumer_start_time_seconds{consumer_group="g"} 1.7e+09
# HELP event_retries_total Failed attempts that were repeated. Absent until a partition of the topic is assigned.
# TYPE event_retries_total counter
event_retries_total{consumer_group="g",topic="payments"} 0
# HELP events_duplicate_origin_total Duplicates by where they came from: redelivered from the marker's own offset, or published again at another.
# TYPE events_duplicate_origin_total counter
events_duplicate_origin_total{consumer_group="g",origin="other_offset",topic="payments"} 0
events_duplicate_origin_total{consumer_group="g",origin="same_offset",topic="payments"} 0
# HELP events_handled_total Events handled, by outcome: processed or duplicate. Absent until a partition of the topic is assigned.
# TYPE events_handled_total counter
events_handled_total{consumer_group="g",outcome="duplicate",topic="payments"} 0
events_handled_total{consumer_group="g",outcome="processed",topic="payments"} 0
# HELP events_lost_total Events known to be lost: gaps in a producer's sequence, and records deleted by the broker before they were handled.
# TYPE events_lost_total counter
events_lost_total{consumer_group="g",partition="0",topic="payments"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "consumer_rebalances_total", "consumer_start_time_seconds", "event_retries_total",
		"events_duplicate_origin_total", "events_handled_total", "events_lost_total"); err != nil {
		t.Error(err)
	}
	topic.Observe(150*time.Millisecond, "")
	topic.Observe(time.Second, "4bf92f3577b34da6a3ce929d0e0e4736")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "event_handle_duration_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if h.GetSchema() == 0 && len(h.GetPositiveSpan()) == 0 {
			t.Error("no native buckets")
		}
		exemplar := ""
		bounds := []float64{}
		for _, b := range h.GetBucket() {
			bounds = append(bounds, b.GetUpperBound())
			if b.GetUpperBound() == 0.2 && b.GetCumulativeCount() != 1 {
				t.Errorf("%d observations up to 0.2, want 1", b.GetCumulativeCount())
			}
			for _, l := range b.GetExemplar().GetLabel() {
				exemplar = l.GetValue()
			}
		}
		if !slices.Contains(bounds, 0.2) {
			t.Errorf("bounds %v: want one at exactly 0.2", bounds)
		}
		if exemplar != "4bf92f3577b34da6a3ce929d0e0e4736" {
			t.Errorf("exemplar %q", exemplar)
		}
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	c.Unregister()
	if left, err := reg.Gather(); err != nil || len(left) != 0 {
		t.Errorf("%d families left, %v", len(left), err)
	}
}

// Of several traceparent headers the last that is valid counts.
func TestLastValidTraceParentWins(t *testing.T) {
	const a, b = "00-11111111111111111111111111111111-2222222222222222-01", "00-33333333333333333333333333333333-4444444444444444-00"
	for name, c := range map[string]struct {
		headers []string
		want    string
	}{
		"none":              {nil, ""},
		"one":               {[]string{a}, "11111111111111111111111111111111"},
		"two":               {[]string{a, b}, "33333333333333333333333333333333"},
		"garbage last":      {[]string{a, "garbage"}, "11111111111111111111111111111111"},
		"all zero last":     {[]string{a, "00-00000000000000000000000000000000-0000000000000000-00"}, "11111111111111111111111111111111"},
		"nothing but noise": {[]string{"", "\x00\xff", "00-1-2-3"}, ""},
	} {
		r := &kgo.Record{}
		for _, h := range c.headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "traceparent", Value: []byte(h)})
		}
		sc := Remote(r)
		if got := sc.TraceID().String(); sc.IsValid() != (c.want != "") || c.want != "" && got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A nil Tracer is no tracing: nothing panics, nothing is added.
func TestNilTracer(t *testing.T) {
	var tr *Tracer
	r := &kgo.Record{Topic: "t"}
	tr.Send(t.Context(), r)(nil)
	tr.Polled("t", time.Now(), 1)
	_, p := tr.Process(t.Context(), "t", 0, []*kgo.Record{r})
	p.End(errors.New("x"))
	tr.Commit(t.Context(), "t", nil)(nil)
	if p.Sampled() || p.TraceID() != "" || p.TraceParent() != "" || len(r.Headers) != 0 || tr.Shutdown(t.Context()) != nil {
		t.Error("a nil tracer did something")
	}
}

// What is not sampled leaves no trace id anywhere: it would point nowhere.
func TestUnsampled(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.NeverSample()))
	tr := NewTracer(provider, "g")
	_, p := tr.Process(context.Background(), "t", 0, nil)
	p.End(nil)
	if p.TraceID() != "" || p.TraceParent() != "" || len(spans.GetSpans()) != 0 {
		t.Errorf("trace id %q, traceparent %q, %d spans", p.TraceID(), p.TraceParent(), len(spans.GetSpans()))
	}
}
