// Package consumer reads what consumers say of themselves on their own
// /metrics: duplicates, handling time and commit lag, which neither the
// database nor the broker can tell. It serves the page and the audit; the
// series themselves are scraped from the consumers by Prometheus.
//
// A share of events is judged over half an hour where the exporter has watched
// for so long, else over all that each consumer has counted since it started:
// never over the moment between two readings. Each consumer's differences come
// first and their sum after, so that a restart of one does not hide in the
// growth of another.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/httpclient"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// Config names the consumers to read.
type Config struct {
	MetricsURL []string `name:"metrics-url" placeholder:"URL" help:"Addresses of the consumers' own metrics: http://…, dns+http://… for each address of a name, or files of targets such as consumers/*.yml (what Prometheus' file_sd reads); found anew at each poll. For the lines of the checklist that only they can tell (duplicates, handling time, commit lag). Read for the page and the audit; Prometheus scrapes them itself."`

	httpclient.Config `embed:""`
}

// Validate names an address that cannot be used.
func (c Config) Validate() error {
	for _, raw := range c.MetricsURL {
		if err := validPlace(raw); err != nil {
			return err
		}
	}
	return c.Config.Validate("--consumer.")
}

// few is how many events are too few to judge a share of them.
const few = 1000

// atOnce is how many consumers are asked at the same moment.
const atOnce = 8

// Source polls the consumers.
type Source struct {
	places   []*place
	resolver *net.Resolver
	client   *http.Client
	now      func() time.Time

	mu      sync.Mutex
	history map[string]*history // of each address
}

// New makes the source. It never connects.
func New(c Config, now func() time.Time) (*Source, error) {
	if now == nil {
		now = time.Now
	}
	client, err := httpclient.New(c.Config, "--consumer.")
	if err != nil {
		return nil, err
	}
	s := &Source{resolver: net.DefaultResolver, client: client, now: now, history: map[string]*history{}}
	for _, raw := range c.MetricsURL {
		s.places = append(s.places, &place{raw: raw})
	}
	return s, nil
}

// Close ends idle connections.
func (s *Source) Close() { s.client.CloseIdleConnections() }

// Describe implements poll.Source: the source exports nothing of its own.
func (s *Source) Describe(chan<- *prometheus.Desc) {}

// Collect implements poll.Snapshot.
func (s *Snapshot) Collect(time.Time, chan<- prometheus.Metric) {}

// Problems implements poll.Snapshot.
func (s *Snapshot) Problems() []poll.Problem { return s.problems }

// Poll implements poll.Source.
func (s *Source) Poll(ctx context.Context) (poll.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	urls, lost := s.find(ctx)
	readings := make([]*reading, len(urls))
	errs := make([]error, len(urls))
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, u := range urls {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			readings[i], errs[i] = s.fetch(ctx, u)
		})
	}
	wg.Wait()

	now := s.now()
	snapshot := &Snapshot{Sources: len(urls) + len(lost), Unread: len(lost), Enough: few, Values: map[Key]Values{}, problems: lost}
	s.forget(urls, now)
	var counts []counted
	for i, u := range urls {
		h := s.history[u]
		if h == nil {
			h = &history{}
			s.history[u] = h
		}
		if errs[i] == nil && h.last != nil && h.last.start > readings[i].start+1 && readings[i].start > 0 {
			errs[i] = &poll.KindError{Kind: "ambiguous", Err: errors.New("several consumers answer at this address in turn: name each one's own, or all by dns+http://")}
			h.last = readings[i]
		}
		if errs[i] != nil {
			snapshot.Unread++
			snapshot.problems = append(snapshot.problems, poll.Problem{Kind: poll.Kind(errs[i]), Entity: "consumer " + httpclient.Redacted(u), Err: errs[i]})
			continue
		}
		h.see(now, readings[i])
		c := counted{who: httpclient.Redacted(u), reading: readings[i]}
		if start := readings[i].start; start > 0 {
			c.age = max(0, now.Sub(time.UnixMilli(int64(start*1000))))
		}
		c.total = readings[i].sum(nil)
		c.recent, c.window = h.inWindow(now)
		counts = append(counts, c)
	}
	if len(counts) == 0 {
		for _, p := range lost {
			errs = append(errs, fmt.Errorf("%s: %w", p.Entity, p.Err))
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		return nil, errNone
	}
	for _, k := range keys(counts) {
		snapshot.Values[k] = values(k, counts)
	}
	return snapshot, nil
}

