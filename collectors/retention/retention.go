// Package retention tells what only markers and broker together can tell: how
// many records a group would apply twice if it were reset to earliest now, and
// by how much markers outlive the records they guard against.
//
// It reads the newest snapshots of the other sources and asks the broker for a
// few offsets where they matter:
//
//	retention.go  a poll: what belongs together, what must be asked
//	offsets.go    exact, where the table has topic, partition and offset
//	times.go      by record timestamps, where it has not
//	history.go    what earlier snapshots tell: commits, topics made anew
//	margins.go    the five retention numbers and what would mend them
//	snapshot.go   what a poll yields, as data and as metrics
//
// What cannot be known is absent, never 0: records that a group has passed
// before the exporter looked, and of which there is no marker, were either
// never handled or have lost their markers. Nobody can tell which.
package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
)

// OffsetLister finds, for each partition, the first record whose timestamp is
// at or after a time; kafka.Client is one.
type OffsetLister interface {
	ListOffsets(ctx context.Context, at map[string]map[int32]time.Time) (map[string]map[int32]kafka.ListedOffset, error)
}

// Options of a Source. The functions return the newest snapshot, nil where
// there is none to trust.
type Options struct {
	Markers []func() *postgres.Markers // one for each store
	Topics  func() *kafka.Topics
	Groups  func() *kafka.Groups
	Offsets OffsetLister

	// ByTopic leaves out the partition label and sums
	// (--kafka.granularity=topic).
	ByTopic bool
	// ClockMargin is how far the clocks of producers, brokers and database may
	// differ where records are compared with markers by time. 0: a minute.
	ClockMargin time.Duration
	// Factor is how many times the broker's retention the markers' should be.
	// 0: 1.1, as the runbook has it.
	Factor float64
	// Now is the clock of the other sources; nil means time.Now.
	Now func() time.Time
}

// Source is a poll.Source; its snapshots are *Snapshot.
type Source struct {
	o       Options
	history history
	times   map[timesKey]*times
}

// New makes a source.
func New(o Options) *Source {
	o.ClockMargin = cmp.Or(o.ClockMargin, time.Minute)
	o.Factor = cmp.Or(o.Factor, 1.1)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Source{o: o, history: newHistory(), times: map[timesKey]*times{}}
}

// Describe implements poll.Source.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	if s.o.ByTopic {
		ch <- byTopicDesc
	} else {
		ch <- byPartitionDesc
	}
}

// Poll implements poll.Source.
func (s *Source) Poll(ctx context.Context) (poll.Snapshot, error) {
	now := s.o.Now()
	topics, groups := s.o.Topics(), s.o.Groups()
	var stores []*postgres.Markers
	for _, markers := range s.o.Markers {
		if m := markers(); m != nil {
			stores = append(stores, m)
		}
	}
	if topics == nil || groups == nil || len(stores) == 0 {
		return nil, &poll.KindError{Kind: "waiting", Err: errors.New("markers, topics and groups are compared once all three have been read: see their own collectors")}
	}
	s.history.see(now, topics, groups, stores)

	out := &Snapshot{At: now, byTopic: s.o.ByTopic}
	byName := make(map[string]*kafka.Group, len(groups.Groups))
	for _, g := range groups.Groups {
		byName[g.Name] = g
	}
	var subjects []*subject
	alive := map[timesKey]bool{}
	for _, m := range stores {
		for i := range m.Series {
			marked := &m.Series[i]
			group := byName[marked.Group]
			if m.Table.Has.Group == "" && len(groups.Groups) == 1 {
				group = groups.Groups[0] // the table is all its own
			}
			if group != nil && group.Readable {
				subjects = append(subjects, s.subjects(now, m, marked, group, topics, alive)...)
			}
		}
	}
	for key := range s.times {
		if !alive[key] {
			delete(s.times, key)
		}
	}

	q := questions{}
	for _, one := range subjects {
		one.method.ask(one, &q)
	}
	out.problems = q.answer(ctx, s.o.Offsets)
	for _, one := range subjects {
		one.method.judge(one, &q)
	}
	for _, one := range subjects {
		out.Series = append(out.Series, one.series)
	}
	slices.SortFunc(out.Series, func(a, b *Series) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic))
	})
	return out, nil
}

