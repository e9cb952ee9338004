package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"

	"oncewatch/alerts"
	"oncewatch/collectors/httpclient"
	"oncewatch/collectors/poll"
)

// Prometheus names where the consumers' metrics are stored already.
type Prometheus struct {
	URL     string `name:"url" placeholder:"URL" help:"A Prometheus, Mimir or Thanos that has the consumers' metrics: page and check ask it, by the alert rules' own expressions and windows, instead of the consumers."`
	Cluster string `name:"cluster" help:"Value of the label cluster of this database and broker, where that Prometheus has several."`

	httpclient.Config `embed:""`
}

// Validate names an address that cannot be used.
func (c Prometheus) Validate() error {
	if u, err := url.Parse(c.URL); c.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("--prometheus.url: %q is not an address: want for example http://prometheus:9090", httpclient.Redacted(c.URL))
	}
	return c.Config.Validate("--prometheus.")
}

// maxAnswer bounds the answer to one expression, in bytes.
const maxAnswer = 32 << 20

// Stored is a poll.Source that asks a Prometheus; its snapshots are *Snapshot.
type Stored struct {
	config Prometheus
	client *http.Client
	ask    []expression
}

// expression is one question, and where its answer goes.
type expression struct {
	text   string
	metric string // what is missing where there is no answer
	figure func(*Values) *Figure
}

// Expression is what a line of the checklist asks.
type Expression struct{ Text, Line string }

// Expressions are what is asked, a part of the alert rules each.
func Expressions(t alerts.Thresholds) []Expression {
	var all []Expression
	for _, e := range expressions(t) {
		all = append(all, Expression{e.text, lines[e.metric]})
	}
	return all
}

// lines are the checklist's rules that the metrics serve.
var lines = map[string]string{
	handledTotal:                            "duplicate-ratio",
	handledTotal + `{outcome="duplicate"}`:  "duplicate-ratio",
	originTotal + `{origin="other_offset"}`: "duplicate-ratio",
	durationSeconds + "_bucket":             "handle-latency",
	durationSeconds + "_count":              "handle-latency",
	commitLagSeconds:                        "commit-lag",
	deadLetteredTotal:                       "dead-letters",
	lostTotal:                               "records-lost",
}

func expressions(t alerts.Thresholds) []expression {
	sum := func(what string, window fmt.Stringer) string {
		return fmt.Sprintf("sum by (cluster, consumer_group, topic) (increase(%s[%s]))", what, window)
	}
	long := func(what string) string {
		return fmt.Sprintf("sum_over_time(%s[%s:%s])", sum(what, t.DuplicateWindow), t.DuplicateLowWindow, t.DuplicateWindow)
	}
	const duplicate, elsewhere = handledTotal + `{outcome="duplicate"}`, originTotal + `{origin="other_offset"}`
	return []expression{
		{sum(handledTotal, t.DuplicateWindow), handledTotal, func(v *Values) *Figure { return &v.Processed }}, // less the duplicates, in the end
		{sum(duplicate, t.DuplicateWindow), duplicate, func(v *Values) *Figure { return &v.Duplicates }},
		{sum(elsewhere, t.DuplicateWindow), elsewhere, func(v *Values) *Figure { return &v.Elsewhere }},
		{long(handledTotal), handledTotal, func(v *Values) *Figure { return &v.LongHandled }},
		{long(duplicate), duplicate, func(v *Values) *Figure { return &v.LongDuplicates }},
		{fmt.Sprintf("histogram_quantile(0.99, sum by (cluster, consumer_group, topic, le) (rate(%s_bucket[%s])))", durationSeconds, t.LatencyWindow),
			durationSeconds + "_bucket", func(v *Values) *Figure { return &v.P99 }},
		{sum(durationSeconds+"_count", t.LatencyWindow), durationSeconds + "_count", func(v *Values) *Figure { return &v.Timed }},
		{sum(retriesTotal, t.EventWindow), retriesTotal, func(v *Values) *Figure { return &v.Retries }},
		{sum(deadLetteredTotal, t.LostWindow), deadLetteredTotal, func(v *Values) *Figure { return &v.DeadLettered }},
		{sum(lostTotal, t.LostWindow), lostTotal, func(v *Values) *Figure { return &v.Lost }},
		{fmt.Sprintf("max by (cluster, consumer_group, topic) (last_over_time(%s[%s]))", commitLagSeconds, t.Bridge), commitLagSeconds, func(v *Values) *Figure { return &v.CommitLag }},
	}
}

