package ruletest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"go.yaml.in/yaml/v3"
)

// File is a file of promtool's unit tests, of which it knows the parts used here.
type File struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	// GroupEvalOrder is for promtool 2.42, which has an order of its own without
	// it; here groups are evaluated as they stand in the files.
	GroupEvalOrder []string `yaml:"group_eval_order"`
	Tests          []*Test  `yaml:"tests"`
}

// Test is one scenario: series, and what is to be seen of them.
type Test struct {
	Name           string            `yaml:"name"`
	Interval       model.Duration    `yaml:"interval"`
	ExternalLabels map[string]string `yaml:"external_labels"`
	Input          []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Exprs []struct {
		Expr    string         `yaml:"expr"`
		Time    model.Duration `yaml:"eval_time"`
		Samples []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
	Alerts []AlertCheck `yaml:"alert_rule_test"`
}

// AlertCheck names every instance of one alert that fires at a time.
type AlertCheck struct {
	Name string         `yaml:"alertname"`
	Time model.Duration `yaml:"eval_time"`
	Want []struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	} `yaml:"exp_alerts"`
}

// Read reads a test file; a field that it does not know is an error.
func Read(name string) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	var file File
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &file, nil
}

// Load writes the scenario's series to the store.
func (t *Test) Load(store *Store) error {
	p := parser.NewParser(parser.Options{})
	for _, in := range t.Input {
		l, values, err := p.ParseSeriesDesc(in.Series + " " + in.Values)
		if err != nil {
			return fmt.Errorf("%s %.60s: %w", in.Series, in.Values, err)
		}
		for i, v := range values {
			at := time.Duration(i) * time.Duration(t.Interval)
			switch {
			case v.Omitted:
			case v.Histogram != nil:
				store.AppendHistogram(l, at.Milliseconds(), v.Histogram)
			default:
				store.Append(l, at.Milliseconds(), v.Value)
			}
		}
	}
	return nil
}

// until is the last moment that a check looks at.
func (t *Test) until() (last time.Duration) {
	for _, c := range t.Exprs {
		last = max(last, time.Duration(c.Time))
	}
	for _, c := range t.Alerts {
		last = max(last, time.Duration(c.Time))
	}
	return last
}

// Run evaluates the rules over what reads holds, every interval from the
// beginning, and returns what is not as the scenario says.
func (t *Test) Run(reads storage.Queryable, writes *Store, rules []rulefmt.Rule, interval time.Duration) (wrong []string, err error) {
	e := New(NewEngine(interval), reads, writes, rules)
	start := time.Unix(0, 0).UTC()
	for at := time.Duration(0); at <= t.until(); at += interval {
		if err := e.Tick(start.Add(at)); err != nil {
			return nil, fmt.Errorf("at %s: %w", at, err)
		}
		for _, c := range t.Alerts {
			if time.Duration(c.Time) < at || time.Duration(c.Time) >= at+interval {
				continue
			}
			got, err := e.Firing(c.Name)
			if err != nil {
				return nil, err
			}
			var have, want []string
			for _, a := range got {
				have = append(have, text(a.Labels.Map(), a.Annotations))
			}
			for _, w := range c.Want {
				l := maps.Clone(w.Labels)
				l[labels.AlertName] = c.Name
				want = append(want, text(l, w.Annotations))
			}
			if diff := difference(have, want); diff != "" {
				wrong = append(wrong, fmt.Sprintf("%s: alert %s at %s:%s", t.Name, c.Name, c.Time, diff))
			}
		}
	}
	for _, c := range t.Exprs {
		got, err := e.Query(c.Expr, start.Add(time.Duration(c.Time)))
		if err != nil {
			return nil, err
		}
		var have, want []string
		for _, s := range got {
			have = append(have, fmt.Sprintf("%s %g", s.Metric, s.F))
		}
		for _, w := range c.Samples {
			l, err := parser.NewParser(parser.Options{}).ParseMetric(w.Labels)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.Labels, err)
			}
			want = append(want, fmt.Sprintf("%s %g", l, w.Value))
		}
		if diff := difference(have, want); diff != "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s at %s:%s", t.Name, c.Expr, c.Time, diff))
		}
	}
	return wrong, nil
}

func text(labels, annotations map[string]string) string { return fmt.Sprint(labels, annotations) }

// difference names what is on one side only.
func difference(have, want []string) (diff string) {
	slices.Sort(have)
	slices.Sort(want)
	for len(have)+len(want) > 0 {
		order := 0
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		default:
			order = cmp.Compare(have[0], want[0])
		}
		switch {
		case order < 0:
			diff += "\n\tis there:   " + have[0]
			have = have[1:]
		case order > 0:
			diff += "\n\tis missing: " + want[0]
			want = want[1:]
		default:
			have, want = have[1:], want[1:]
		}
	}
	return diff
}
