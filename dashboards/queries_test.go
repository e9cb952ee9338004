package dashboards

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// targetLabels come with every scrape; cluster is an external label.
var targetLabels = []string{"job", "instance", "cluster"}

func parsed(t *testing.T, where, query string) parser.Expr {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(filled(query, "5m", "6h"))
	if err != nil {
		t.Errorf("%s: %s: %v", where, query, err)
		return nil
	}
	return e
}

// everyQuery calls f with each expression that Grafana sends to Prometheus:
// those of panels, annotations and variables.
func everyQuery(t *testing.T, f func(where, expr, legend string)) {
	t.Helper()
	for _, b := range boards(t) {
		for _, p := range b.panels() {
			for _, q := range p.Targets {
				legend := q.LegendFormat
				if q.Format == "heatmap" {
					legend = ""
				}
				f(fmt.Sprintf("%s / %s / %s", b.UID, p.Title, q.RefID), q.Expr, legend)
			}
		}
		for _, a := range b.Annotations.List {
			f(fmt.Sprintf("%s / annotation %s", b.UID, a.Name), a.Target.Expr, a.TitleFormat)
		}
		for _, v := range b.Templating.List {
			if selector, _, ok := labelValues(v.Query); ok {
				f(fmt.Sprintf("%s / variable %s", b.UID, v.Name), selector, "")
			} else if e, ok := queryResult(v.Query); ok {
				f(fmt.Sprintf("%s / variable %s", b.UID, v.Name), e, "")
			}
		}
	}
}

var labelValuesCall = regexp.MustCompile(`^label_values\((.+), ?([a-z_]+)\)$`)

func labelValues(query string) (selector, label string, ok bool) {
	m := labelValuesCall.FindStringSubmatch(query)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

func queryResult(query string) (e string, ok bool) {
	e, ok = strings.CutPrefix(query, "query_result(")
	return strings.TrimSuffix(e, ")"), ok
}

// recorded are written by Prometheus itself as it evaluates the rules.
var recorded = map[string][]string{
	"ALERTS":           {"alertname", "alertstate", "severity", "database", "consumer_group", "topic"},
	"ALERTS_FOR_STATE": {"alertname", "severity", "database", "consumer_group", "topic"},
	rulesProof:         {},
	"consumer_group_topic:processed_events_unprotected_records:sum": {"database", "consumer_group", "topic"},
	"consumer_group_topic:processed_events_unverified_records:sum":  {"database", "consumer_group", "topic"},
	"consumer_group_topic_partition:consumer_records_expired:max":   {"consumer_group", "topic", "partition"},
}

var legendLabel = regexp.MustCompile(`\{\{([^}]+)\}\}`)

// No typo in a metric or a label survives: each must be one of the table, in
// matchers, groupings, joins and legends alike.
func TestQueries(t *testing.T) {
	used := map[string]bool{}
	everyQuery(t, func(where, query, legend string) {
		e := parsed(t, where, query)
		if e == nil {
			return
		}
		known := labelsOf(t, where, e, used)
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			switch n := n.(type) {
			case *parser.AggregateExpr:
				inside := labelsOf(t, where, n.Expr, nil)
				for _, l := range n.Grouping {
					if !inside[l] {
						t.Errorf("%s: grouped by %q, which nothing inside has: %s", where, l, n)
					}
				}
				if n.Without {
					t.Errorf("%s: aggregates without, so a new label changes it: %s", where, n)
				}
			case *parser.BinaryExpr:
				if n.VectorMatching == nil {
					return nil
				}
				left, right := labelsOf(t, where, n.LHS, nil), labelsOf(t, where, n.RHS, nil)
				for _, l := range n.VectorMatching.MatchingLabels {
					if !left[l] || !right[l] {
						t.Errorf("%s: joined on %q, which one side does not have: %s", where, l, n)
					}
				}
			}
			return nil
		})
		for _, m := range legendLabel.FindAllStringSubmatch(legend, -1) {
			if !known[m[1]] {
				t.Errorf("%s: the legend %q names a label that the query does not return", where, legend)
			}
		}
	})
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if !used[name] {
			t.Errorf("the table has %s, which no dashboard shows", name)
		}
	}
}

