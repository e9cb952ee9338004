// Package collectors wires the exporter: it turns the configuration into
// sources, polls them, and hands the newest snapshots to the page, the audit
// and Prometheus.
package collectors

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"oncewatch/alerts"
	"oncewatch/collectors/checklist"
	"oncewatch/collectors/consumer"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/retention"
)

// Exporter is the sources and their pollers.
type Exporter struct {
	Pollers poll.Set

	config         Config
	thresholds     alerts.Thresholds
	now            func() time.Time
	kafka          *kafka.Client
	closeConsumers func()
	stores         []store
	topics         *poll.Poller
	compared       *poll.Poller
	groups         *poll.Poller
	commits        readCommits
	consumed       *poll.Poller // nil where no consumer is named
	keeping        *keeping     // nil where nothing is kept
}

// New makes the exporter. It connects to nothing: a source that is away is a
// failed poll.
func New(c Config, log *slog.Logger, now func() time.Time) (_ *Exporter, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	e := &Exporter{config: c, now: now}
	if e.thresholds, err = c.Thresholds.Load(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	add := func(id poll.ID, s poll.Source) *poll.Poller {
		p := poll.New(s, poll.Options{ID: id, Interval: c.Poll.Interval, Timeout: c.Poll.Timeout, Now: now, Log: log, Published: e.published})
		e.Pollers = append(e.Pollers, p)
		return p
	}
	// Offsets are read before markers: a commit ahead of every marker then is
	// no matter of the order in which the two were read.
	if e.kafka, err = kafka.New(c.Kafka, log, now); err != nil {
		return nil, err
	}
	e.groups = add(poll.ID{Subject: poll.Groups}, e.kafka.Groups())
	e.topics = add(poll.ID{Subject: poll.Topics}, e.kafka.Topics())
	watched, err := c.Kafka.Watched()
	if err != nil {
		return nil, err
	}
	stores := c.stores()
	names := &labels{owner: map[string]int{}}
	for i, sc := range stores {
		title := sc.Database
		if title == "" || names.claim(title, i) != i {
			title = fmt.Sprint(i + 1)
		}
		ps, err := postgres.New(sc, log, now)
		if err != nil {
			return nil, err
		}
		ps.Watch(watched)
		s := store{Store: ps}
		if len(stores) > 1 {
			s.title = title
		}
		own := func(s poll.Source) poll.Source { return ownSeries{s, names, i, ps.Config()} }
		s.markers = add(poll.ID{Subject: poll.Markers, Store: s.title}, own(ps.Markers()))
		s.table = add(poll.ID{Subject: poll.Table, Store: s.title}, own(ps.TableHealth()))
		if sc.Effect.Table != "" {
			s.divergence = add(poll.ID{Subject: poll.Divergence, Store: s.title}, own(ps.Divergence()))
		}
		e.stores = append(e.stores, s)
	}
	markers := make([]func() *postgres.Markers, len(e.stores))
	for i := range e.stores {
		markers[i] = newest[*postgres.Markers](e.stores[i].markers)
	}
	compared := retention.New(retention.Options{
		Markers: markers, Topics: newest[*kafka.Topics](e.topics), Groups: newest[*kafka.Groups](e.groups),
		Offsets: e.kafka, ByTopic: c.Kafka.Granularity == kafka.ByTopic, Factor: e.thresholds.RetentionRatioWarning, Now: now,
	})
	e.compared = add(poll.ID{Subject: poll.Retention}, &afterOthers{e, compared})
	var consumers interface {
		poll.Source
		Close()
	}
	switch {
	case c.Prometheus.URL != "":
		consumers, err = consumer.NewStored(c.Prometheus, e.thresholds)
	case len(c.Consumer.MetricsURL) > 0:
		consumers, err = consumer.New(c.Consumer, now)
	}
	if err != nil {
		return nil, err
	}
	if consumers != nil {
		e.closeConsumers = consumers.Close
		e.consumed = add(poll.ID{Subject: poll.Consumers}, consumers)
	}
	if c.State.Path != "" {
		if e.keeping = e.newKeeping(c.State.Path, compared, log); e.keeping != nil {
			e.keeping.restore(log)
			p := poll.New(e.keeping, poll.Options{ID: poll.ID{Subject: poll.State}, Interval: max(saveEvery, c.Poll.Interval), Timeout: saveEvery, Now: now, Log: log})
			e.Pollers = append(e.Pollers, p)
		}
	}
	return e, nil
}

// published hands on what one source tells for another: the groups and topics
// of the markers are watched on the broker too.
func (e *Exporter) published(s poll.Snapshot) {
	if g, ok := s.(*kafka.Groups); ok {
		e.commits.add(g, e.now())
	}
	if _, ok := s.(*postgres.Markers); !ok {
		return
	}
	groups, topics := map[string]bool{}, map[string]bool{}
	for _, st := range e.stores {
		if m, ok := latest[*postgres.Markers](st.markers); ok {
			for _, series := range m.Series {
				groups[series.Group] = true
				topics[series.Topic] = true
			}
		}
	}
	delete(topics, "") // a table without such a column
	delete(groups, "")
	e.kafka.Watch(slices.Collect(maps.Keys(groups)), slices.Collect(maps.Keys(topics)))
}

// Close ends the sources' connections.
func (e *Exporter) Close() {
	for _, s := range e.stores {
		s.Close()
	}
	if e.kafka != nil {
		e.kafka.Close()
	}
	if e.keeping != nil {
		_ = e.keeping.dir.Close()
	}
	if e.closeConsumers != nil {
		e.closeConsumers()
	}
}

// Once polls every source once, those that others build on first.
func (e *Exporter) Once(ctx context.Context) {
	for _, p := range e.Pollers {
		_ = p.Once(ctx) // it is logged, counted, and in Facts
	}
}

// Facts is what is known now, for the checklist.
func (e *Exporter) Facts() checklist.Facts {
	f := checklist.Facts{Now: e.now(), ConsumersNamed: e.consumed != nil, Thresholds: e.thresholds,
		GroupFilter: checklist.Filter{Include: e.config.Kafka.Group, Exclude: e.config.Kafka.GroupExclude},
		TopicFilter: checklist.Filter{Include: e.config.Kafka.Topic, Exclude: e.config.Kafka.TopicExclude}}
	f.Topics, _ = latest[*kafka.Topics](e.topics)
	f.Groups, _ = latest[*kafka.Groups](e.groups)
	f.Retention, _ = latest[*retention.Snapshot](e.compared)
	f.Consumers, _ = latest[*consumer.Snapshot](e.consumed)
	for _, s := range e.stores {
		one := checklist.Store{Source: s.title, Effect: s.Config().Effect.Table}
		one.Name = cmp.Or(s.Config().Database, s.Config().Table)
		if s.title != "" && s.Config().Database == "" { // the tables of several may be named alike
			one.Name = fmt.Sprintf("store %s (%s)", s.title, one.Name)
		}
		// A poll's start is before what it read, and this one's before the
		// snapshot that is taken next.
		began := s.markers.Status().LastSuccess
		one.Markers, _ = latest[*postgres.Markers](s.markers)
		one.Before = e.commits.before(began)
		one.Health, _ = latest[*postgres.TableHealth](s.table)
		one.Divergence, _ = latest[*postgres.Divergence](s.divergence)
		f.Stores = append(f.Stores, one)
	}
	for _, p := range e.Pollers {
		f.Sources = append(f.Sources, p.Status())
	}
	return f
}

// newest is latest for later; nil where there is none.
func newest[T poll.Snapshot](p *poll.Poller) func() T {
	return func() T {
		s, _ := latest[T](p)
		return s
	}
}

// afterOthers is the source that compares what the others have read: its first
// poll waits until the broker and every database have answered, or failed to.
type afterOthers struct {
	e *Exporter
	*retention.Source
}

// Poll implements poll.Source. Where the time is over first, the source says
// what it lacks.
func (a *afterOthers) Poll(ctx context.Context) (poll.Snapshot, error) {
	others := []*poll.Poller{a.e.groups, a.e.topics}
	for _, s := range a.e.stores {
		others = append(others, s.markers)
	}
	for _, p := range others {
		select {
		case <-p.Tried():
		case <-ctx.Done():
		}
	}
	return a.Source.Poll(ctx)
}

func latest[T poll.Snapshot](p *poll.Poller) (none T, ok bool) {
	if p == nil {
		return none, false
	}
	s, ok := p.Latest().(T)
	return s, ok
}
