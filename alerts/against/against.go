// Package against asks a Prometheus what the alert rules would find there.
package against

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"oncewatch/alerts"
)

// Check writes what the rules would find in a Prometheus, or whatever
// answers its API at base: which alerts lack a metric they read, how often it
// scrapes, which window is shorter than what it should cover, and what each
// alert would say now. Rules need not be loaded there: what they would have
// recorded is computed. The error is of asking; findings are none.
func Check(ctx context.Context, w io.Writer, client *http.Client, base string, o alerts.Options) error {
	t, err := alerts.Load(o.ValuesFile, o.Set)
	if err != nil {
		return err
	}
	files, err := alerts.Files(t, o.RunbookBase)
	if err != nil {
		return err
	}
	all, records, err := read(files)
	if err != nil {
		return err
	}
	a := against{ctx: ctx, client: client, base: strings.TrimSuffix(base, "/"), w: w, records: records, seen: map[string]bool{}}
	if _, err := a.query("vector(1)"); err != nil {
		return err
	}
	if err := a.surroundings(t); err != nil {
		return err
	}
	for _, r := range all {
		if err := a.alert(r); err != nil {
			return fmt.Errorf("%s: %w", r.Alert, err)
		}
	}
	return nil
}

// read returns the alerts of the files in order, and what is recorded by name.
func read(files map[string][]byte) (all []rule, records map[string]string, err error) {
	records = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var file struct {
			Groups []struct{ Rules []rule }
		}
		if err := yaml.Unmarshal(files[name], &file); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				if r.Alert != "" {
					all = append(all, r)
				} else {
					records[r.Record] = r.Expr
				}
			}
		}
	}
	return all, records, nil
}

type rule struct {
	Alert, Record, Expr string
	For                 model.Duration
	Labels              map[string]string
}

type against struct {
	ctx     context.Context
	client  *http.Client
	base    string
	w       io.Writer
	records map[string]string // record → its expression
	seen    map[string]bool   // metric → whether there are samples of it
}

type result struct {
	Metric map[string]string
	Value  [2]any
}

func (r result) number() float64 {
	text, _ := r.Value[1].(string)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

func (a *against) query(expr string) ([]result, error) {
	req, err := http.NewRequestWithContext(a.ctx, http.MethodPost, a.base+"/api/v1/query", strings.NewReader(url.Values{"query": {expr}}.Encode()))
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", a.base, err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask Prometheus: %w", err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []result }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("ask Prometheus: %s answers %s, which is no answer of its API: %w", a.base, resp.Status, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("ask Prometheus: %s", answer.Error)
	}
	return answer.Data.Result, nil
}

func (a *against) say(format string, args ...any) { _, _ = fmt.Fprintf(a.w, format+"\n", args...) }

// surroundings are the scrape intervals and the retentions that windows must cover.
func (a *against) surroundings(t alerts.Thresholds) error {
	found, err := a.query(`max by (job) (
		(max_over_time(timestamp(up)[10m:5s]) - min_over_time(timestamp(up)[10m:5s])) / (count_over_time(up[10m]) > 1) * (count_over_time(up[10m]) / (count_over_time(up[10m]) - 1))
		and on (job, instance) {__name__=~"oncewatch_build_info|events_handled_total|processed_events_row_count|consumer_lag"})`)
	if err != nil {
		return err
	}
	for _, r := range found {
		every, longest := r.number(), time.Duration(t.ScrapeInterval).Seconds()
		note := ""
		if every > 1.2*longest {
			note = fmt.Sprintf(": longer than scrape_interval=%s, rates miss samples; --set scrape_interval=…", t.ScrapeInterval)
		}
		a.say("scrape interval of job %q: about %.0f s%s", r.Metric["job"], every, note)
	}
	if len(found) == 0 {
		a.say("nothing of oncewatch or of its consumers is scraped here")
	}
	longest, err := a.query(`max(kafka_topic_retention_seconds < Inf)`)
	if err != nil {
		return err
	}
	for _, r := range longest {
		need := time.Duration(r.number() * t.RetentionRatioWarning * float64(time.Second))
		a.say("longest retention of a topic: %s", model.Duration(time.Duration(r.number())*time.Second))
		for key, window := range map[string]model.Duration{"retention_window": t.RetentionWindow, "exposure_memory": t.ExposureMemory} {
			if need > time.Duration(window) {
				a.say("    %s=%s is shorter than %g times that; --set %s=%s", key, window, t.RetentionRatioWarning, key, model.Duration(need.Round(time.Hour)))
			}
		}
	}
	return nil
}

