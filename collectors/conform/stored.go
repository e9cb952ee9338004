package conform

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/promql/parser"

	"oncewatch/collectors/consumer"
	"oncewatch/collectors/httpclient"
)

// ReadStored reads what a Prometheus has of the metrics now, narrowed by a
// selector such as {job="x"}; mapping may be nil. Types are known as far as it
// keeps metadata.
func (w *Wanted) ReadStored(ctx context.Context, c consumer.Prometheus, selector string, mapping *Mapping, relabelling []*relabel.Config) (*Page, error) {
	if selector == "" {
		selector = "{}"
	}
	matchers := []string{}
	if inner := strings.TrimSpace(selector); inner != "{}" {
		parsed, err := parser.NewParser(parser.Options{}).ParseMetricSelector(inner)
		if err != nil {
			return nil, fmt.Errorf(`--prometheus.selector: %q is no selector: want for example {job="consumer"}`, selector)
		}
		for _, m := range parsed {
			matchers = append(matchers, m.String())
		}
	}
	stems := map[string]bool{}
	for name := range w.needs {
		stems[regexp.QuoteMeta(stem(name))] = true
	}
	if mapping != nil {
		for ours, theirs := range mapping.Metrics {
			stems[regexp.QuoteMeta(theirs.name(ours))] = true
		}
	}
	names, err := labels.NewMatcher(labels.MatchRegexp, model.MetricNameLabel, "(?:"+strings.Join(slices.Sorted(maps.Keys(stems)), "|")+")(?:_[a-z]+){0,3}")
	if err != nil {
		return nil, err
	}
	s, err := consumer.NewStored(c, w.thresholds)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	found, err := s.Query(ctx, "{"+strings.Join(append(matchers, names.String()), ",")+"}")
	if err != nil {
		return nil, err
	}
	types, err := metadata(ctx, c)
	if err != nil {
		return nil, err
	}
	var all []parsed
	for _, sample := range found {
		b := labels.NewScratchBuilder(len(sample.Metric))
		for l, v := range sample.Metric {
			b.Add(string(l), string(v))
		}
		b.Sort()
		all = append(all, parsed{labels: b.Labels(), value: float64(sample.Value), native: sample.Histogram != nil})
	}
	p := newPage(httpclient.Redacted(c.URL) + " " + selector)
	p.fill(all, types, nil, relabelling)
	return p, nil
}

// metadata is the type of each metric.
func metadata(ctx context.Context, c consumer.Prometheus) (map[string]string, error) {
	client, err := httpclient.New(c.Config, "--prometheus.")
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	base, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("--prometheus.url: the address cannot be used")
	}
	address := base.JoinPath("api/v1/metadata")
	q := address.Query()
	q.Set("limit_per_metric", "1")
	address.RawQuery = q.Encode()
	resp, err := httpclient.Get(ctx, client, address.String(), "application/json")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Data map[string][]struct{ Type string }
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: this is no answer of a Prometheus' /api/v1/metadata", httpclient.Redacted(c.URL))
	}
	types := map[string]string{}
	for name, m := range answer.Data {
		if len(m) > 0 {
			types[name] = m[0].Type
		}
	}
	return types, nil
}