// NewStored makes the source. It never connects.
func NewStored(c Prometheus, t alerts.Thresholds) (*Stored, error) {
	client, err := httpclient.New(c.Config, "--prometheus.")
	if err != nil {
		return nil, err
	}
	return &Stored{config: c, client: client, ask: expressions(t)}, nil
}

// Close ends idle connections.
func (s *Stored) Close() { s.client.CloseIdleConnections() }

// Describe implements poll.Source: the source exports nothing of its own.
func (s *Stored) Describe(chan<- *prometheus.Desc) {}

// Poll implements poll.Source.
func (s *Stored) Poll(ctx context.Context) (poll.Snapshot, error) {
	answers := make([]model.Vector, len(s.ask))
	errs := make([]error, len(s.ask))
	var wg sync.WaitGroup
	for i, e := range s.ask {
		wg.Go(func() { answers[i], errs[i] = s.Query(ctx, e.text) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err // one says it for all
		}
	}
	at := httpclient.Redacted(s.config.URL)
	snapshot := &Snapshot{Sources: 1, Values: map[Key]Values{}}
	clusters := map[Key]string{}
	values := map[Key]*Values{}
	for i, e := range s.ask {
		for _, sample := range answers[i] {
			k := Key{string(sample.Metric["consumer_group"]), string(sample.Metric["topic"])}
			cluster := string(sample.Metric["cluster"])
			if s.config.Cluster != "" && cluster != s.config.Cluster || k.Group == "" || k.Topic == "" {
				continue
			}
			if other, ok := clusters[k]; ok && other != cluster {
				return nil, &poll.KindError{Kind: "ambiguous", Err: fmt.Errorf("%s: it has the group %q on topic %q in the clusters %q and %q: say with --prometheus.cluster which is meant", at, k.Group, k.Topic, other, cluster)}
			}
			clusters[k] = cluster
			v := values[k]
			if v == nil {
				v = &Values{}
				for _, missing := range s.ask {
					*missing.figure(v) = Figure{Missing: fmt.Sprintf("%s has no %s of this group and topic in the window of %s", at, missing.metric, missing.text)}
				}
				values[k] = v
			}
			if n := float64(sample.Value); n >= 0 && !math.IsInf(n, 1) { // NaN where nothing was handled
				*e.figure(v) = Figure{Value: n, From: e.text + " at " + at}
			}
		}
	}
	for k, v := range values {
		if v.Duplicates.OK() {
			v.Processed.Value = max(0, v.Processed.Value-v.Duplicates.Value)
		}
		v.P99Low, v.P99High = v.P99.Value, v.P99.Value
		v.EverDuplicate = v.LongDuplicates
		snapshot.Values[k] = *v
	}
	return snapshot, nil
}

// Query asks one expression. What the Prometheus says of it is not repeated.
func (s *Stored) Query(ctx context.Context, text string) (model.Vector, error) {
	base, err := url.Parse(s.config.URL)
	if err != nil {
		return nil, errors.New("--prometheus.url: the address cannot be used")
	}
	address := base.JoinPath("api/v1/query")
	q := address.Query()
	q.Set("query", text)
	address.RawQuery = q.Encode()
	resp, err := httpclient.Get(ctx, s.client, address.String(), "application/json")
	if err != nil {
		return nil, see("--prometheus.url", err)
	}
	defer func() { _ = resp.Body.Close() }()
	fail := func(kind, what string) (model.Vector, error) {
		return nil, &poll.KindError{Kind: kind, Err: fmt.Errorf("%s: %s", httpclient.Redacted(s.config.URL), what)}
	}
	body := &io.LimitedReader{R: resp.Body, N: maxAnswer + 1}
	var answer struct {
		Status   string   `json:"status"`
		Warnings []string `json:"warnings"`
		Data     struct {
			ResultType string       `json:"resultType"`
			Result     model.Vector `json:"result"`
		} `json:"data"`
	}
	err = json.NewDecoder(body).Decode(&answer)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", httpclient.Redacted(s.config.URL), ctx.Err())
	case body.N == 0:
		return fail("malformed", fmt.Sprintf("its answer is longer than %d MiB", maxAnswer>>20))
	case err != nil || answer.Status != "success" || answer.Data.ResultType != "vector":
		return fail("malformed", "this is no answer of a Prometheus' /api/v1/query: see --prometheus.url")
	}
	for _, w := range answer.Warnings {
		if strings.Contains(strings.ToLower(w), "partial") || strings.Contains(strings.ToLower(w), "unavailable") {
			return fail("failed", "it has answered in part only: some of its stores are away")
		}
	}
	return answer.Data.Result, nil
}
