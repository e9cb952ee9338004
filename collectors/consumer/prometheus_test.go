package consumer_test

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"oncewatch/alerts"
	"oncewatch/collectors/consumer"
	"oncewatch/deploy/testenv"
)

// What is asked is what the rules ask.
func TestExpressionsAreTheRules(t *testing.T) {
	files, err := alerts.Files(alerts.Defaults(), "")
	if err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	for _, text := range files {
		rules.WriteString(strings.Join(strings.Fields(string(text)), " "))
	}
	// What a rule records is written out here: the Prometheus may lack it.
	text := regexp.MustCompile(`[a-z_]+:(events_[a-z_]+):seen`).ReplaceAllString(rules.String(), "$1")
	for recorded, selector := range map[string]string{"handled": "events_handled_total", "duplicate": `events_handled_total{outcome="duplicate"}`} {
		text = strings.ReplaceAll(text, "consumer_group_topic:events_"+recorded+":increase_duplicate_window[", "sum by (cluster, consumer_group, topic) (increase("+selector+"[30m]))[")
	}
	for _, asked := range consumer.Expressions(alerts.Defaults()) {
		e := asked.Text
		// Loss and dead letters: the rules tell partitions and reasons apart.
		e = strings.TrimSuffix(e, "))")
		if strings.Contains(e, "_lost_") || strings.Contains(e, "dead_lettered") {
			_, e, _ = strings.Cut(e, "(cluster, consumer_group, topic) (")
		}
		if !strings.Contains(text, e) {
			t.Errorf("no rule asks %s", e)
		}
	}
}

// stored is a Prometheus with half an hour and more of what consumers showed.
func stored(t *testing.T, series map[string]func(minute int) float64) testenv.PrometheusServer {
	t.Helper()
	dir := t.TempDir()
	now := time.Now().Truncate(time.Second)
	var page strings.Builder
	for name, value := range series {
		for minute := range 41 {
			fmt.Fprintf(&page, "%s %g %d\n", name, value(minute), now.Add(time.Duration(minute-40)*time.Minute).Unix())
		}
	}
	page.WriteString("# EOF\n")
	if err := os.WriteFile(filepath.Join(dir, "page"), []byte(page.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "tsdb", "create-blocks-from", "openmetrics", filepath.Join(dir, "page"), filepath.Join(dir, "data")).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	files := map[string]string{"prometheus.yml": "global: {}\n"}
	if err := filepath.WalkDir(filepath.Join(dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return testenv.Prometheus(t, files)
}

func ask(t *testing.T, c consumer.Prometheus) (*consumer.Snapshot, error) {
	t.Helper()
	s, err := consumer.NewStored(c, alerts.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.Poll(context.Background())
	if err != nil {
		return nil, err
	}
	return got.(*consumer.Snapshot), nil
}

// A real Prometheus that has scraped two consumers, of which one restarted.
func TestStoredInAPrometheus(t *testing.T) {
	grows := func(from, perMinute float64) func(int) float64 {
		return func(minute int) float64 { return from + perMinute*float64(minute) }
	}
	restarts := func(perMinute float64) func(int) float64 {
		return func(minute int) float64 { return perMinute * float64(minute%20) }
	}
	of := func(name, instance, more string) string {
		return fmt.Sprintf(`%s{consumer_group="g",topic="t",instance="%s"%s}`, name, instance, more)
	}
	series := map[string]func(int) float64{
		of("events_handled_total", "a", `,outcome="processed"`):                  grows(1e6, 1000),
		of("events_handled_total", "a", `,outcome="duplicate"`):                  grows(0, 10),
		of("events_handled_total", "b", `,outcome="processed"`):                  restarts(1000),
		of("events_handled_total", "b", `,outcome="duplicate"`):                  restarts(10),
		of("events_duplicate_origin_total", "a", `,origin="other_offset"`):       grows(0, 0),
		of("event_handle_duration_seconds_bucket", "a", `,le="0.1"`):             grows(0, 900),
		of("event_handle_duration_seconds_bucket", "a", `,le="0.2"`):             grows(0, 980),
		of("event_handle_duration_seconds_bucket", "a", `,le="0.4"`):             grows(0, 1000),
		of("event_handle_duration_seconds_bucket", "a", `,le="+Inf"`):            grows(0, 1000),
		of("event_handle_duration_seconds_count", "a", ""):                       grows(0, 1000),
		of("consumer_offset_commit_lag_seconds", "a", `,partition="0"`):          grows(2, 0),
		of("events_lost_total", "a", `,partition="0"`):                           grows(0, 0),
		`events_handled_total{consumer_group="h",topic="t",outcome="processed"}`: grows(0, 100),
	}
	server := stored(t, series)
	s, err := ask(t, consumer.Prometheus{URL: server.URL + "/"})
	if err != nil {
		t.Fatal(err)
	}
	v := s.Values[key]
	near := func(what string, f consumer.Figure, want, by float64) {
		t.Helper()
		if !f.OK() || math.Abs(f.Value-want) > by {
			t.Errorf("%s: %+v, want %g", what, f, want)
		}
	}
	near("processed", v.Processed, 60_000, 3000)
	near("duplicates", v.Duplicates, 600, 30)
	near("elsewhere", v.Elsewhere, 0, 0)
	near("p99", v.P99, 0.3, 1e-6)
	near("timed", v.Timed, 5000, 1500)
	near("commit lag", v.CommitLag, 2, 0)
	near("lost", v.Lost, 0, 0)
	if !strings.Contains(v.Processed.From, `sum by (cluster, consumer_group, topic) (increase(events_handled_total[30m])) at http://127.0.0.1`) {
		t.Errorf("from %q", v.Processed.From)
	}
	if v.DeadLettered.OK() || !strings.Contains(v.DeadLettered.Missing, "has no events_dead_lettered_total") {
		t.Errorf("dead letters: %+v", v.DeadLettered)
	}
	if h := s.Values[consumer.Key{Group: "h", Topic: "t"}]; h.Duplicates.OK() || !h.Processed.OK() {
		t.Errorf("a group without an outcome: %+v", h)
	}
}

// What is no Prometheus, answers in part, or has several clusters is no
// evidence.
func TestAnswersThatAreNone(t *testing.T) {
	answer := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/prometheus/api/v1/query" || r.Header.Get("X-Scope-Orgid") != "team" {
			http.Error(w, "hunter2", http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprint(w, answer)
	}))
	defer s.Close()
	two := `{"status":"success","data":{"resultType":"vector","result":[
		{"metric":{"cluster":"a","consumer_group":"g","topic":"t"},"value":[1,"1"]},{"metric":{"cluster":"b","consumer_group":"g","topic":"t"},"value":[1,"2"]}]}}`
	c := consumer.Prometheus{URL: s.URL + "/prometheus"}
	c.Headers = map[string]string{"X-Scope-OrgID": "team"}
	for text, says := range map[string]string{
		"hunter2":                              "no answer of a Prometheus",
		`{"status":"error","error":"hunter2"}`: "no answer of a Prometheus",
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`:                                "no answer of a Prometheus",
		`{"status":"success","warnings":["partial hunter2"],"data":{"resultType":"vector","result":[]}}`: "in part only",
		two: "--prometheus.cluster",
		`{"status":"success","data":{"resultType":"vector","result":[` + strings.Repeat(" ", 33<<20) + `]}}`: "longer than 32 MiB",
	} {
		answer = text
		if _, err := ask(t, c); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.60s: %v, want %q", text, err, says)
		}
	}
	answer, c.Cluster = two, "b"
	if got, err := ask(t, c); err != nil || got.Values[key].CommitLag.Value != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}
