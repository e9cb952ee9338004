package conform

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"oncewatch/alerts"
	"oncewatch/collectors/consumer"
	"oncewatch/dashboards"
)

// Uses are who reads something of a metric, by name, each once.
type Uses struct {
	Alerts []string `json:"alerts,omitempty"`
	Panels []string `json:"panels,omitempty"`
	Lines  []string `json:"lines,omitempty"`
}

func (u Uses) with(o Uses) Uses {
	join := func(a, b []string) []string { return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b)))) }
	return Uses{join(u.Alerts, o.Alerts), join(u.Panels, o.Panels), join(u.Lines, o.Lines)}
}

// need is what is read of one metric, and by whom.
type need struct {
	alerts.Metric
	program string
	uses    Uses
	labels  map[string]Uses
	values  map[string]map[string]Uses
	bounds  map[float64]Uses
}

// needs are what rules, dashboards and page read of the metrics, by name. They
// are found in the PromQL itself, so that there is no second list to keep.
func needs(t alerts.Thresholds) (map[string]*need, error) {
	d := derivation{needs: map[string]*need{}, records: map[string]string{}}
	for program, metrics := range alerts.Metrics() {
		for name, m := range metrics {
			d.needs[name] = &need{Metric: m, program: program, labels: map[string]Uses{}, values: map[string]map[string]Uses{}, bounds: map[float64]Uses{}}
		}
	}
	files, err := alerts.Files(t, "")
	if err != nil {
		return nil, err
	}
	type rule struct{ Alert, Record, Expr string }
	var rules []rule
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var file struct {
			Groups []struct{ Rules []rule }
		}
		if err := yaml.Unmarshal(files[name], &file); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				rules = append(rules, r)
				if r.Record != "" {
					d.records[r.Record] = r.Expr
				}
			}
		}
	}
	for _, r := range rules {
		if r.Alert != "" {
			if err := d.read(r.Expr, Uses{Alerts: []string{r.Alert}}, nil, nil); err != nil {
				return nil, fmt.Errorf("alert %s: %w", r.Alert, err)
			}
		}
	}
	for _, q := range dashboards.Queries(t) {
		if err := d.read(q.Expr, Uses{Panels: []string{q.Panel}}, nil, nil); err != nil {
			return nil, fmt.Errorf("panel %s: %w", q.Panel, err)
		}
	}
	for _, e := range consumer.Expressions(t) {
		u := Uses{}
		if e.Line != "" {
			u.Lines = []string{e.Line}
		}
		if err := d.read(e.Text, u, nil, nil); err != nil {
			return nil, fmt.Errorf("line %s: %w", e.Line, err)
		}
	}
	maps.DeleteFunc(d.needs, func(_ string, n *need) bool {
		return len(n.uses.Alerts)+len(n.uses.Panels)+len(n.uses.Lines) == 0
	})
	return d.needs, nil
}

type derivation struct {
	needs   map[string]*need
	records map[string]string // record → its expression
}

// read notes what an expression reads, itself or by what is recorded. around are
// the labels that what stands around it keeps or joins on, under the records it
// stands in.
func (d derivation) read(text string, by Uses, around, under []string) error {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return err
	}
	var failed error
	parser.Inspect(e, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		kept := slices.Clone(around)
		for _, p := range path {
			switch p := p.(type) {
			case *parser.AggregateExpr:
				kept = append(kept, p.Grouping...)
			case *parser.BinaryExpr:
				if p.VectorMatching != nil && p.VectorMatching.On {
					kept = append(kept, p.VectorMatching.MatchingLabels...)
				}
			}
		}
		if recorded, ok := d.records[s.Name]; ok {
			if !slices.Contains(under, s.Name) {
				if err := d.read(recorded, by, kept, append(slices.Clone(under), s.Name)); err != nil {
					failed = fmt.Errorf("%s: %w", s.Name, err)
				}
			}
			return nil
		}
		d.selector(s, by, kept)
		return nil
	})
	return failed
}

func (d derivation) selector(s *parser.VectorSelector, by Uses, kept []string) {
	n := d.needs[s.Name]
	if n == nil {
		n = d.needs[histogramOf(s.Name)]
	}
	if n == nil {
		return // up, ALERTS
	}
	n.uses = n.uses.with(by)
	for _, m := range s.LabelMatchers {
		switch {
		case m.Name == labels.BucketLabel:
			for _, bound := range matched(m) {
				if le, err := strconv.ParseFloat(bound, 64); err == nil {
					n.bounds[le] = n.bounds[le].with(by)
				}
			}
		case n.Values[m.Name] != nil:
			for _, v := range matched(m) {
				if n.values[m.Name] == nil {
					n.values[m.Name] = map[string]Uses{}
				}
				n.values[m.Name][v] = n.values[m.Name][v].with(by)
			}
		}
		kept = append(kept, m.Name)
	}
	for _, l := range kept {
		if slices.Contains(n.Labels, l) {
			n.labels[l] = n.labels[l].with(by)
		}
	}
}

// matched are the values that a matcher names.
func matched(m *labels.Matcher) []string {
	switch m.Type {
	case labels.MatchEqual:
		return []string{m.Value}
	case labels.MatchRegexp:
		return m.SetMatches()
	}
	return nil
}

// histogramOf is the histogram that a series belongs to by its name.
func histogramOf(name string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			return base
		}
	}
	return name
}
