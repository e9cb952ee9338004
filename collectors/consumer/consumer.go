// Package consumer reads what consumers say of themselves on their own
// /metrics: duplicates, handling time and commit lag, which neither the
// database nor the broker can tell. It serves the page and the audit; the
// series themselves are scraped from the consumers by Prometheus.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"oncewatch/collectors/poll"
)

// Config names the consumers to read.
type Config struct {
	MetricsURL []string `name:"metrics-url" placeholder:"URL" help:"Addresses of the consumers' own metrics, for the lines of the checklist that only they can tell (duplicates, handling time, commit lag). Read for the page and the audit; Prometheus scrapes them itself."`
}

// Validate names an address that cannot be used.
func (c Config) Validate() error {
	for _, raw := range c.MetricsURL {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--consumer.metrics-url: %q is no address: want for example http://consumer-1:10078/metrics", redacted(raw))
		}
	}
	return nil
}

func redacted(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Host != "" {
		// Neither user nor query: either may be a token.
		return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	}
	return "…"
}

// window is how far back the page judges.
const window = 30 * time.Minute

// maxPage bounds one consumer's answer.
const maxPage = 16 << 20

// Source polls the consumers.
type Source struct {
	urls   []string
	client *http.Client
	now    func() time.Time

	mu   sync.Mutex
	past []reading // oldest first
}

// New makes the source. It never connects.
func New(c Config, now func() time.Time) *Source {
	if now == nil {
		now = time.Now
	}
	return &Source{urls: c.MetricsURL, client: &http.Client{}, now: now}
}

// Close ends idle connections.
func (s *Source) Close() { s.client.CloseIdleConnections() }

// Describe implements poll.Source: the source exports nothing of its own.
func (s *Source) Describe(chan<- *prometheus.Desc) {}

// Key is a consumer group on a topic.
type Key struct{ Group, Topic string }

// Values are what the consumers of a group counted on a topic, over Span.
type Values struct {
	// Processed and Duplicates are events by outcome, Elsewhere the duplicates
	// whose marker has another offset.
	Processed, Duplicates, Elsewhere float64
	Retries, DeadLettered, Lost      float64
	// buckets counts handled events by upper bound, cumulative.
	buckets map[float64]float64
	// CommitLag is the longest wait for an offset commit now, in seconds;
	// NaN where no consumer exports it.
	CommitLag float64
}

// Handled is the number of handled events.
func (v Values) Handled() float64 { return v.Processed + v.Duplicates }

// Quantile estimates the handling time that a share q of the events stayed
// below, in seconds, as histogram_quantile does; NaN without events.
func (v Values) Quantile(q float64) float64 {
	bounds := slices.Sorted(maps.Keys(v.buckets))
	if len(bounds) == 0 || v.buckets[bounds[len(bounds)-1]] == 0 {
		return math.NaN()
	}
	rank := q * v.buckets[bounds[len(bounds)-1]]
	lower, below := 0.0, 0.0
	for _, upper := range bounds {
		n := v.buckets[upper]
		if n >= rank {
			if math.IsInf(upper, 1) || n == below {
				return lower
			}
			return lower + (upper-lower)*(rank-below)/(n-below)
		}
		lower, below = upper, n
	}
	return lower
}

// minus is what was counted since an earlier reading of the same consumers.
func (v Values) minus(old Values) (Values, bool) {
	d := v
	d.Processed -= old.Processed
	d.Duplicates -= old.Duplicates
	d.Elsewhere -= old.Elsewhere
	d.Retries -= old.Retries
	d.DeadLettered -= old.DeadLettered
	d.Lost -= old.Lost
	d.buckets = make(map[float64]float64, len(v.buckets))
	for bound, n := range v.buckets {
		d.buckets[bound] = n - old.buckets[bound]
	}
	for _, n := range []float64{d.Processed, d.Duplicates, d.Elsewhere, d.Retries, d.DeadLettered, d.Lost} {
		if n < 0 {
			return v, false // a consumer has restarted
		}
	}
	return d, true
}

// reading is one poll's sum over all consumers.
type reading struct {
	at     time.Time
	values map[Key]Values
}

// Snapshot is what the consumers counted over the window.
type Snapshot struct {
	// Span is what the counts cover; 0 means since the consumers started.
	Span     time.Duration
	Values   map[Key]Values
	problems []poll.Problem
}

// Collect implements poll.Snapshot.
func (s *Snapshot) Collect(time.Time, chan<- prometheus.Metric) {}

// Problems implements poll.Snapshot.
func (s *Snapshot) Problems() []poll.Problem { return s.problems }

