// Package poll asks the exporter's sources, each on its own interval and never
// on a scrape: a second Prometheus costs the sources nothing, and a scrape
// answers in milliseconds while a source hangs.
//
// A poll yields an immutable Snapshot, which is swapped in whole. What could
// not be read is absent, never a number: a snapshot older than three intervals
// is withheld, and an entity that failed by itself has no series.
package poll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// StaleAfter is how many intervals a snapshot is served after the poll that
// made it.
const StaleAfter = 3

// Snapshot is what one poll saw. Nothing in it changes after Poll returned it,
// so that any number of scrapes read it at once.
type Snapshot interface {
	// Collect sends the samples as they are at now: ages grow between polls.
	Collect(now time.Time, ch chan<- prometheus.Metric)
	// Problems names what this poll could not read.
	Problems() []Problem
}

// Source is one subject that is polled.
type Source interface {
	// Describe sends the descriptions of the metrics that its snapshots have.
	Describe(ch chan<- *prometheus.Desc)
	// Poll reads the source once. An error means that nothing could be read
	// and the previous snapshot stays; an entity that failed by itself is a
	// Problem of the snapshot.
	Poll(ctx context.Context) (Snapshot, error)
}

// Problem is one entity that could not be read.
type Problem struct {
	// Kind is a short word for the counter's label: denied, leaderless,
	// loading, missing, malformed, timeout, unreachable, …
	Kind string
	// Entity names it for a person: "topic payments", "group ledger-writer".
	Entity string
	Err    error
}

// KindError is an error that knows its Problem kind.
type KindError struct {
	Kind string
	Err  error
}

func (e *KindError) Error() string { return e.Err.Error() }
func (e *KindError) Unwrap() error { return e.Err }

// Kind is the kind of an error: that of the first KindError in its chain,
// timeout for a deadline, else "failed".
func Kind(err error) string {
	var k *KindError
	switch {
	case errors.As(err, &k):
		return k.Kind
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "failed"
}

// Subject is what a source is about.
type Subject string

// The exporter's subjects.
const (
	Groups     Subject = "groups"
	Topics     Subject = "topics"
	Markers    Subject = "markers"
	Table      Subject = "table"
	Divergence Subject = "divergence"
	Retention  Subject = "retention"
	Consumers  Subject = "consumers"
	State      Subject = "state"
)

// ID tells a source from the others.
type ID struct {
	Subject Subject
	// Store is which of several databases it is about; empty where there is
	// one, or none.
	Store string
}

// String is the value of the label collector.
func (id ID) String() string {
	if id.Store == "" {
		return string(id.Subject)
	}
	return string(id.Subject) + ":" + id.Store
}

// Options of a Poller.
type Options struct {
	ID ID
	// Interval between the starts of two polls.
	Interval time.Duration
	// Timeout of one poll.
	Timeout time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Published is called with each new snapshot; nil: nobody waits for it.
	Published func(Snapshot)
	// Log gets one line for each new problem and one when it is over.
	Log *slog.Logger
}

// Poller polls one source.
type Poller struct {
	o      Options
	name   string // of the ID
	source Source

	tried, succeeded chan struct{} // closed when the first poll has ended, has succeeded

	mu          sync.RWMutex
	snapshot    Snapshot
	polled      int       // how many snapshots there have been
	started     time.Time // when the newest finished poll began
	ended       time.Time
	lastSuccess time.Time
	lastErr     error
	errors      map[string]float64 // by kind
	reported    map[string]string  // by entity: what was logged
}

// New makes a poller. It does not poll before Run or Once.
func New(source Source, o Options) *Poller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Poller{o: o, name: o.ID.String(), source: source, tried: make(chan struct{}), succeeded: make(chan struct{}), errors: map[string]float64{}, reported: map[string]string{}}
}

