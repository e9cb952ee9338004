package checklist

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"oncewatch/alerts"
	"oncewatch/collectors/consumer"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/logsample"
	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/retention"
)

// Facts is what the sources know at one moment. A nil snapshot could not be
// read.
type Facts struct {
	Now    time.Time
	Topics *kafka.Topics
	Groups *kafka.Groups
	Stores []Store
	// Retention compares markers and broker; nil where it could not.
	Retention *retention.Snapshot
	// Consumers is what the consumers say of themselves; ConsumersNamed says
	// whether any was named in the configuration.
	Consumers      *consumer.Snapshot
	ConsumersNamed bool
	// Logs is a sample of the consumers' log; nil where none was given.
	Logs    *logsample.Sample
	Sources []poll.Status
	// GroupFilter and TopicFilter are the configured expressions.
	GroupFilter, TopicFilter Filter
	// Thresholds are the alert rules' own.
	Thresholds alerts.Thresholds
}

// Filter is what lets names in and keeps them out; empty: nothing does.
type Filter struct{ Include, Exclude string }

// String is the rest of the flag that is set.
func (f Filter) String() string {
	if f.Exclude == "" {
		return "=" + f.Include
	}
	return "-exclude=" + f.Exclude
}

// Store is one marker table.
type Store struct {
	// Name is the label database, as far as it is known.
	Name string
	// Source tells its sources from those of other stores.
	Source     string
	Markers    *postgres.Markers
	Health     *postgres.TableHealth
	Divergence *postgres.Divergence
	// Before are the commits that were read in full before the markers were.
	Before *kafka.Groups
	// Effect is the configured effect table; empty where there is none.
	Effect string
}

// table is the marker table; one without a schema of its own where it is not
// known.
func (s Store) table() *postgres.Table {
	switch {
	case s.Markers != nil && s.Markers.Table != nil:
		return s.Markers.Table
	case s.Health != nil && s.Health.Table != nil:
		return s.Health.Table
	}
	return &postgres.Table{Schema: "public", Name: s.Name}
}

// subject is one consumer group on one topic, with what is known of it.
type subject struct {
	facts Facts
	store Store

	group, topic string
	markers      *postgres.Series  // nil: none
	commits      *kafka.GroupTopic // nil: not known
	log          *kafka.Topic      // nil: not known
	consumed     *consumer.Values  // nil: not known
	retention    *retention.Series // nil: not known
}

// subjects are the group × topic pairs that the store's markers are about. A
// table without a topic column is joined with the group's commits.
func (f Facts) subjects(s Store) []subject {
	var out []subject
	add := func(series *postgres.Series, topic string) {
		one := subject{facts: f, store: s, group: series.Group, topic: topic, markers: series}
		if f.Groups != nil {
			if g := f.Groups.Group(series.Group); g != nil {
				one.commits = g.Topic(topic)
			}
		}
		if f.Topics != nil {
			one.log = f.Topics.Topics[topic]
		}
		if f.Consumers != nil {
			if v, ok := f.Consumers.Values[consumer.Key{Group: series.Group, Topic: topic}]; ok {
				one.consumed = &v
			}
		}
		if f.Retention != nil {
			one.retention = f.Retention.Find(s.Markers.Database, series.Group, topic)
		}
		out = append(out, one)
	}
	for i := range s.Markers.Series {
		series := &s.Markers.Series[i]
		if series.Topic != "" {
			add(series, series.Topic)
			continue
		}
		joined := false
		if f.Groups != nil {
			if g := f.Groups.Group(series.Group); g != nil {
				for _, t := range g.Topics {
					add(series, t.Topic)
					joined = true
				}
			}
		}
		if !joined {
			add(series, "")
		}
	}
	slices.SortStableFunc(out, func(a, b subject) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.topic, b.topic))
	})
	return out
}

// why says why a source has nothing of an entity, for a remedy. An empty
// entity is all of it.
func (f Facts) why(id poll.ID, entity string) string {
	for _, s := range f.Sources {
		if s.ID != id {
			continue
		}
		if s.Err != nil {
			return fmt.Sprintf("See to the source %s: %v", id, s.Err)
		}
		for _, p := range s.Problems {
			if entity != "" && p.Entity == entity && p.Err != nil {
				return fmt.Sprintf("See to %s: %v", entity, p.Err)
			}
		}
		if s.LastSuccess.IsZero() {
			return fmt.Sprintf("Wait for the source %s: it has not answered yet.", id)
		}
	}
	return fmt.Sprintf("Look again after the next poll of the source %s.", id)
}

// of is the store's source of a subject.
func (s Store) of(subject poll.Subject) poll.ID { return poll.ID{Subject: subject, Store: s.Source} }

// unmatched are the filters that let nothing in: most likely a slip of the
// pen, and then nothing was audited.
func (f Facts) unmatched() (unread []Unread) {
	if f.GroupFilter != (Filter{}) && f.Groups != nil && len(f.Groups.Groups) == 0 {
		unread = append(unread, Unread{Source: "groups", Error: fmt.Sprintf("--kafka.group%s lets no consumer group in (expressions are anchored at both ends)", f.GroupFilter)})
	}
	if f.TopicFilter != (Filter{}) && f.Topics != nil && len(f.Topics.Topics) == 0 {
		unread = append(unread, Unread{Source: "topics", Error: fmt.Sprintf("--kafka.topic%s lets no topic in that the groups consume (expressions are anchored at both ends)", f.TopicFilter)})
	}
	return unread
}

// LeftOut says in sentences what was not judged, and why.
func LeftOut(f Facts) []string {
	var notes []string
	if f.Groups == nil {
		return notes
	}
	if n := f.Groups.LeftOut; n > 0 {
		notes = append(notes, fmt.Sprintf("%s consumer groups are left out by --kafka.max-groups.", number.Grouped(int64(n))))
	}
	marked := map[string]bool{}
	for _, s := range f.Stores {
		if s.Markers == nil {
			return notes
		}
		for _, series := range s.Markers.Series {
			marked[series.Group] = true
		}
	}
	unmarked := 0
	for _, g := range f.Groups.Groups {
		if !marked[g.Name] {
			unmarked++
		}
	}
	if unmarked > 0 {
		notes = append(notes, fmt.Sprintf("%s consumer groups have commits and no markers here; they are exported, not judged.", number.Grouped(int64(unmarked))))
	}
	return notes
}