// Poll implements poll.Source.
func (s *Source) Poll(ctx context.Context) (poll.Snapshot, error) {
	type answer struct {
		url      string
		families map[string]*dto.MetricFamily
		err      error
	}
	answers := make([]answer, len(s.urls))
	var wg sync.WaitGroup
	for i, u := range s.urls {
		wg.Go(func() {
			families, err := s.fetch(ctx, u)
			answers[i] = answer{u, families, err}
		})
	}
	wg.Wait()
	now := reading{at: s.now(), values: map[Key]Values{}}
	snapshot := &Snapshot{}
	failed := 0
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			failed++
			errs = append(errs, a.err)
			snapshot.problems = append(snapshot.problems, poll.Problem{Kind: poll.Kind(a.err), Entity: "consumer " + redacted(a.url), Err: a.err})
			continue
		}
		now.add(a.families)
	}
	if failed == len(s.urls) {
		return nil, errors.Join(errs...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if failed > 0 {
		s.past = nil // sums over other consumers cannot be compared
	}
	for len(s.past) > 0 && now.at.Sub(s.past[0].at) > window {
		s.past = s.past[1:]
	}
	snapshot.Values = now.values
	if len(s.past) > 0 {
		since := make(map[Key]Values, len(now.values))
		whole := true
		for k, v := range now.values {
			d, ok := v.minus(s.past[0].values[k])
			since[k], whole = d, whole && ok
		}
		if whole {
			snapshot.Values, snapshot.Span = since, now.at.Sub(s.past[0].at)
		} else {
			s.past = nil
		}
	}
	if failed == 0 {
		s.past = append(s.past, now)
	}
	return snapshot, nil
}

func (s *Source) fetch(ctx context.Context, u string) (map[string]*dto.MetricFamily, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: the address cannot be used", redacted(u))
	}
	req.Header.Set("Accept", "text/plain; version=0.0.4")
	resp, err := s.client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the address, which may hold a password
		}
		return nil, &poll.KindError{Kind: "unreachable", Err: fmt.Errorf("consumer %s: %w", redacted(u), err)}
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, &poll.KindError{Kind: "denied", Err: fmt.Errorf("consumer %s: HTTP %s", redacted(u), resp.Status)}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(resp.Body, maxPage))
	if err != nil {
		return nil, &poll.KindError{Kind: "malformed", Err: fmt.Errorf("consumer %s: these are no metrics: %w", redacted(u), err)}
	}
	return families, nil
}

// add sums one consumer's series into the reading.
func (r *reading) add(families map[string]*dto.MetricFamily) {
	each := func(name string, f func(v *Values, label func(string) string, m *dto.Metric)) {
		for _, m := range families[name].GetMetric() {
			label := func(name string) string {
				for _, l := range m.Label {
					if l.GetName() == name {
						return l.GetValue()
					}
				}
				return ""
			}
			k := Key{label("consumer_group"), label("topic")}
			v, ok := r.values[k]
			if !ok {
				v.CommitLag = math.NaN()
				v.buckets = map[float64]float64{}
			}
			f(&v, label, m)
			r.values[k] = v
		}
	}
	each("events_handled_total", func(v *Values, label func(string) string, m *dto.Metric) {
		switch label("outcome") {
		case "processed":
			v.Processed += m.GetCounter().GetValue()
		case "duplicate":
			v.Duplicates += m.GetCounter().GetValue()
		}
	})
	each("events_duplicate_origin_total", func(v *Values, label func(string) string, m *dto.Metric) {
		if label("origin") == "other_offset" {
			v.Elsewhere += m.GetCounter().GetValue()
		}
	})
	count := func(name string, field func(*Values) *float64) {
		each(name, func(v *Values, _ func(string) string, m *dto.Metric) { *field(v) += m.GetCounter().GetValue() })
	}
	count("event_retries_total", func(v *Values) *float64 { return &v.Retries })
	count("events_dead_lettered_total", func(v *Values) *float64 { return &v.DeadLettered })
	count("events_lost_total", func(v *Values) *float64 { return &v.Lost })
	each("event_handle_duration_seconds", func(v *Values, _ func(string) string, m *dto.Metric) {
		for _, b := range m.GetHistogram().GetBucket() {
			v.buckets[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	})
	each("consumer_offset_commit_lag_seconds", func(v *Values, _ func(string) string, m *dto.Metric) {
		if lag := m.GetGauge().GetValue(); math.IsNaN(v.CommitLag) || lag > v.CommitLag {
			v.CommitLag = lag
		}
	})
}