// Run polls until the context ends, first at once.
func (p *Poller) Run(ctx context.Context) {
	tick := time.NewTicker(p.o.Interval)
	defer tick.Stop()
	for {
		_ = p.Once(ctx) // it is logged and counted
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Once polls once.
func (p *Poller) Once(ctx context.Context) error {
	start := p.o.Now()
	pollCtx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	snapshot, err := p.poll(pollCtx)
	cancel()
	if ctx.Err() != nil {
		return ctx.Err() // shutting down is not a failure of the source
	}
	var problems []Problem
	if err != nil {
		problems = []Problem{{Kind: Kind(err), Entity: p.name, Err: err}}
	} else {
		problems = snapshot.Problems()
	}

	p.mu.Lock()
	if p.ended.IsZero() {
		defer close(p.tried)
	}
	if err == nil && p.lastSuccess.IsZero() {
		defer close(p.succeeded)
	}
	p.started, p.ended, p.lastErr = start, p.o.Now(), err
	if err == nil {
		// From the start of the poll: what it read is at least that old.
		p.snapshot, p.lastSuccess = snapshot, start
		p.polled++
	}
	for _, pr := range problems {
		p.errors[pr.Kind]++
	}
	p.mu.Unlock()
	p.report(problems)
	if err == nil && p.o.Published != nil {
		p.o.Published(snapshot)
	}
	return err
}

// poll turns a panic in a source into that source's error: one malformed
// answer must not end the exporter.
func (p *Poller) poll(ctx context.Context) (s Snapshot, err error) {
	defer func() {
		if r := recover(); r != nil {
			p.o.Log.Error("a poll panicked; it counts as an answer that could not be read", "collector", p.o.ID, "panic", r, "stack", string(debug.Stack()))
			s, err = nil, &KindError{Kind: "malformed", Err: fmt.Errorf("%s: the answer could not be read: %v", p.name, r)}
		}
	}()
	s, err = p.source.Poll(ctx)
	if err == nil && s == nil {
		err = fmt.Errorf("%s: the poll returned nothing", p.name)
	}
	return s, err
}

// report logs each problem once, when it appears or changes its kind, and once
// more when it is over.
func (p *Poller) report(problems []Problem) {
	seen := make(map[string]bool, len(problems))
	for _, pr := range problems {
		seen[pr.Entity] = true
		if p.reported[pr.Entity] == pr.Kind {
			continue
		}
		p.reported[pr.Entity] = pr.Kind
		p.o.Log.Warn("cannot read", "collector", p.name, "entity", pr.Entity, "kind", pr.Kind, "err", pr.Err)
	}
	for entity := range p.reported {
		if !seen[entity] {
			delete(p.reported, entity)
			p.o.Log.Info("can read again", "collector", p.name, "entity", entity)
		}
	}
}

// Status is what a poller knows of its source.
type Status struct {
	ID          ID
	Interval    time.Duration
	LastSuccess time.Time // zero: never
	// Err is why the newest poll failed; nil where it succeeded or none ended.
	Err      error
	Problems []Problem
	Stale    bool // nothing, or nothing recent enough, to serve
}

// Status tells how the source does at now.
func (p *Poller) Status() Status {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := Status{ID: p.o.ID, Interval: p.o.Interval, LastSuccess: p.lastSuccess, Err: p.lastErr, Stale: p.stale(p.o.Now())}
	if !s.Stale {
		s.Problems = p.snapshot.Problems()
	}
	return s
}

// Tried is closed once a poll has ended, well or not.
func (p *Poller) Tried() <-chan struct{} { return p.tried }

// Succeeded is closed once a poll has succeeded.
func (p *Poller) Succeeded() <-chan struct{} { return p.succeeded }

func (p *Poller) stale(now time.Time) bool {
	return p.lastSuccess.IsZero() || now.Sub(p.lastSuccess) > StaleAfter*p.o.Interval
}

// Latest is the newest snapshot, and nil where there is none or it is stale.
func (p *Poller) Latest() Snapshot {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.stale(p.o.Now()) {
		return nil
	}
	return p.snapshot
}