func (a *against) alert(r rule) error {
	expr, err := parse.ParseExpr(r.Expr)
	if err != nil {
		return err
	}
	metrics := map[string]bool{}
	if err := a.inputs(expr, metrics, map[string]bool{}); err != nil {
		return err
	}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if _, asked := a.seen[name]; !asked {
			found, err := a.query("count(last_over_time(" + name + "[1h]))")
			if err != nil {
				return err
			}
			a.seen[name] = len(found) > 0
		}
		if !a.seen[name] {
			missing = append(missing, name)
		}
	}
	lacks := ""
	if len(missing) > 0 {
		lacks = " (no series of " + strings.Join(missing, ", ") + ")"
	}
	if len(missing) == len(metrics) {
		a.say("%s: not watched%s", r.Alert, lacks)
		return nil
	}
	text, err := a.inline(expr, nil, map[string]bool{})
	if err != nil {
		return err
	}
	found, err := a.query(text)
	if err != nil {
		a.say("%s: cannot be told: %v%s", r.Alert, err, lacks)
		return nil
	}
	if len(found) == 0 {
		a.say("%s: silent%s", r.Alert, lacks)
		return nil
	}
	a.say("%s: holds for %d (%s, if it lasts %s)%s", r.Alert, len(found), r.Labels["severity"], r.For, lacks)
	for _, f := range found[:min(len(found), 5)] {
		delete(f.Metric, "__name__")
		a.say("    %s = %g", labels.FromMap(f.Metric), f.number())
	}
	if more := len(found) - 5; more > 0 {
		a.say("    and %d more", more)
	}
	return nil
}

var parse = parser.NewParser(parser.Options{})

// inputs are the metrics that an expression reads, itself or by what is recorded.
func (a *against) inputs(e parser.Expr, metrics, under map[string]bool) (err error) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		switch {
		case !ok || under[s.Name]:
		case a.records[s.Name] != "":
			under[s.Name] = true
			inner, failed := parse.ParseExpr(a.records[s.Name])
			if failed == nil {
				failed = a.inputs(inner, metrics, under)
			}
			if failed != nil {
				err = failed
			}
		default:
			metrics[s.Name] = true
		}
		return nil
	})
	return err
}

// inline writes an expression with what it reads of records computed in place.
// more are matchers of a record, which what it is made of must have; under are
// the records it stands in: one that reads itself remembers nothing.
func (a *against) inline(e parser.Expr, more []*labels.Matcher, under map[string]bool) (string, error) {
	var failed error
	in := func(e parser.Expr) string {
		text, err := a.inline(e, more, under)
		if err != nil {
			failed = err
		}
		return text
	}
	// A record at one time, or over a range of it.
	record := func(s *parser.VectorSelector, window, offset time.Duration) string {
		if under[s.Name] {
			if window > 0 {
				return "(vector(0) unless vector(0))[1m:1m]"
			}
			return "(vector(0) unless vector(0))"
		}
		inner, err := parse.ParseExpr(a.records[s.Name])
		if err != nil {
			failed = err
			return ""
		}
		under := cloneWith(under, s.Name)
		matchers := slices.Clone(more)
		for _, m := range s.LabelMatchers {
			if m.Name != model.MetricNameLabel {
				matchers = append(matchers, m)
			}
		}
		text, err := a.inline(inner, matchers, under)
		if err != nil {
			failed = err
		}
		switch {
		case window > 0:
			text = fmt.Sprintf("(%s)[%s:%s]", text, model.Duration(window), model.Duration(max(time.Minute, window/30)))
		case offset != 0:
			text = fmt.Sprintf("(%s)[1m:1m]", text)
		default:
			return "(" + text + ")"
		}
		if offset != 0 {
			text += " offset " + model.Duration(offset).String()
		}
		if window == 0 {
			text = "last_over_time(" + text + ")"
		}
		return text
	}
	var text string
	switch e := e.(type) {
	case *parser.VectorSelector:
		if a.records[e.Name] != "" {
			return record(e, 0, e.OriginalOffset), failed
		}
		c := *e
		c.LabelMatchers = slices.Concat(e.LabelMatchers, more)
		text = c.String()
	case *parser.MatrixSelector:
		s := e.VectorSelector.(*parser.VectorSelector)
		if a.records[s.Name] != "" {
			return record(s, e.Range, s.OriginalOffset), failed
		}
		c, m := *s, *e
		c.LabelMatchers = slices.Concat(s.LabelMatchers, more)
		m.VectorSelector = &c
		text = m.String()
	case *parser.ParenExpr:
		text = "(" + in(e.Expr) + ")"
	case *parser.UnaryExpr:
		text = e.Op.String() + in(e.Expr)
	case *parser.SubqueryExpr:
		text = fmt.Sprintf("(%s)[%s:%s]", in(e.Expr), model.Duration(e.Range), model.Duration(e.Step))
	case *parser.Call:
		args := make([]string, len(e.Args))
		for i, arg := range e.Args {
			args[i] = in(arg)
		}
		text = e.Func.Name + "(" + strings.Join(args, ", ") + ")"
	case *parser.AggregateExpr:
		c := *e
		c.Expr = &parser.NumberLiteral{Val: 1}
		text = strings.TrimSuffix(c.String(), "(1)") + "(" + in(e.Expr) + ")"
	case *parser.BinaryExpr:
		c := *e
		c.LHS, c.RHS = &parser.NumberLiteral{Val: 1}, &parser.NumberLiteral{Val: 1}
		op := strings.TrimSuffix(strings.TrimPrefix(c.String(), "1 "), " 1")
		text = "(" + in(e.LHS) + " " + op + " " + in(e.RHS) + ")"
	default:
		text = e.String()
	}
	return text, failed
}

func cloneWith(m map[string]bool, key string) map[string]bool {
	c := map[string]bool{key: true}
	for k := range m {
		c[k] = true
	}
	return c
}