var errNone = &poll.KindError{Kind: "missing", Err: errors.New("no consumer is found: see --consumer.metrics-url")}

// find is every consumer's address once, and the places that cannot be read.
func (s *Source) find(ctx context.Context) (urls []string, lost []poll.Problem) {
	for _, p := range s.places {
		found, err := p.find(ctx, s.resolver)
		if err != nil {
			lost = append(lost, poll.Problem{Kind: poll.Kind(err), Entity: "consumers of " + p.name(), Err: see("--consumer.metrics-url", err)})
		}
		for _, u := range found {
			if !slices.Contains(urls, u) {
				urls = append(urls, u)
			}
		}
	}
	return urls, lost
}

// forget drops what was counted at addresses that are gone for a window; one
// that a name lacks for a moment comes back with its history.
func (s *Source) forget(urls []string, now time.Time) {
	for u, h := range s.history {
		if n := len(h.past); !slices.Contains(urls, u) && (n == 0 || now.Sub(h.past[n-1].at) >= window) {
			delete(s.history, u)
		}
	}
}

func (s *Source) fetch(ctx context.Context, u string) (*reading, error) {
	resp, err := httpclient.Get(ctx, s.client, u, "text/plain; version=0.0.4")
	if err != nil {
		return nil, see("--consumer.metrics-url", err)
	}
	defer func() { _ = resp.Body.Close() }()
	families, err := parse(resp.Body)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", httpclient.Redacted(u), ctx.Err())
	case err != nil:
		return nil, &poll.KindError{Kind: "malformed", Err: fmt.Errorf("%s: %w", httpclient.Redacted(u), err)}
	case len(families) == 0:
		return nil, &poll.KindError{Kind: "missing", Err: fmt.Errorf("%s: it exports none of the metrics that a consumer should (%s, …)", httpclient.Redacted(u), handledTotal)}
	}
	return read(families), nil
}

// see names the setting where an address is wrong, or nobody answers there.
func see(flag string, err error) error {
	switch kind := poll.Kind(err); kind {
	case "unreachable", "failed", "malformed":
		return &poll.KindError{Kind: kind, Err: fmt.Errorf("%w: see %s", err, flag)}
	}
	return err
}

// counted is what one consumer counted.
type counted struct {
	who string
	*reading
	// total is since its start, age ago; 0 where it does not export that.
	total map[Key]*totals
	age   time.Duration
	// recent is within the window; nil where it has not been watched for so long.
	recent map[Key]*totals
	window time.Duration
}

// latest is what shares of events are judged by.
func (c counted) latest(k Key) *totals {
	if c.recent != nil {
		return c.recent[k]
	}
	return c.total[k]
}

func (c counted) ever(k Key) *totals { return c.total[k] }

func keys(counts []counted) []Key {
	all := map[Key]bool{}
	for _, c := range counts {
		for k := range c.keys {
			all[k] = true
		}
	}
	return slices.Collect(maps.Keys(all))
}