// subject is one group on one topic, seen from one store.
type subject struct {
	markers *postgres.Markers
	marked  *postgres.Series
	method  method
	series  *Series
	parts   []*part
}

// part is a partition of a subject that the group has a commit on.
type part struct {
	*Partition
	start, end kafka.Known[int64]
	oldest     kafka.Known[time.Time]
	// beyond: the commit lies past the log's end.
	beyond bool
}

// method finds the unprotected records of a subject.
type method interface {
	// ask puts the questions whose answers judge needs.
	ask(*subject, *questions)
	judge(*subject, *questions)
}

// subjects pairs a series of markers with the topics that the group has
// commits on.
func (s *Source) subjects(now time.Time, m *postgres.Markers, marked *postgres.Series, group *kafka.Group, topics *kafka.Topics, alive map[timesKey]bool) []*subject {
	exact := m.Table.Has.Topic != "" && m.Table.Has.Partition != "" && m.Table.Has.Offset != ""
	var together *times
	if !exact {
		key := timesKey{m.Database, marked.Group, marked.Topic}
		alive[key] = true
		if s.times[key] == nil {
			s.times[key] = newTimes(s.o.ClockMargin, m.Table.Has.Topic != "")
		}
		together = s.times[key]
		together.see(now, m, marked, group)
	}
	var out []*subject
	for i := range group.Topics {
		committed := &group.Topics[i]
		if marked.Topic != "" && committed.Topic != marked.Topic {
			continue
		}
		topic := topics.Topics[committed.Topic]
		one := &subject{markers: m, marked: marked, series: &Series{at: now, Database: m.Database, Group: group.Name, Topic: committed.Topic}}
		one.series.Compare(numbers(now, m, marked, topic), s.o.Factor)
		for _, p := range committed.Partitions {
			one.add(p, topic)
		}
		if one.series.Exact = exact; exact {
			one.method = &byOffset{history: &s.history}
		} else {
			one.method = together
			together.subjects = append(together.subjects, one)
		}
		out = append(out, one)
	}
	return out
}

func (s *subject) add(p kafka.GroupPartition, topic *kafka.Topic) {
	one := &part{Partition: &Partition{Partition: p.Partition, Committed: p.Committed}}
	if topic != nil && int(p.Partition) < len(topic.Partitions) {
		log := topic.Partitions[p.Partition]
		one.start, one.end, one.oldest = log.Start, log.End, log.Oldest
		one.LogStart = log.Start
		// Judged by Kafka's own poll, which read both at once.
		one.beyond = p.OutOfRange.OK && p.OutOfRange.Value && p.Committed > log.Start.Value
	}
	s.series.Partitions = append(s.series.Partitions, one.Partition)
	s.parts = append(s.parts, one)
}

// settled judges what needs no markers: nothing of the group's on the broker,
// or nothing known. It says whether that was all.
func (s *subject) settled(p *part) bool {
	switch {
	case !p.start.OK || !p.end.OK:
		p.Why = "the partition's offsets could not be read"
	case p.beyond:
		p.Why = fmt.Sprintf("the committed offset %d lies beyond the log's end %d: the topic was made anew, or has lost records", p.Committed, p.end.Value)
	case p.Committed <= p.start.Value:
		p.Unprotected = known(int64(0))
	case !s.markers.Ready:
		p.Why = "the markers are still being counted"
	default:
		return false
	}
	return true
}

// missed says why a zero could be wrong: markers have vanished that the ledger
// has not found yet.
func (s *subject) missed() bool {
	return slices.ContainsFunc(s.markers.Inexact, func(r postgres.Reason) bool {
		return r == postgres.ReasonUnexplained || r == postgres.ReasonCatchingUp
	})
}

// conclude sets the value from what was counted.
func (s *subject) conclude(p *part, count int64) {
	switch {
	case count > 0:
		p.Unprotected = known(count)
	case p.Unseen > 0:
		p.Why = fmt.Sprintf("of %d offsets from %d on no marker was ever seen: never handled, or pruned before oncewatch looked", p.Unseen, p.LogStart.Value)
	case s.missed():
		p.Why = "markers have vanished that are still being looked for"
	default:
		p.Unprotected = known(int64(0))
	}
}

func known[T any](v T) kafka.Known[T] { return kafka.Known[T]{Value: v, OK: true} }
