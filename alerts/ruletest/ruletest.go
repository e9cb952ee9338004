// Package ruletest evaluates Prometheus rules in this process: PromQL's own
// engine over samples in memory, and the alerts' states as Prometheus keeps
// them. It is for tests: promtool's test files, simulated scrapes, and the
// mutants of rules. Its verdicts are those of promtool, with which the same
// files run.
package ruletest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
)

// Evaluator evaluates rules in their order, one tick after the other, and
// appends what they record, and ALERTS, to a store.
type Evaluator struct {
	engine *promql.Engine
	reads  storage.Queryable
	writes *Store
	rules  []*rule
	now    time.Time
}

type rule struct {
	rulefmt.Rule
	active  map[uint64]*alert
	written map[uint64]labels.Labels // at the last tick: what is missing at the next ends there
}

type alert struct {
	labels  labels.Labels
	sample  promql.Sample
	since   time.Time
	firing  bool
	keeping time.Time // since when it fires only because of keep_firing_for
}

// An Alert that fires.
type Alert struct {
	Labels      labels.Labels // with alertname
	Annotations map[string]string
}

// NewEngine returns a PromQL engine with Prometheus' defaults; a subquery
// without a step takes step.
func NewEngine(step time.Duration) *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{
		MaxSamples:               50_000_000,
		Timeout:                  time.Minute,
		LookbackDelta:            5 * time.Minute,
		NoStepSubqueryIntervalFn: func(int64) int64 { return step.Milliseconds() },
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
	})
}

// New returns an evaluator of rules that reads from reads and writes to writes.
func New(engine *promql.Engine, reads storage.Queryable, writes *Store, rules []rulefmt.Rule) *Evaluator {
	e := &Evaluator{engine: engine, reads: reads, writes: writes}
	for _, r := range rules {
		e.rules = append(e.rules, &rule{Rule: r, active: map[uint64]*alert{}})
	}
	return e
}

// Query evaluates an expression at t.
func (e *Evaluator) Query(expr string, t time.Time) (promql.Vector, error) {
	q, err := e.engine.NewInstantQuery(context.Background(), e.reads, nil, expr, t)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(context.Background())
	if result.Err != nil {
		return nil, result.Err
	}
	switch v := result.Value.(type) {
	case promql.Vector:
		return slices.Clone(v), nil
	case promql.Scalar:
		return promql.Vector{{T: v.T, F: v.V}}, nil
	default:
		return nil, fmt.Errorf("%s gives a %s", expr, v.Type())
	}
}

// Tick evaluates every rule at t.
func (e *Evaluator) Tick(t time.Time) error {
	e.now = t
	for _, r := range e.rules {
		found, err := e.Query(r.Expr, t)
		if err != nil {
			return fmt.Errorf("%s%s: %w", r.Record, r.Alert, err)
		}
		written := map[uint64]labels.Labels{}
		put := func(l labels.Labels, s promql.Sample) error {
			if _, twice := written[l.Hash()]; twice {
				return fmt.Errorf("%s%s: two results with the labels %s", r.Record, r.Alert, l)
			}
			written[l.Hash()] = l
			e.writes.append(l, sample{timestamp.FromTime(t), s.F, s.H})
			return nil
		}
		if r.Record != "" {
			for _, s := range found {
				if err := put(with(s.Metric, r.Labels, model.MetricNameLabel, r.Record), s); err != nil {
					return err
				}
			}
		} else {
			if err := r.update(found, t); err != nil {
				return err
			}
			for _, a := range r.active {
				state := "pending"
				if a.firing {
					state = "firing"
				}
				if err := put(with(a.labels, nil, model.MetricNameLabel, "ALERTS", "alertstate", state), promql.Sample{F: 1}); err != nil {
					return err
				}
			}
		}
		for hash, l := range r.written {
			if _, still := written[hash]; !still {
				e.writes.Append(l, timestamp.FromTime(t), math.Float64frombits(value.StaleNaN))
			}
		}
		r.written = written
	}
	return nil
}

// update brings the alerts' states to t, as Prometheus' AlertingRule.Eval does.
func (r *rule) update(found promql.Vector, t time.Time) error {
	seen := map[uint64]bool{}
	for _, s := range found {
		l := with(s.Metric, r.Labels, model.MetricNameLabel, "", labels.AlertName, r.Alert)
		hash := l.Hash()
		if seen[hash] {
			return fmt.Errorf("%s: two results with the labels %s", r.Alert, l)
		}
		seen[hash] = true
		if a := r.active[hash]; a != nil {
			a.sample = s
			continue
		}
		r.active[hash] = &alert{labels: l, sample: s, since: t}
	}
	for hash, a := range r.active {
		if seen[hash] {
			a.keeping = time.Time{}
		} else {
			if a.keeping.IsZero() {
				a.keeping = t
			}
			if !a.firing || t.Sub(a.keeping) >= time.Duration(r.KeepFiringFor) {
				delete(r.active, hash)
				continue
			}
		}
		a.firing = a.firing || t.Sub(a.since) >= time.Duration(r.For)
	}
	return nil
}

// with is l with more labels, and then those of pairs set, or taken out where empty.
func with(l labels.Labels, more map[string]string, pairs ...string) labels.Labels {
	b := labels.NewBuilder(l)
	for k, v := range more {
		b.Set(k, v)
	}
	for i := 0; i < len(pairs); i += 2 {
		b.Set(pairs[i], pairs[i+1])
	}
	return b.Labels()
}

// Firing are the alerts that fire since the last tick, with what a person reads.
func (e *Evaluator) Firing(name string) ([]Alert, error) {
	var all []Alert
	for _, r := range e.rules {
		for _, hash := range slices.Sorted(maps.Keys(r.active)) {
			a := r.active[hash]
			if r.Alert != name || !a.firing {
				continue
			}
			texts := map[string]string{}
			for key, text := range r.Annotations {
				expanded, err := e.expand(text, a.sample)
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %w", r.Alert, key, err)
				}
				texts[key] = expanded
			}
			all = append(all, Alert{a.labels, texts})
		}
	}
	return all, nil
}

func (e *Evaluator) expand(text string, s promql.Sample) (string, error) {
	query := func(_ context.Context, expr string, t time.Time) (promql.Vector, error) { return e.Query(expr, t) }
	data := template.AlertTemplateData(s.Metric.Map(), nil, "", s)
	return template.NewTemplateExpander(context.Background(), "{{$labels := .Labels}}{{$value := .Value}}"+text, "annotation", data,
		model.Time(timestamp.FromTime(e.now)), query, &url.URL{}, nil).Expand()
}
