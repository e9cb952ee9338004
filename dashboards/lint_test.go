package dashboards

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// The rules of Grafana's dashboard linter, by its own names, applied to the
// generated files. The linter itself cannot be had as a module. Where it looks
// only at some kinds of panel, all are checked here. One rule is not as the linter
// has it: All of job and instance is ".*" (see variables).
var lintRules = map[string]func(t *testing.T, b board, report func(format string, args ...any)){
	"template-datasource-rule": func(_ *testing.T, b board, report func(string, ...any)) {
		i := slices.IndexFunc(b.Templating.List, func(v template) bool { return v.Type == "datasource" })
		if i < 0 {
			report("no templated data source")
		} else if v := b.Templating.List[i]; v.Name != "datasource" || v.Label != "Data source" {
			report("the data source is called %q and labelled %q", v.Name, v.Label)
		}
	},
	"template-job-rule": func(_ *testing.T, b board, report func(string, ...any)) { lintTemplate(b, "job", "Job", report) },
	"template-instance-rule": func(_ *testing.T, b board, report func(string, ...any)) {
		lintTemplate(b, "instance", "Instance", report)
	},
	"template-label-promql-rule": func(t *testing.T, b board, report func(string, ...any)) {
		for _, v := range b.Templating.List {
			if v.Type != "query" {
				continue
			}
			selector, _, ok := labelValues(v.Query)
			if e, is := queryResult(v.Query); is {
				selector, ok = e, true
			}
			if !ok || parsed(t, b.UID, selector) == nil {
				report("variable %s: %q", v.Name, v.Query)
			}
		}
	},
	"template-on-time-change-reload-rule": func(_ *testing.T, b board, report func(string, ...any)) {
		for _, v := range b.Templating.List {
			if v.Type == "query" && v.Refresh != 2 {
				report("variable %s refreshes on %d", v.Name, v.Refresh)
			}
		}
	},
	"panel-datasource-rule": func(_ *testing.T, b board, report func(string, ...any)) {
		for _, p := range b.panels() {
			if p.Datasource.UID != "${datasource}" || p.Datasource.Type != "prometheus" {
				report("%q uses %+v", p.Title, p.Datasource)
			}
			for _, q := range p.Targets {
				if q.Datasource != p.Datasource {
					report("%q, query %s uses %+v", p.Title, q.RefID, q.Datasource)
				}
			}
		}
	},
	"panel-title-description-rule": func(_ *testing.T, b board, report func(string, ...any)) {
		for _, p := range b.panels() {
			if p.Title == "" || p.Description == "" {
				report("panel %d: title %q, description %q", p.ID, p.Title, p.Description)
			}
		}
	},
	"panel-units-rule": func(_ *testing.T, b board, report func(string, ...any)) {
		// Those of the linter's list that the dashboards use.
		valid := []string{"none", "short", "percentunit", "s", "dtdhms", hours, minutes, wholeSeconds, "bytes", "eps", "recps", "rowsps"}
		for _, p := range b.panels() {
			mapped := false
			for _, o := range p.FieldConfig.Overrides {
				for _, property := range o.Properties {
					mapped = mapped || property.ID == "mappings"
				}
			}
			if !mapped && !slices.Contains(valid, p.FieldConfig.Defaults.Unit) {
				report("%q has the unit %q", p.Title, p.FieldConfig.Defaults.Unit)
			}
		}
	},
	"panel-no-targets-rule": func(_ *testing.T, b board, report func(string, ...any)) {
		for _, p := range b.panels() {
			if len(p.Targets) == 0 {
				report("%q asks for nothing", p.Title)
			}
			for i, q := range p.Targets {
				if q.RefID != string(rune('A'+i)) {
					report("%q, query %d has the refId %q", p.Title, i, q.RefID)
				}
			}
		}
	},
	// target-logql-rule and target-logql-auto-rule concern Loki.
	"target-promql-rule": func(t *testing.T, b board, report func(string, ...any)) {
		lintSelectors(t, b, func(where string, e parser.Expr) {
			if e == nil {
				report("%s does not parse", where)
			}
		})
	},
	"target-rate-interval-rule": func(t *testing.T, b board, report func(string, ...any)) {
		// As in the linter, increase may have a window of its own: verdicts use
		// those of the alert rules.
		for _, p := range b.panels() {
			for _, q := range p.Targets {
				for _, m := range rangedCall.FindAllStringSubmatch(q.Expr, -1) {
					if (m[1] == "rate" || m[1] == "irate") && m[2] != "$__rate_interval" {
						report("%q, query %s: %s", p.Title, q.RefID, m[0])
					}
				}
			}
		}
	},
	"target-job-rule":      func(t *testing.T, b board, report func(string, ...any)) { lintMatcher(t, b, "job", report) },
	"target-instance-rule": func(t *testing.T, b board, report func(string, ...any)) { lintMatcher(t, b, "instance", report) },
	"target-counter-agg-rule": func(t *testing.T, b board, report func(string, ...any)) {
		lintSelectors(t, b, func(where string, e parser.Expr) {
			parser.Inspect(e, func(n parser.Node, path []parser.Node) error {
				s, ok := n.(*parser.VectorSelector)
				if !ok || !strings.HasSuffix(s.Name, "_total") || rawCounters[s.Name] != "" {
					return nil
				}
				if len(path) >= 2 {
					if call, ok := path[len(path)-2].(*parser.Call); ok && slices.Contains([]string{"rate", "irate", "increase"}, call.Func.Name) {
						return nil
					}
				}
				report("%s: %s is a counter, taken as it is", where, s.Name)
				return nil
			})
		})
	},
	"uneditable-dashboard": func(_ *testing.T, b board, report func(string, ...any)) {
		if b.Editable == nil || *b.Editable {
			report("is editable")
		}
	},
}

