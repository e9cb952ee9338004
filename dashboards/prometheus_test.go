package dashboards

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// A server is a real Prometheus that scrapes once a second.
type server struct{ url string }

// startPrometheus scrapes the targets, and keeps what it scraped until the test
// ends. Native leaves the classic buckets of native histograms out.
func startPrometheus(t *testing.T, native bool, jobs map[string]string) server {
	t.Helper()
	var config strings.Builder
	config.WriteString("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\nscrape_configs:\n")
	for job, address := range jobs {
		fmt.Fprintf(&config, "- job_name: %s\n  static_configs: [{targets: [%q]}]\n", job, address)
	}
	flags := []string{"--enable-feature=exemplar-storage"}
	if native {
		flags = append(flags, "--enable-feature=native-histograms")
	}
	return server{testenv.Prometheus(t, map[string]string{
		"prometheus.yml": config.String(),
		// One of the alerts, without its patience.
		"rules.yml": `groups: [{name: test, rules: [{alert: EventsDeadLettered, expr: events_dead_lettered_total > 0, labels: {severity: warning}}]}]`,
	}, flags...).URL}
}

// scraped waits until every job was scraped n times.
func (s server) scraped(t *testing.T, jobs, n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d jobs were scraped %d times", jobs, n), func() bool {
		return len(s.query(t, fmt.Sprintf(`sum_over_time(up[5m]) >= %d`, n))) >= jobs
	})
}

type sample struct {
	Metric map[string]string
	Value  *[2]any
	Values [][2]any
	// A native histogram has these instead.
	Histogram  json.RawMessage
	Histograms []json.RawMessage
}

// hasValue tells whether a series says anything: NaN is what a division of
// nothing by nothing returns.
func (s sample) hasValue() bool {
	values := s.Values
	if s.Value != nil {
		values = append(values, *s.Value)
	}
	for _, v := range values {
		if f, err := strconv.ParseFloat(v[1].(string), 64); err == nil && !math.IsNaN(f) {
			return true
		}
	}
	return s.Histogram != nil || len(s.Histograms) > 0
}

func (s server) get(t *testing.T, path string, params url.Values, into any) {
	t.Helper()
	resp, err := http.PostForm(s.url+path, params)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s %v: %s %v", path, params, answer.Error, err)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		t.Fatal(err)
	}
}

func (s server) query(t *testing.T, expr string) []sample {
	t.Helper()
	var data struct{ Result []sample }
	s.get(t, "/api/v1/query", url.Values{"query": {expr}}, &data)
	return data.Result
}

func (s server) queryRange(t *testing.T, expr string, back time.Duration) []sample {
	t.Helper()
	now := time.Now()
	var data struct{ Result []sample }
	s.get(t, "/api/v1/query_range", url.Values{
		"query": {expr}, "step": {"1"},
		"start": {fmt.Sprint(now.Add(-back).Unix())}, "end": {fmt.Sprint(now.Unix())},
	}, &data)
	return data.Result
}

// unanswered asks every query of every panel, annotation and variable as
// Grafana would, and returns where nothing came back.
func (s server) unanswered(t *testing.T) map[string]string {
	t.Helper()
	empty := map[string]string{}
	everyQuery(t, func(where, query, _ string) {
		e := filled(query, "4s", "1m")
		answer := s.queryRange(t, e, 10*time.Second)
		if strings.Contains(where, " / Consumer groups") {
			answer = s.query(t, e)
		}
		for _, series := range answer {
			if series.hasValue() {
				return
			}
		}
		empty[where] = e
	})
	return empty
}

// exposition serves every metric of the table with two values for each label,
// all of them moving with every scrape, as the two programs would.
type exposition struct {
	mu       sync.Mutex
	registry *prometheus.Registry
	move     []func(scrape int)
	scrapes  int
}

var labelSamples = map[string][]string{
	"database": {"bank"}, "consumer_group": {"ledger-writer", "mailer"}, "topic": {"payments", "bookings"},
	"partition": {"0", "1"}, "kind": {"marker_without_effect", "denied"}, "index": {"processed_events_pkey", "processed_events_processed_at"},
	"collector": {"postgres", "kafka"}, "reason": {"role", "data"}, "outcome": {"processed", "duplicate"},
	"origin": {"same_offset", "other_offset"}, "holder": {"session", "slot"},
	"revision": {"abc"}, "goversion": {"go1.26"}, "goos": {"linux"}, "goarch": {"amd64"}, "tags": {"netgo"},
}

