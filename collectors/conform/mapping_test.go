package conform

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oncewatch/collectors/consumer"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func mapFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "map.yml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const mapped = `metrics:
  events_handled_total:
    name: app_messages_total
    labels: {consumer_group: consumer, topic: queue, outcome: result}
    values: {outcome: {processed: ok, duplicate: [seen, again]}}
  event_handle_duration_seconds:
    name: app_handle_seconds
    labels: {topic: queue}
    set: {consumer_group: ledger$1}
`

// theirs is a page under the names that mapped says.
const theirs = `# TYPE app_messages_total counter
app_messages_total{consumer="ledger",queue="payments",result="ok"} 5
app_messages_total{consumer="ledger",queue="payments",result="seen"} 0
# TYPE app_handle_seconds histogram
app_handle_seconds_bucket{queue="payments",le="0.2"} 5
app_handle_seconds_bucket{queue="payments",le="+Inf"} 5
app_handle_seconds_sum{queue="payments"} 0.3
app_handle_seconds_count{queue="payments"} 5
# TYPE consumer_offset_commit_lag_seconds gauge
consumer_offset_commit_lag_seconds{consumer_group="ledger",topic="payments",partition="0"} 0
# TYPE bystander gauge
bystander{queue="other",consumer="mine"} 1
`

// A page of other names conforms under its mapping, and so does what a Prometheus
// stores that was given the mapping as metric_relabel_configs; other metrics'
// labels stay what they are.
func TestMapping(t *testing.T) {
	m, err := LoadMapping(mapFile(t, mapped))
	if err != nil {
		t.Fatal(err)
	}
	relabelling, err := m.Relabelling()
	if err != nil {
		t.Fatal(err)
	}
	w := wanted(t)
	p, err := Read("page", strings.NewReader(theirs), "", relabelling)
	if err != nil {
		t.Fatal(err)
	}
	if r := w.Judge([]*Page{p}); !r.Conforms {
		t.Errorf("by Prometheus' library: %+v", r.Findings)
	}
	if got := p.series["event_handle_duration_seconds"][0].labels.Get("consumer_group"); got != "ledger$1" {
		t.Errorf("a label that is set is %q", got)
	}
	if got := p.series["bystander"][0].labels.String(); got != `{__name__="bystander", consumer="mine", queue="other"}` {
		t.Errorf("another metric became %s", got)
	}

	page := theirs
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, page) }))
	defer target.Close()
	text, err := m.YAML()
	if err != nil {
		t.Fatal(err)
	}
	scrape := "scrape_configs:\n- job_name: app\n  scrape_interval: 1s\n  static_configs: [{targets: [" + strings.TrimPrefix(target.URL, "http://") + "]}]\n"
	for line := range strings.Lines(string(text)) {
		scrape += "  " + line
	}
	config := mapFile(t, scrape)
	if out, err := testenv.Tool(t, "promtool", "check", "config", config).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	s := testenv.Prometheus(t, map[string]string{"prometheus.yml": scrape})
	var r *Report
	testenv.Eventually(t, "the page is stored under our names", func() bool {
		p, err := w.ReadStored(t.Context(), consumer.Prometheus{URL: s.URL}, `{job="app"}`, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r = w.Judge([]*Page{p})
		return r.Conforms
	})
	if p, err := w.ReadStored(t.Context(), consumer.Prometheus{URL: s.URL}, `{job="other"}`, nil, nil); err != nil || w.Judge([]*Page{p}).Conforms {
		t.Errorf("a job that is not there conforms: %v", err)
	}
	if _, err := w.ReadStored(t.Context(), consumer.Prometheus{URL: s.URL}, `{job=`, nil, nil); err == nil {
		t.Error("half a selector is taken")
	}
}

// Two of their values that become one of ours make one series of two, of which
// Prometheus drops one.
func TestValuesThatCollide(t *testing.T) {
	m, err := LoadMapping(mapFile(t, mapped))
	if err != nil {
		t.Fatal(err)
	}
	relabelling, err := m.Relabelling()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Read("page", strings.NewReader(theirs+"app_messages_total{consumer=\"ledger\",queue=\"payments\",result=\"again\"} 1\n"), "", relabelling)
	if err != nil {
		t.Fatal(err)
	}
	r := wanted(t).Judge([]*Page{p})
	if r.Conforms || r.Findings[0].Kind != kindDuplicate {
		t.Errorf("found %+v", r.Findings)
	}
}

// A mapping that cannot work is refused, by a line that says why.
func TestMappingRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "maps nothing",
		"metric: {}":                           "not found",
		"metrics: {up: {}}":                    "up is no metric that is read",
		"metrics: {events_handled: {name: a}}": "events_handled_total",
		"metrics: {event_handle_duration_seconds: {name: a_milliseconds}}":                                   "another unit",
		"metrics: {events_handled_total: {labels: {group: a}}}":                                              "none of its labels",
		"metrics: {events_handled_total: {labels: {topic: outcome, outcome: topic}}}":                        "cannot swap",
		"metrics: {events_handled_total: {values: {outcome: {processed: duplicate, duplicate: processed}}}}": "cannot swap",
		"metrics: {events_handled_total: {values: {outcome: {done: ok}}}}":                                   "none of its values",
		"metrics: {events_handled_total: {name: a_total}, event_retries_total: {name: a_total}}":             "mapped to both",
		"metrics: {events_handled_total: {labels: {topic: t}, set: {topic: t}}}":                             "want one",
		"metrics: {events_handled_total: {name: 'a b'}}":                                                     "no name",
	} {
		if _, err := LoadMapping(mapFile(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