// rawCounters may be read as they are, and why.
var rawCounters = map[string]string{
	"events_lost_total":    "a counter born above zero is a loss too, which increase() does not see; two samples of each partition are read in place of an hour's",
	"events_handled_total": "that a group was ever seen is told by the series, not by its value",
}

var rangedCall = regexp.MustCompile(`([a-z_]+)\([a-z_]+\{[^}]*\}\[([^\]]+)\]\)`)

func lintTemplate(b board, name, label string, report func(string, ...any)) {
	for _, v := range b.Templating.List {
		if v.Name != name {
			continue
		}
		if v.Type != "query" || v.Label != label || !v.Multi || v.AllValue != ".*" || v.Datasource == nil || v.Datasource.UID != "${datasource}" {
			report("variable %s: %+v", name, v)
		}
		return
	}
	report("no variable %s", name)
}

func lintSelectors(t *testing.T, b board, f func(where string, e parser.Expr)) {
	for _, p := range b.panels() {
		for _, q := range p.Targets {
			where := fmt.Sprintf("%q, query %s", p.Title, q.RefID)
			f(where, parsed(t, where, q.Expr))
		}
	}
}

func lintMatcher(t *testing.T, b board, label string, report func(string, ...any)) {
	for _, p := range b.panels() {
		for _, q := range p.Targets {
			// Variables inside quotes are strings to the parser.
			e, err := parser.NewParser(parser.Options{}).ParseExpr(strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h").Replace(q.Expr))
			if err != nil {
				report("%q, query %s: %v", p.Title, q.RefID, err)
				continue
			}
			for _, matchers := range parser.ExtractSelectors(e) {
				// What rules have written has the labels of the rule, and neither job
				// nor instance.
				if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return m.Name == "__name__" && recorded[m.Value] != nil }) {
					continue
				}
				if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool {
					return m.Name == label && m.Type == labels.MatchRegexp && m.Value == "$"+label
				}) {
					report("%q, query %s: %v has no %s=~\"$%s\"", p.Title, q.RefID, matchers, label, label)
				}
			}
		}
	}
}

func TestDashboardLinter(t *testing.T) {
	for _, b := range boards(t) {
		for name, rule := range lintRules {
			rule(t, b, func(format string, args ...any) {
				t.Errorf("%s: %s: %s", b.UID, name, fmt.Sprintf(format, args...))
			})
		}
	}
}