func newExposition() *exposition {
	x := &exposition{registry: prometheus.NewRegistry()}
	start := float64(time.Now().Unix())
	for name, labels := range metrics {
		switch {
		case strings.HasPrefix(name, "event_handle_duration_seconds_"):
			// The histogram itself is in the table.
		case name == "marker_prune_batch_duration_seconds_bucket":
			h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: strings.TrimSuffix(name, "_bucket"), Help: name, Buckets: []float64{0.01, 0.1, 1}})
			x.registry.MustRegister(h)
			x.move = append(x.move, func(int) { h.Observe(0.05) })
		case name == "event_handle_duration_seconds":
			h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: name, Help: name, Buckets: []float64{0.005, 0.05, 0.2, 1}, NativeHistogramBucketFactor: 1.1,
			}, labels)
			x.registry.MustRegister(h)
			for _, values := range combinations(labels) {
				x.move = append(x.move, func(scrape int) {
					h.WithLabelValues(values...).(prometheus.ExemplarObserver).ObserveWithExemplar(
						float64(scrape%10)/30, prometheus.Labels{"trace_id": fmt.Sprintf("%032x", scrape+1)})
				})
			}
		case strings.HasSuffix(name, "_total"):
			c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: name}, labels)
			x.registry.MustRegister(c)
			for i, values := range combinations(labels) {
				x.move = append(x.move, func(int) { c.WithLabelValues(values...).Add(float64(1 + i)) })
			}
		default:
			g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: name}, labels)
			x.registry.MustRegister(g)
			for i, values := range combinations(labels) {
				x.move = append(x.move, func(scrape int) {
					v := float64(1000 + 10*i + scrape)
					if strings.HasSuffix(name, "_timestamp_seconds") || name == "consumer_start_time_seconds" {
						v = start
					}
					g.WithLabelValues(values...).Set(v)
				})
			}
		}
	}
	return x
}

func combinations(labels []string) [][]string {
	all := [][]string{{}}
	for _, l := range labels {
		var longer [][]string
		for _, head := range all {
			for _, v := range labelSamples[l] {
				longer = append(longer, append(append([]string{}, head...), v))
			}
		}
		all = longer
	}
	return all
}

func (x *exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.move {
		f(x.scrapes)
	}
	x.scrapes++
	promhttp.HandlerFor(x.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, r)
}

// Every query returns data from a Prometheus that scraped all metrics, with
// classic histograms and with native ones.
func TestEveryQueryReturnsData(t *testing.T) {
	for name, native := range map[string]bool{"classic histograms": false, "native histograms": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := httptest.NewServer(newExposition())
			t.Cleanup(target.Close)
			s := startPrometheus(t, native, map[string]string{"oncewatch": strings.TrimPrefix(target.URL, "http://")})
			s.scraped(t, 1, 6)
			for where, e := range s.unanswered(t) {
				if needsHistory[where] != "" {
					continue
				}
				if native && strings.Contains(where, "Duration of a prune batch") {
					continue // its histogram has classic buckets only
				}
				t.Errorf("%s: no data: %s", where, e)
			}
			if buckets := s.query(t, "event_handle_duration_seconds_bucket"); native == (len(buckets) > 0) {
				t.Errorf("native %t, and %d classic buckets", native, len(buckets))
			}
		})
	}
}

// The panels that ask for exemplars get some, with the trace that the data
// source links to.
func TestExemplars(t *testing.T) {
	t.Parallel()
	target := httptest.NewServer(newExposition())
	t.Cleanup(target.Close)
	s := startPrometheus(t, false, map[string]string{"reference-consumer": strings.TrimPrefix(target.URL, "http://")})
	s.scraped(t, 1, 3)
	asked := 0
	for _, b := range boards(t) {
		for _, p := range b.panels() {
			for _, q := range p.Targets {
				if !q.Exemplar {
					continue
				}
				asked++
				var series []struct {
					Exemplars []struct{ Labels map[string]string }
				}
				s.get(t, "/api/v1/query_exemplars", url.Values{
					"query": {filled(q.Expr, "4s", "1m")},
					"start": {fmt.Sprint(time.Now().Add(-time.Minute).Unix())}, "end": {fmt.Sprint(time.Now().Unix() + 1)},
				}, &series)
				if len(series) == 0 || len(series[0].Exemplars) == 0 || len(series[0].Exemplars[0].Labels["trace_id"]) != 32 {
					t.Errorf("%s / %s: no exemplar with a trace_id: %+v", b.UID, p.Title, series)
				}
			}
		}
	}
	if asked < 2 {
		t.Errorf("%d queries ask for exemplars, want those of the heatmap and of the 99th percentile", asked)
	}
}
