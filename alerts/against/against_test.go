package against

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"oncewatch/alerts"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// What a Prometheus that has no rules lacks, how it scrapes, which window is too
// short for it, and what the rules would say of it.
func TestCheck(t *testing.T) {
	page := `# TYPE kafka_topic_retention_seconds gauge
kafka_topic_retention_seconds{topic="payments"} 2592000
kafka_topic_retention_seconds{topic="audit"} +Inf
processed_events_configured_retention_seconds{database="db",consumer_group="ledger"} 691200
processed_events_oldest_age_seconds{database="db",consumer_group="ledger",topic="payments"} 691200
consumer_group_topic_info{consumer_group="ledger",topic="payments"} 1
consumer_offset_commit_lag_seconds{consumer_group="ledger",topic="payments",partition="0"} 45
processed_events_unprotected_records{database="db",consumer_group="ledger",topic="payments",partition="0"} 0
oncewatch_build_info{version="1"} 1
`
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, page) }))
	defer target.Close()
	s := testenv.Prometheus(t, map[string]string{"prometheus.yml": fmt.Sprintf("scrape_configs: [{job_name: all, scrape_interval: 1s, static_configs: [{targets: [%q]}]}]", strings.TrimPrefix(target.URL, "http://"))})
	var out bytes.Buffer
	testenv.Eventually(t, "the target is scraped", func() bool {
		out.Reset()
		if err := Check(t.Context(), &out, http.DefaultClient, s.URL, alerts.Options{}); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(out.String(), "scrape interval of job \"all\": about 1 s")
	})
	for _, want := range []string{
		`longest retention of a topic: 30d`,
		`    retention_window=15d is shorter than 1.1 times that; --set retention_window=33d`,
		`    exposure_memory=1w is shorter than 1.1 times that; --set exposure_memory=33d`,
		`ConsumerOffsetCommitLagHigh: holds for 1 (critical, if it lasts 2m)`,
		`    {consumer_group="ledger", topic="payments"} = 45`,
		`ProcessedEventsRetentionMisconfigured: holds for 1 (critical, if it lasts 10m)`,
		`ProcessedEventsReplayExposed: silent`,
		`EventsDeadLettered: not watched (no series of events_dead_lettered_total)`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "cannot be told") {
		t.Errorf("an expression is refused:\n%s", &out)
	}
	for base, want := range map[string]string{target.URL: "no answer of its API", "http://127.0.0.1:1": "ask Prometheus", "::": `address "::"`} {
		if err := Check(t.Context(), &out, http.DefaultClient, base, alerts.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", base, err, want)
		}
	}
}

// What is computed in place of a record is an expression that Prometheus reads.
func TestInlineParses(t *testing.T) {
	files, err := alerts.Files(alerts.Defaults(), "")
	if err != nil {
		t.Fatal(err)
	}
	all, records, err := read(files)
	if err != nil || len(all) == 0 {
		t.Fatal("no alerts", err)
	}
	a := against{records: records}
	for _, r := range all {
		expr, err := parse.ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		text, err := a.inline(expr, nil, map[string]bool{})
		if err != nil {
			t.Fatal(r.Alert, err)
		}
		inlined, err := parse.ParseExpr(text)
		if err != nil {
			t.Errorf("%s: %v\n%s", r.Alert, err, text)
			continue
		}
		parser.Inspect(inlined, func(n parser.Node, _ []parser.Node) error {
			if s, ok := n.(*parser.VectorSelector); ok && strings.Contains(s.Name, ":") {
				t.Errorf("%s: still reads %s", r.Alert, s.Name)
			}
			return nil
		})
	}
}