// labelsOf returns every label that the selectors of an expression can have and
// that its aggregations keep.
func labelsOf(t *testing.T, where string, e parser.Node, used map[string]bool) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	switch e := e.(type) {
	case *parser.VectorSelector:
		names := []string{e.Name}
		if e.Name == "" { // {__name__=~"a|b"}, of a variable
			for _, m := range e.LabelMatchers {
				if m.Name == "__name__" {
					names = strings.Split(m.Value, "|")
				}
			}
		}
		for _, name := range names {
			labels, ok := metrics[name]
			if !ok {
				labels, ok = recorded[name]
			}
			if !ok {
				t.Errorf("%s: no program exports %q", where, name)
			}
			if used != nil {
				used[name] = true
			}
			for _, l := range append(slices.Clone(labels), targetLabels...) {
				known[l] = true
			}
		}
		for _, m := range e.LabelMatchers {
			if m.Name != "__name__" && !known[m.Name] {
				t.Errorf("%s: %s has no label %q", where, strings.Join(names, ", "), m.Name)
			}
		}
	case *parser.AggregateExpr:
		inside := labelsOf(t, where, e.Expr, used)
		for _, l := range e.Grouping {
			known[l] = inside[l]
		}
		if e.Op == parser.COUNT_VALUES {
			known[e.Param.(*parser.StringLiteral).Val] = true
		}
		if e.Op == parser.TOPK || e.Op == parser.BOTTOMK {
			maps.Copy(known, inside)
		}
	default:
		for c := range parser.ChildrenIter(e) {
			maps.Copy(known, labelsOf(t, where, c, used))
		}
		if call, ok := e.(*parser.Call); ok && call.Func.Name == "label_replace" {
			known[call.Args[1].(*parser.StringLiteral).Val] = true
		}
	}
	return known
}

// The label a variable lists must be one of the metric it lists it from.
func TestVariables(t *testing.T) {
	for _, b := range boards(t) {
		var names []string
		for _, v := range b.Templating.List {
			names = append(names, v.Name)
			selector, label, ok := labelValues(v.Query)
			if v.Type == "datasource" {
				if v.Query != "prometheus" || v.Current.Value != nil {
					t.Errorf("%s: the data source is fixed: %+v", b.UID, v)
				}
				continue
			}
			if e, ok := queryResult(v.Query); ok && v.Name == "worst" {
				if v.Hide != 2 || !v.Multi || !v.IncludeAll || v.AllValue != "" || v.Regex == "" || parsed(t, b.UID, e) == nil {
					t.Errorf("%s: variable %s is not hidden, or not all of what its query returns: %+v", b.UID, v.Name, v)
				}
				continue
			}
			if !ok {
				t.Errorf("%s: variable %s has the query %q", b.UID, v.Name, v.Query)
				continue
			}
			if e := parsed(t, b.UID, selector); e != nil && !labelsOf(t, b.UID+" / variable "+v.Name, e, nil)[label] {
				t.Errorf("%s: variable %s lists %q, which %s does not have", b.UID, v.Name, label, selector)
			}
			one := v.Name == "exporter" || v.Name == "consumer_group" && b.UID == groupUID
			if one && (v.Multi || v.IncludeAll) || !one && (!v.Multi || !v.IncludeAll || label != v.Name) {
				t.Errorf("%s: variable %s is not the selector of %s that it should be: %+v", b.UID, v.Name, label, v)
			}
		}
		want := []string{"datasource", "cluster", "job", "instance", "database", "consumer_group", "topic"}
		want = append(want, map[string][]string{overviewUID: {"worst", "exporter"}, groupUID: {"exporter"}, tableUID: {"worst", "exporter"}}[b.UID]...)
		if !slices.Equal(names, want) {
			t.Errorf("%s has the variables %v, want %v", b.UID, names, want)
		}
	}
}

func matchesAlert(t *testing.T, query, alert string) bool {
	t.Helper()
	e := parsed(t, "annotation", query)
	if e == nil {
		return false
	}
	matches := false
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			for _, m := range s.LabelMatchers {
				if m.Name == "alertname" {
					matches = m.Matches(alert)
				}
			}
		}
		return nil
	})
	return matches
}
