package alerts

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// A set of label names.
type set map[string]bool

func newSet(names ...string) set {
	s := set{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

func (s set) list() []string { return slices.Sorted(maps.Keys(s)) }

// union and intersection leave their operands alone.
func (s set) union(o set) set {
	u := maps.Clone(s)
	maps.Copy(u, o)
	return u
}

func (s set) intersection(o set) set {
	i := set{}
	for n := range s {
		if o[n] {
			i[n] = true
		}
	}
	return i
}

// labels of a vector: those every element has, and those some may have. A
// scalar has neither.
type labels struct {
	must, may set
	scalar    bool
}

func exactly(names ...string) labels { return labels{must: newSet(names...), may: newSet(names...)} }

// linter knows the labels of every metric a rule may read.
type linter struct {
	known    map[string]labels
	scrape   time.Duration
	problems []string
}

// target are the labels Prometheus adds to what it scrapes; cluster is added by
// some, and optional everywhere.
var target = []string{"job", "instance", "cluster"}

func newLinter(t *testing.T) *linter {
	t.Helper()
	l := &linter{known: map[string]labels{}, scrape: time.Duration(Defaults().ScrapeInterval)}
	for _, metrics := range Metrics() {
		for name, metric := range metrics {
			with := func(extra ...string) labels { return exactly(slices.Concat(metric.Labels, target, extra)...) }
			if metric.Type == "histogram" {
				l.known[name+"_bucket"], l.known[name+"_count"], l.known[name+"_sum"] = with("le"), with(), with()
				l.known[name] = with() // native
			} else {
				l.known[name] = with()
			}
		}
	}
	l.known["up"] = exactly(target...)
	l.known["ALERTS"] = exactly("alertname", "alertstate", "severity", "cluster", "database", "consumer_group", "topic")
	return l
}

func (l *linter) complain(format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// labels returns the labels of e's result and complains about what is wrong in it.
func (l *linter) labels(e parser.Expr) labels {
	switch e := e.(type) {
	case *parser.NumberLiteral, *parser.StringLiteral:
		return labels{scalar: true}
	case *parser.ParenExpr:
		return l.labels(e.Expr)
	case *parser.UnaryExpr:
		return l.labels(e.Expr)
	case *parser.SubqueryExpr:
		return l.labels(e.Expr)
	case *parser.MatrixSelector:
		return l.labels(e.VectorSelector)
	case *parser.VectorSelector:
		known, ok := l.known[e.Name]
		if !ok {
			l.complain("unknown metric %s", e.Name)
		}
		for _, m := range e.LabelMatchers {
			if m.Name != "__name__" && !known.may[m.Name] {
				l.complain("%s has no label %s", e.Name, m.Name)
			}
		}
		return known
	case *parser.Call:
		return l.call(e)
	case *parser.AggregateExpr:
		inner := l.labels(e.Expr)
		if e.Without {
			l.complain("aggregation without(…): name the labels that stay")
		}
		for _, g := range e.Grouping {
			if !inner.may[g] {
				l.complain("%s by (%s): its operand has no such label, only %v", e.Op, g, inner.may.list())
			}
		}
		if !slices.Contains(e.Grouping, "cluster") {
			l.complain("%s by (%s) drops cluster", e.Op, strings.Join(e.Grouping, ", "))
		}
		return exactly(e.Grouping...)
	case *parser.BinaryExpr:
		return l.binary(e)
	default:
		l.complain("%T is not understood", e)
		return labels{}
	}
}

func (l *linter) call(e *parser.Call) labels {
	result := labels{scalar: true}
	for _, arg := range e.Args {
		if got := l.labels(arg); !got.scalar {
			result = got
		}
	}
	switch e.Func.Name {
	case "rate", "irate", "increase":
		m, ok := e.Args[0].(*parser.MatrixSelector)
		if ok && m.Range < 4*l.scrape {
			l.complain("%s over %s: below four times the scrape interval of %s", e.Func.Name, m.Range, l.scrape)
		}
		// A record of one target's counter is one still.
		if ok && strings.Contains(m.String(), ":") && !result.must["instance"] {
			l.complain("%s of the recorded %s: rate first, then aggregate", e.Func.Name, m)
		}
	case "absent", "absent_over_time", "time", "hour":
		return labels{must: set{}, may: set{}, scalar: e.Func.Name == "time"}
	case "histogram_quantile":
		if !result.may["le"] && strings.Contains(e.String(), "_bucket") {
			l.complain("histogram_quantile of buckets without le")
		}
		result = labels{must: maps.Clone(result.must), may: maps.Clone(result.may)}
		delete(result.must, "le")
		delete(result.may, "le")
	}
	return result
}

func (l *linter) binary(e *parser.BinaryExpr) labels {
	left, right := l.labels(e.LHS), l.labels(e.RHS)
	switch {
	case left.scalar:
		return right
	case right.scalar:
		return left
	}
	match := e.VectorMatching
	for _, on := range match.MatchingLabels {
		if !match.On {
			l.complain("ignoring(%s): name the labels that match", on)
		}
		for side, has := range map[string]labels{"left": left, "right": right} {
			if !has.may[on] {
				l.complain("on (%s): the %s side of %s has no such label, only %v", on, side, e.Op, has.may.list())
			}
		}
	}
	same := func(a labels, names set) bool { return slices.Equal(a.may.list(), names.list()) }
	if e.Op.IsSetOperator() {
		if !match.On && e.Op != parser.LOR && !same(left, right.may) {
			l.complain("%s between %v and %v never matches", e.Op, left.may.list(), right.may.list())
		}
		if e.Op == parser.LOR {
			return labels{must: left.must.intersection(right.must), may: left.may.union(right.may)}
		}
		return left
	}
	// A join must find one partner: the side that is not "many" is aggregated to
	// just the labels of the match, or two replicas make it ambiguous.
	on := newSet(match.MatchingLabels...)
	switch match.Card {
	case parser.CardManyToOne:
		if !same(right, on) {
			l.complain("the right side of %s has %v, and is joined on %v", e.Op, right.may.list(), on.list())
		}
		return labels{must: left.must.union(newSet(match.Include...)), may: left.may.union(newSet(match.Include...))}
	case parser.CardOneToMany:
		if !same(left, on) {
			l.complain("the left side of %s has %v, and is joined on %v", e.Op, left.may.list(), on.list())
		}
		return labels{must: right.must.union(newSet(match.Include...)), may: right.may.union(newSet(match.Include...))}
	default:
		if match.On {
			if !same(left, on) || !same(right, on) {
				l.complain("%s joins %v and %v on %v", e.Op, left.may.list(), right.may.list(), on.list())
			}
			return exactly(match.MatchingLabels...)
		}
		if !same(left, right.may) {
			l.complain("%s between %v and %v never matches", e.Op, left.may.list(), right.may.list())
		}
		return left
	}
}

// label finds a label in a template, guarded one inside {{ with $labels.x }} or not.
var (
	label   = regexp.MustCompile(`\$labels\.([a-z_]+)`)
	guarded = regexp.MustCompile(`\{\{-?\s*with \$labels\.([a-z_]+)`)

	byCluster = regexp.MustCompile(`printf "[^"]*\{cluster=%q,[^"]*" \$labels\.cluster`)
)

// rule complains about r and remembers what it records.
func (l *linter) rule(r rulefmt.Rule) {
	expr, err := promql.ParseExpr(r.Expr)
	if err != nil {
		l.complain("%v", err)
		return
	}
	got := l.labels(expr)
	if r.Record != "" {
		level, rest, _ := strings.Cut(r.Record, ":")
		if strings.Count(rest, ":") != 1 {
			l.complain("the name is not level:metric:operations")
		}
		for rest := level; rest != ""; {
			next, found := "", false
			for name := range got.must {
				if after, ok := strings.CutPrefix(rest, name); ok && (after == "" || after[0] == '_') {
					next, found = strings.TrimPrefix(after, "_"), true
				}
			}
			if !found {
				l.complain("the level %s names a label the result does not have: %v", level, got.must.list())
				break
			}
			rest = next
		}
		l.known[r.Record] = got
		return
	}
	for _, text := range slices.Concat(slices.Collect(maps.Values(r.Annotations)), slices.Collect(maps.Values(r.Labels))) {
		text = byCluster.ReplaceAllString(text, "") // a query may ask for no cluster
		guards := map[string]int{}
		for _, m := range guarded.FindAllStringSubmatch(text, -1) {
			guards[m[1]]++
		}
		for _, m := range label.FindAllStringSubmatch(text, -1) {
			name := m[1]
			switch {
			case guards[name] > 0:
				guards[name]--
				if !got.may[name] {
					l.complain("a template uses the label %s, which does not survive: %v", name, got.may.list())
				}
			case name == "cluster" || !got.must[name]:
				l.complain("a template uses the label %s, which is not always there: %v", name, got.must.list())
			}
		}
	}
}

// The rules use only metrics and labels that exist, keep the labels their texts
// use, join what is aggregated to the labels of the join, and rate over windows
// that cover four scrapes.
func TestLint(t *testing.T) {
	l := newLinter(t)
	// Rules read one another, and some themselves: what a record holds is found by
	// going over them until nothing is unknown.
	for _, r := range rules(t) {
		l.known[r.Record] = labels{scalar: true}
	}
	for range 3 {
		for _, r := range rules(t) {
			l.rule(r)
		}
	}
	for _, r := range rules(t) {
		l.problems = nil
		l.rule(r)
		for _, p := range l.problems {
			t.Errorf("%s%s: %s", r.Record, r.Alert, p)
		}
	}
}

// The linter finds what it is there for.
func TestLintFinds(t *testing.T) {
	tests := []struct{ name, expr, summary, want string }{
		{"unknown metric", `sum by (cluster, topic) (consumer_lags)`, "", "unknown metric consumer_lags"},
		{"unknown label", `sum by (cluster, topic) (consumer_lag{part="0"})`, "", "has no label part"},
		{"aggregation by a label that is not there", `sum by (cluster, database) (consumer_lag)`, "", "no such label"},
		{"label lost in an aggregation", `sum by (cluster, topic) (consumer_lag) > 0`, "{{ $labels.consumer_group }}", "consumer_group, which is not always there"},
		{"guarded label that can never be there", `sum by (cluster, topic) (consumer_lag) > 0`, "{{ with $labels.partition }}{{ . }}{{ end }}", "partition, which does not survive"},
		{"optional label unguarded", `sum by (cluster, topic) (consumer_lag) > 0`, "{{ $labels.cluster }}", "cluster, which is not always there"},
		{"label of one arm only", `sum by (cluster, topic) (consumer_lag) > 0 or sum by (cluster) (up) > 0`, "{{ $labels.topic }}", "topic, which is not always there"},
		{"cluster dropped", `sum by (topic) (consumer_lag)`, "", "drops cluster"},
		{"replicas in a join", `consumer_lag * on (cluster, topic) group_left () kafka_topic_retention_seconds`, "", "is joined on"},
		{"join on a label of one side", `sum by (cluster, topic) (consumer_lag) / on (cluster, consumer_group) sum by (cluster, consumer_group) (consumer_lag)`, "", "on (consumer_group): the left side"},
		{"different labels", `sum by (cluster, topic) (consumer_lag) / sum by (cluster, consumer_group) (consumer_lag)`, "", "never matches"},
		{"set operation that never matches", `sum by (cluster, topic) (consumer_lag) and sum by (cluster) (up)`, "", "never matches"},
		{"short window", `sum by (cluster, topic) (rate(events_handled_total[2m]))`, "", "below four times"},
		{"rate of a sum", `increase(consumer_group_topic:events:sum[10m])`, "", "rate first"},
		{"quantile without le", `histogram_quantile(0.99, sum by (cluster, topic) (rate(event_handle_duration_seconds_bucket[5m])))`, "", "without le"},
		{"without", `sum without (instance) (consumer_lag)`, "", "name the labels that stay"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newLinter(t)
			l.known["consumer_group_topic:events:sum"] = exactly("cluster", "consumer_group", "topic")
			l.rule(rulefmt.Rule{Alert: "X", Expr: test.expr, Annotations: map[string]string{"summary": test.summary}})
			if !strings.Contains(strings.Join(l.problems, "\n"), test.want) {
				t.Errorf("got %q, want %q", l.problems, test.want)
			}
		})
	}
	t.Run("name of a record", func(t *testing.T) {
		l := newLinter(t)
		l.rule(rulefmt.Rule{Record: "database_topic:consumer_lag:sum", Expr: `sum by (cluster, topic) (consumer_lag)`})
		if len(l.problems) != 1 {
			t.Errorf("got %q", l.problems)
		}
	})
}

// severities are those of CONTRACT.md, which also fixes the names.
var severities = map[string]string{
	"ProcessedEventsRetentionRatioLow":       "warning",
	"ProcessedEventsRetentionBelowBroker":    "critical",
	"ProcessedEventsRetentionMisconfigured":  "critical",
	"ProcessedEventsReplayExposed":           "critical",
	"ProcessedEventsReplayUnverified":        "info",
	"ProcessedEventsRetentionUnverifiable":   "warning",
	"ProcessedEventsMarkersMassDeleted":      "critical",
	"ConsumerDuplicateRatioHigh":             "warning",
	"ConsumerDuplicateRatioTooLow":           "info",
	"ConsumerRebalanceLoop":                  "critical",
	"ProducerEventIdReuse":                   "critical",
	"ProcessedEventsGrowthOutpacesPruning":   "warning",
	"ProcessedEventsRowCountWillExceedLimit": "warning",
	"ProcessedEventsTableEmpty":              "critical",
	"ConsumerHandleLatencyP99High":           "warning",
	"ConsumerHandleLatencyBudgetBurn":        "critical",
	"ConsumerOffsetCommitLagWidening":        "warning",
	"ConsumerOffsetCommitLagHigh":            "critical",
	"ConsumerLagNotRecoveringAfterRestart":   "critical",
	"ConsumerLagGrowing":                     "warning",
	"ConsumerStalled":                        "critical",
	"ConsumerOffsetsMissing":                 "warning",
	"ConsumerRecordsExpiringSoon":            "warning",
	"ConsumerRecordsExpiring":                "critical",
	"ProcessedEventsEntriesUnfinished":       "warning",
	"MarkerEffectDivergence":                 "critical",
	"EventsLost":                             "critical",
	"OutboxStuck":                            "critical",
	"ConsumerRetryVolumeHigh":                "warning",
	"EventsDeadLettered":                     "warning",
	"ProcessedEventsExporterDown":            "critical",
	"ProcessedEventsExporterTargetDown":      "warning",
	"ProcessedEventsExporterPollFailing":     "warning",
	"ProcessedEventsExporterPollStale":       "critical",
	"ConsumerMetricsAbsent":                  "info",
}

// An event that is lost or set aside does not become true by lasting.
var withoutFor = newSet("EventsLost", "EventsDeadLettered")

// Every alert of the contract is there, with its severity, its texts and its page.
func TestAlertsAreComplete(t *testing.T) {
	got := map[string]string{}
	for _, a := range alerts(t) {
		got[a.Alert] = a.Labels["severity"]
		for _, text := range []string{"summary", "description"} {
			if len(a.Annotations[text]) < 20 {
				t.Errorf("%s: no %s", a.Alert, text)
			}
		}
		if want := DefaultRunbookBase + "/" + a.Alert + ".md"; a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %q", a.Alert, a.Annotations["runbook_url"], want)
		}
		if (a.For == 0) != withoutFor[a.Alert] {
			t.Errorf("%s: for %s", a.Alert, a.For)
		}
	}
	if !maps.Equal(got, severities) {
		t.Errorf("alerts and severities are %v,\nwant %v", got, severities)
	}
}