// values joins what the consumers counted of a group and topic.
func values(k Key, counts []counted) (v Values) {
	var of []counted // those that know the two
	for _, c := range counts {
		if c.keys[k] {
			of = append(of, c)
		}
	}
	over, ever := during(of, true), during(of, false)
	// counter adds a counter up. Where every consumer should have it from its
	// start, one without it is missing; else it is enough that one has it: a
	// member without partitions has none of theirs.
	counter := func(metric, label, split string, every bool) Figure {
		f, counts := Figure{From: fmt.Sprintf("%s of %s, %s", metric, consumers(len(of)), over)}, counted.latest
		if !every { // losses and the like are of interest however old they are
			f.From, counts = fmt.Sprintf("%s of %s, %s", metric, consumers(len(of)), ever), counted.ever
		}
		into, name := metric, metric
		if label != "" {
			into, name = metric+"/"+split, fmt.Sprintf("%s{%s=%q}", metric, label, split)
		}
		found := false
		for _, c := range of {
			if what := c.lacks(k, metric); what != "" {
				return Figure{Missing: missing(c.who, name, what)}
			}
			n, ok := counts(c, k).counters[into]
			if !ok && every {
				return Figure{Missing: missing(c.who, name, "")}
			}
			f.Value += n
			found = found || ok
		}
		if !found {
			return Figure{Missing: missing(of[0].who, name, "")}
		}
		return f
	}
	v.Processed = counter(handledTotal, "outcome", "processed", true)
	v.Duplicates = counter(handledTotal, "outcome", "duplicate", true)
	v.Elsewhere = counter(originTotal, "origin", "other_offset", true)
	v.LongHandled = Figure{Value: v.Processed.Value + v.Duplicates.Value, Missing: cmp.Or(v.Processed.Missing, v.Duplicates.Missing), From: v.Processed.From}
	v.LongDuplicates = v.Duplicates
	v.Retries = counter(retriesTotal, "", "", false)
	v.DeadLettered = counter(deadLetteredTotal, "", "", false)
	v.Lost = counter(lostTotal, "", "", false)
	v.EverDuplicate = counter(handledTotal, "outcome", "duplicate", false)
	v.latency(k, of, over)
	v.CommitLag = Figure{From: fmt.Sprintf("%s of %s, now", commitLagSeconds, consumers(len(of))), Missing: missing(of[0].who, commitLagSeconds, "")}
	for _, c := range of {
		if what := c.lacks(k, commitLagSeconds); what != "" {
			v.CommitLag = Figure{Missing: missing(c.who, commitLagSeconds, what)}
			break
		}
		if lag, ok := c.lag[k]; ok {
			v.CommitLag.Value, v.CommitLag.Missing = max(v.CommitLag.Value, lag), ""
		}
	}
	return v
}

func (v *Values) latency(k Key, of []counted, over string) {
	buckets := map[float64]float64{}
	var bounds []float64
	fail := func(what string) {
		v.P99, v.Timed = Figure{Missing: what}, Figure{Missing: what}
	}
	for i, c := range of {
		own := c.latest(k).buckets
		if what := c.lacks(k, durationSeconds); what != "" || len(own) == 0 {
			fail(missing(c.who, durationSeconds, what))
			return
		}
		sorted := slices.Sorted(maps.Keys(own))
		if i > 0 && !slices.Equal(sorted, bounds) {
			fail(durationSeconds + " has other buckets at " + c.who + " than at " + of[0].who + ": they cannot be joined")
			return
		}
		bounds = sorted
		for bound, n := range own {
			buckets[bound] += n
		}
	}
	v.Timed = Figure{Value: buckets[math.Inf(1)], From: fmt.Sprintf("%s of %s, %s", durationSeconds+"_bucket", consumers(len(of)), over)}
	v.P99 = Figure{From: v.Timed.From}
	v.P99.Value, v.P99Low, v.P99High = quantile(0.99, buckets)
	if math.IsNaN(v.P99.Value) {
		v.P99.Missing = "no event has been handled " + over
	}
}

// lacks is what is wrong with a metric of a group and topic.
func (r *reading) lacks(k Key, metric string) string {
	for _, one := range []Key{k, {Group: k.Group}, {}} {
		if what := r.wrong[one][metric]; what != "" {
			return what
		}
	}
	return ""
}

func missing(who, metric, what string) string {
	if what == "" {
		return fmt.Sprintf("%s exports no %s", who, metric)
	}
	return fmt.Sprintf("%s at %s %s", metric, who, what)
}

// during says in words what the consumers' counts cover: the newest, or all.
func during(of []counted, newest bool) string {
	var windows, starts []time.Duration
	unknown := false
	for _, c := range of {
		switch {
		case newest && c.recent != nil:
			windows = append(windows, c.window)
		case c.age > 0:
			starts = append(starts, c.age)
		default:
			unknown = true
		}
	}
	var parts []string
	if len(windows) > 0 {
		parts = append(parts, "in the last "+between(windows, ""))
	}
	if len(starts) > 0 {
		parts = append(parts, "since the consumer started "+between(starts, " ago"))
	}
	if unknown {
		parts = append(parts, "since the consumer started (it does not export "+startTime+")")
	}
	return strings.Join(parts, ", others ")
}

func between(d []time.Duration, after string) string {
	least, most := span.Text(slices.Min(d).Round(time.Second)), span.Text(slices.Max(d).Round(time.Second))
	if least == most {
		return most + after
	}
	return least + " to " + most + after
}

func consumers(n int) string {
	if n == 1 {
		return "1 consumer"
	}
	return fmt.Sprintf("%d consumers", n)
}
