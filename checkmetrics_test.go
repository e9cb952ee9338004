package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command reads addresses and files, says in text and JSON what is wrong, and
// exits with 0, 1 or 2.
func TestCheckMetrics(t *testing.T) {
	const page = `# TYPE events_handled_total counter
events_handled_total{consumer_group="g",topic="t",outcome="processed"} 1
events_handled_total{consumer_group="g",topic="t",outcome="duplicate"} 0
# TYPE event_handle_duration_seconds histogram
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.2"} 1
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="+Inf"} 1
event_handle_duration_seconds_sum{consumer_group="g",topic="t"} 0.1
event_handle_duration_seconds_count{consumer_group="g",topic="t"} 1
# TYPE consumer_offset_commit_lag_seconds gauge
consumer_offset_commit_lag_seconds{consumer_group="g",topic="t",partition="0"} 0
`
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.prom", page)
	late := file("late.prom", strings.ReplaceAll(page, "events_handled_total{consumer_group=\"g\",topic=\"t\",outcome=\"duplicate\"} 0\n", ""))
	other := file("other.prom", strings.ReplaceAll(page, "events_handled_total", "app_total"))
	names := file("names.yml", "metrics: {events_handled_total: {name: app_total}}")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(page))
	}))
	defer server.Close()
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{good, 0, "Conforms"},
		{server.URL + "/metrics", 0, "Conforms"},
		{late, 1, "ConsumerDuplicateRatioHigh"},
		{good + " " + late, 1, "on " + late},
		{"--set latency_p99=0.5 " + good, 1, "no bucket with the upper bound 0.5"},
		{other, 1, "events_handled_total: it is not there"},
		{"--metrics.map=" + names + " " + other, 0, "Conforms"},
		{names, 2, "no metric"},
		{server.URL + "/none", 2, "404"},
		{filepath.Join(dir, "none"), 2, "no such file"},
		{"--metrics.map=" + good + " " + good, 2, "--metrics.map"},
		{"", 2, "--prometheus.url"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"check-metrics"}, strings.Fields(c.args)...), &out, &errs)
		if code != c.code || !strings.Contains(out.String()+errs.String(), c.says) {
			t.Errorf("check-metrics %s: exit %d, want %d and %q\n%s%s", c.args, code, c.code, c.says, &out, &errs)
		}
	}
	var out, errs bytes.Buffer
	var answer struct {
		Version  int
		Conforms bool
		Findings []struct {
			Metric, Kind string
			Wrong        bool
			Alerts       []string
		}
	}
	if code := run(t.Context(), []string{"check-metrics", "--output=json", late}, &out, &errs); code != 1 {
		t.Errorf("exit %d, want 1: %s", code, &errs)
	}
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.Version != 1 || answer.Conforms || answer.Findings[0].Kind != "born-late" || len(answer.Findings[0].Alerts) == 0 {
		t.Errorf("%v: %+v", err, answer)
	}
	out.Reset()
	if code := run(t.Context(), []string{"rules", "--relabel", "--metrics.map=" + names}, &out, &errs); code != 0 || !strings.Contains(out.String(), "metric_relabel_configs:") {
		t.Errorf("rules --relabel: exit %d: %s%s", code, &out, &errs)
	}
	if code := run(t.Context(), []string{"rules", "--relabel"}, &out, &errs); code != 2 {
		t.Errorf("rules --relabel without a mapping: exit %d, want 2", code)
	}
}
