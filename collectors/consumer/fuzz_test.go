package consumer

import (
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// answers serves one page after the other.
type answers []string

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	page := (*a)[0]
	*a = (*a)[1:]
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(page)), Header: http.Header{}, Request: r}, nil
}

// Whatever two readings of a page hold, each figure is a number of events or of
// seconds, or says in few words why it is none, and an error repeats nothing of
// the page.
//
//	go test ./collectors/consumer -run '^$' -fuzz FuzzPage -fuzztime 10m
func FuzzPage(f *testing.F) {
	const page = `# TYPE events_handled_total counter
events_handled_total{consumer_group="g",topic="t",outcome="processed"} 1000
events_handled_total{consumer_group="g",topic="t",outcome="duplicate"} 3
# TYPE event_handle_duration_seconds histogram
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.2"} 990
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="+Inf"} 1003 # {trace_id="a"} 0.3
event_handle_duration_seconds_count{consumer_group="g",topic="t"} 1003
consumer_offset_commit_lag_seconds{consumer_group="g",topic="t",partition="0"} 0.5
events_lost_total{consumer_group="g",topic="t",partition="0"} 0
consumer_start_time_seconds{consumer_group="g"} 1.7999e+09
`
	f.Add(page, strings.ReplaceAll(page, "1003", "2003"))
	f.Add(page, strings.ReplaceAll(page, "processed", "hunter2"))
	f.Add(page, strings.ReplaceAll(page, "} 3", "} NaN"))
	f.Add("", "<html>hunter2</html>")
	f.Fuzz(func(t *testing.T, first, second string) {
		now := time.Unix(1_800_000_000, 0)
		s, err := New(Config{MetricsURL: []string{"http://consumer:1/metrics"}}, func() time.Time { now = now.Add(time.Minute); return now })
		if err != nil {
			t.Fatal(err)
		}
		s.client = &http.Client{Transport: &answers{first, second}}
		for range 2 {
			got, err := s.Poll(t.Context())
			if err != nil {
				if strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 300 {
					t.Fatalf("an error repeats the page: %v", err)
				}
				continue
			}
			for k, v := range got.(*Snapshot).Values {
				for name, one := range map[string]Figure{"processed": v.Processed, "duplicates": v.Duplicates, "elsewhere": v.Elsewhere, "p99": v.P99, "timed": v.Timed,
					"retries": v.Retries, "dead": v.DeadLettered, "lost": v.Lost, "ever": v.EverDuplicate, "lag": v.CommitLag} {
					if one.OK() && (!(one.Value >= 0) || math.IsInf(one.Value, 0)) {
						t.Errorf("%+v: %s is %g", k, name, one.Value)
					}
					if len(one.Missing) > 400 {
						t.Errorf("%+v: %s lacks %d bytes of text", k, name, len(one.Missing))
					}
				}
			}
		}
	})
}
