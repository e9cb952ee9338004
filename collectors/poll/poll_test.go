package poll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"oncewatch/collectors/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ageDesc = prometheus.NewDesc("age_seconds", "An age.", []string{"who"}, nil)

type ages struct {
	at       time.Time
	of       map[string]time.Duration
	problems []poll.Problem
}

func (a ages) Collect(now time.Time, ch chan<- prometheus.Metric) {
	for who, age := range a.of {
		poll.Age(ch, ageDesc, (age + now.Sub(a.at)).Seconds(), who)
	}
}

func (a ages) Problems() []poll.Problem { return a.problems }

type source func(context.Context) (poll.Snapshot, error)

func (source) Describe(ch chan<- *prometheus.Desc) { ch <- ageDesc }

func (s source) Poll(ctx context.Context) (poll.Snapshot, error) { return s(ctx) }

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func page(t *testing.T, set poll.Set, names ...string) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(set); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			for _, n := range names {
				if n == f.GetName() {
					fmt.Fprintf(&b, "%s{%s} %v\n", n, strings.Join(labels, ","), m.GetGauge().GetValue()+m.GetCounter().GetValue())
				}
			}
		}
	}
	return b.String()
}

// Ages grow between polls. A snapshot is withheld after
// three intervals without success, and served again after the next one.
func TestSnapshotAgesAndIsWithheld(t *testing.T) {
	c := newClock()
	var failure error
	p := poll.New(source(func(context.Context) (poll.Snapshot, error) {
		return ages{at: c.Now(), of: map[string]time.Duration{"a": 10 * time.Second}}, failure
	}), poll.Options{ID: poll.ID{Subject: "ages"}, Interval: 15 * time.Second, Timeout: time.Second, Now: c.Now})
	set := poll.Set{p}

	if got := page(t, set, "age_seconds", "oncewatch_collector_success", "oncewatch_collector_last_success_timestamp_seconds"); got !=
		"oncewatch_collector_last_success_timestamp_seconds{collector=ages} 0\noncewatch_collector_success{collector=ages} 0\n" {
		t.Errorf("before the first poll:\n%s", got)
	}
	if set.Ready() {
		t.Error("ready before the first success")
	}
	if err := p.Once(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !set.Ready() {
		t.Error("not ready after the first success")
	}
	failure = errors.New("gone")
	for _, step := range []struct {
		after time.Duration
		want  string
	}{
		{0, "age_seconds{who=a} 10\n"},
		{7 * time.Second, "age_seconds{who=a} 17\n"},
		{38 * time.Second, "age_seconds{who=a} 55\n"},
		{time.Millisecond, ""},
	} {
		c.Advance(step.after)
		if step.after > time.Second {
			if err := p.Once(context.Background()); !errors.Is(err, failure) {
				t.Fatalf("error %v", err)
			}
		}
		if got := page(t, set, "age_seconds"); got != step.want {
			t.Errorf("after %v more: %q, want %q", step.after, got, step.want)
		}
	}
	if p.Latest() != nil {
		t.Error("a stale snapshot is handed out")
	}
	if st := p.Status(); !st.Stale || !errors.Is(st.Err, failure) {
		t.Errorf("status %+v", st)
	}
	if got := page(t, set, "oncewatch_errors_total", "oncewatch_collector_success"); got !=
		"oncewatch_collector_success{collector=ages} 0\noncewatch_errors_total{collector=ages,kind=failed} 2\n" {
		t.Errorf("errors:\n%s", got)
	}
	failure = nil
	if err := p.Once(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := page(t, set, "age_seconds"); got != "age_seconds{who=a} 10\n" {
		t.Errorf("after the source came back: %q", got)
	}
}

// A source that hangs costs neither the scrape nor the other collectors.
func TestHungSourceDoesNotHoldTheScrape(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	hung := poll.New(source(func(context.Context) (poll.Snapshot, error) {
		close(entered)
		<-release
		return nil, context.DeadlineExceeded
	}), poll.Options{ID: poll.ID{Subject: "hung"}, Interval: time.Hour, Timeout: time.Hour})
	c := newClock()
	fine := poll.New(source(func(context.Context) (poll.Snapshot, error) {
		return ages{at: c.Now(), of: map[string]time.Duration{"b": 0}}, nil
	}), poll.Options{ID: poll.ID{Subject: "fine"}, Interval: time.Hour, Timeout: time.Hour, Now: c.Now})
	done := make(chan error)
	go func() { done <- hung.Once(context.Background()) }()
	<-entered
	if err := fine.Once(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := page(t, poll.Set{hung, fine}, "age_seconds"); got != "age_seconds{who=b} 0\n" {
		t.Errorf("page: %q", got)
	}
	close(release)
	if err := <-done; poll.Kind(err) != "timeout" {
		t.Errorf("kind of %v is %s", err, poll.Kind(err))
	}
}

// One line for each new problem and one when it is over, not one a poll.
func TestProblemsAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	problems := []poll.Problem{{Kind: "denied", Entity: "topic t", Err: errors.New("TOPIC_AUTHORIZATION_FAILED")}}
	c := newClock()
	p := poll.New(source(func(context.Context) (poll.Snapshot, error) {
		return ages{at: c.Now(), problems: problems}, nil
	}), poll.Options{ID: poll.ID{Subject: "x"}, Interval: time.Second, Timeout: time.Second, Now: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 5 {
		if err := p.Once(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	problems = nil
	for range 2 {
		if err := p.Once(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("%d lines:\n%s", got, log.String())
	}
	if got := page(t, poll.Set{p}, "oncewatch_errors_total"); got != "oncewatch_errors_total{collector=x,kind=denied} 5\n" {
		t.Errorf("errors: %s", got)
	}
}

func TestPanicIsTheSourcesError(t *testing.T) {
	p := poll.New(source(func(context.Context) (poll.Snapshot, error) { panic("index out of range") }),
		poll.Options{ID: poll.ID{Subject: "x"}, Interval: time.Second, Timeout: time.Second})
	if err := p.Once(context.Background()); poll.Kind(err) != "malformed" {
		t.Errorf("error %v", err)
	}
}

func TestShutdownIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	p := poll.New(source(func(ctx context.Context) (poll.Snapshot, error) {
		cancel()
		return nil, ctx.Err()
	}), poll.Options{ID: poll.ID{Subject: "x"}, Interval: time.Second, Timeout: time.Second})
	p.Run(ctx) // ends
	if got := testutil.CollectAndCount(poll.Set{p}, "oncewatch_errors_total"); got != 0 {
		t.Errorf("%d error series", got)
	}
}

// No NaN. Names that are not UTF-8 cost nothing else.
func TestSamplesFromOutsideAreMended(t *testing.T) {
	c := newClock()
	p := poll.New(source(func(context.Context) (poll.Snapshot, error) { return hostile{}, nil }),
		poll.Options{ID: poll.ID{Subject: "x"}, Interval: time.Second, Timeout: time.Second, Now: c.Now})
	if err := p.Once(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := page(t, poll.Set{p}, "age_seconds"); got != "age_seconds{who=a\uFFFD\n\"<b>} 1\n" {
		t.Errorf("page: %q", got)
	}
}

type hostile struct{}

func (hostile) Problems() []poll.Problem { return nil }
func (hostile) Collect(_ time.Time, ch chan<- prometheus.Metric) {
	poll.Gauge(ch, ageDesc, 1, "a\xff\n\"<b>")
	poll.Gauge(ch, ageDesc, math.NaN(), "c")
}

// Who waits for a poll is told: that one has ended, that one has succeeded, and
// of each new snapshot, but not of a failure.
func TestWhoWaitsIsTold(t *testing.T) {
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	failure := errors.New("away")
	var published []poll.Snapshot
	c := newClock()
	p := poll.New(source(func(context.Context) (poll.Snapshot, error) {
		return ages{problems: []poll.Problem{{Kind: "denied", Entity: "a topic", Err: errors.New("no")}}}, failure
	}), poll.Options{Now: c.Now, Interval: time.Minute, Timeout: time.Second, Published: func(s poll.Snapshot) { published = append(published, s) }})
	silent := poll.New(source(func(context.Context) (poll.Snapshot, error) { return ages{}, nil }), poll.Options{Interval: time.Minute, Timeout: time.Second})
	set := poll.Set{p, silent}
	if s := p.Status(); closed(p.Tried()) || closed(p.Succeeded()) || !s.Stale || len(s.Problems) != 0 {
		t.Errorf("before the first poll: %+v", s)
	}
	_ = p.Once(t.Context())
	if !closed(p.Tried()) || closed(p.Succeeded()) || len(published) != 0 {
		t.Errorf("after a failure: tried %v, succeeded %v, %d published", closed(p.Tried()), closed(p.Succeeded()), len(published))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := set.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("waited without a success: %v", err)
	}
	failure = nil
	for range 2 {
		_ = p.Once(t.Context())
	}
	if !closed(p.Succeeded()) || len(published) != 2 {
		t.Errorf("after two successes: succeeded %v, %d published", closed(p.Succeeded()), len(published))
	}
	if s := p.Status(); s.Stale || len(s.Problems) != 1 {
		t.Errorf("its problems are not told: %+v", s)
	}
	c.Advance(poll.StaleAfter*time.Minute + 1)
	if s := p.Status(); !s.Stale || len(s.Problems) != 0 {
		t.Errorf("problems of a stale snapshot are told: %+v", s)
	}
	if err := silent.Once(t.Context()); err != nil {
		t.Error(err)
	}
	if err := set.Wait(t.Context()); err != nil || !set.Ready() {
		t.Errorf("all have succeeded: %v, ready %v", err, set.Ready())
	}
}

type of struct{ desc *prometheus.Desc }

func (s of) Describe(ch chan<- *prometheus.Desc)         { ch <- s.desc }
func (s of) Poll(context.Context) (poll.Snapshot, error) { return ages{}, nil }

// Pollers that share a metric are one unit, wherever they stand in the set; and
// what a poller tells of itself is in seconds.
func TestUnitsShareDescriptions(t *testing.T) {
	other := prometheus.NewDesc("other", "Another.", nil, nil)
	c := newClock()
	o := poll.Options{Interval: time.Minute, Timeout: time.Second, Now: c.Now}
	a, b, again := poll.New(of{ageDesc}, o), poll.New(of{other}, o), poll.New(of{ageDesc}, o)
	units := poll.Set{a, b, again}.Units()
	if len(units) != 2 || len(units[0]) != 2 || units[0][0] != a || units[0][1] != again || len(units[1]) != 1 || units[1][0] != b {
		t.Errorf("units: %v", units)
	}
	if err := b.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := page(t, poll.Set{b}, "oncewatch_collector_last_success_timestamp_seconds"), "oncewatch_collector_last_success_timestamp_seconds{collector=} 1000\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
