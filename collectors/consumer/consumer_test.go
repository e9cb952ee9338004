package consumer_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/consumer"
)

const page = `# TYPE events_handled_total counter
events_handled_total{consumer_group="g",topic="t",outcome="processed"} %d
events_handled_total{consumer_group="g",topic="t",outcome="duplicate"} 5
# TYPE events_duplicate_origin_total counter
events_duplicate_origin_total{consumer_group="g",topic="t",origin="other_offset"} 2
events_duplicate_origin_total{consumer_group="g",topic="t",origin="same_offset"} 3
# TYPE event_handle_duration_seconds histogram
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.1"} 90
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.2"} 98
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.4"} 100
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="+Inf"} 100
event_handle_duration_seconds_sum{consumer_group="g",topic="t"} 7
event_handle_duration_seconds_count{consumer_group="g",topic="t"} 100
# TYPE consumer_offset_commit_lag_seconds gauge
consumer_offset_commit_lag_seconds{consumer_group="g",topic="t",partition="0"} 0.5
consumer_offset_commit_lag_seconds{consumer_group="g",topic="t",partition="1"} 3
`

func TestSumsOverConsumersAndTheWindow(t *testing.T) {
	processed := 95
	serve := func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, page, processed) }
	a, b := httptest.NewServer(http.HandlerFunc(serve)), httptest.NewServer(http.HandlerFunc(serve))
	defer a.Close()
	now := time.Unix(0, 0)
	s := consumer.New(consumer.Config{MetricsURL: []string{a.URL, b.URL}}, func() time.Time { return now })
	defer s.Close()
	key := consumer.Key{Group: "g", Topic: "t"}
	read := func() *consumer.Snapshot {
		t.Helper()
		got, err := s.Poll(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return got.(*consumer.Snapshot)
	}

	first := read()
	v := first.Values[key]
	if first.Span != 0 || v.Processed != 190 || v.Duplicates != 10 || v.Elsewhere != 4 || v.CommitLag != 3 {
		t.Errorf("since the start: %v %+v", first.Span, v)
	}
	if q := v.Quantile(0.99); math.Abs(q-0.3) > 1e-9 {
		t.Errorf("p99 = %v, want 0.3 (half of the way from 0.2 to 0.4)", q)
	}

	now, processed = now.Add(time.Minute), 195
	second := read()
	if v := second.Values[key]; second.Span != time.Minute || v.Processed != 200 || v.Duplicates != 0 || !math.IsNaN(v.Quantile(0.99)) {
		t.Errorf("over a minute: %v %+v", second.Span, v)
	}

	processed = 3 // restarted
	if third := read(); third.Span != 0 || third.Values[key].Processed != 6 {
		t.Errorf("after a restart: %v %+v", third.Span, third.Values[key])
	}

	b.Close() // the other one still counts, and the sums are not mixed
	fourth := read()
	if len(fourth.Problems()) != 1 || fourth.Values[key].Processed != 3 || fourth.Span != 0 {
		t.Errorf("one away: %+v", fourth)
	}
}

func TestSecretsStayOut(t *testing.T) {
	s := consumer.New(consumer.Config{MetricsURL: []string{"http://u:hunter2@127.0.0.1:1/metrics"}}, nil)
	if _, err := s.Poll(context.Background()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error: %v", err)
	}
	s = consumer.New(consumer.Config{MetricsURL: []string{"http://hunter2@127.0.0.1:1/metrics?token=hunter2"}}, nil)
	if _, err := s.Poll(context.Background()); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "http://127.0.0.1:1/metrics") {
		t.Errorf("error: %v", err)
	}
	if err := (consumer.Config{MetricsURL: []string{"ftp://u:hunter2@x"}}).Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error: %v", err)
	}
}
