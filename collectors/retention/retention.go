// Package retention tells what only markers and broker together can tell: how
// many records a group would apply twice if it were reset to earliest now, and
// by how much markers outlive the records they guard against.
//
// It reads the newest snapshots of the other sources and asks the broker for a
// few offsets where they matter:
//
//	retention.go  a poll: what belongs together, what must be asked
//	offsets.go    by offset, where the table has topic, partition and offset
//	times.go      by record timestamps, where it has not
//	watch.go      what the groups passed while nobody watched
//	keep.go       what survives a restart
//	history.go    where the groups stood when the markers were read
//	rewind.go     how far back in time a reset is safe
//	missing.go    whose committed offsets are gone
//	margins.go    the five retention numbers and what would mend them
//	snapshot.go   what a poll yields, as data and as metrics
//
// What is not known has a number: records that a group has passed before the
// exporter looked, and of which there is no marker, were either never handled
// or have lost their markers. Nobody can tell which, but how many there are.
package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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
	running sync.Mutex // Poll and Keep
	history history
	watch   watch
	times   map[timesKey]*times
	rewind  rewind
}

// New makes a source.
func New(o Options) *Source {
	o.ClockMargin = cmp.Or(o.ClockMargin, time.Minute)
	o.Factor = cmp.Or(o.Factor, 1.1)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Source{o: o, watch: watch{}, times: map[timesKey]*times{}, rewind: rewind{}}
}

// Describe implements poll.Source.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	describe(ch, s.o.ByTopic)
}

// Poll implements poll.Source.
func (s *Source) Poll(ctx context.Context) (poll.Snapshot, error) {
	s.running.Lock()
	defer s.running.Unlock()
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
	s.history.see(now, groups)
	s.forgetOthers(stores)
	s.watch.see(topics, groups, stores)

	out := &Snapshot{At: now, byTopic: s.o.ByTopic}
	byName := make(map[string]*kafka.Group, len(groups.Groups))
	for _, g := range groups.Groups {
		byName[g.Name] = g
	}
	var methods []method
	alive := map[timesKey]bool{}
	for _, m := range stores {
		for i := range m.Series {
			marked := &m.Series[i]
			group := groupOf(m, marked, groups, byName)
			if one, ok := missing(m, marked, group, topics); ok {
				out.addMissing(one)
			}
			if group != nil && group.Readable {
				subjects, how := s.subjects(now, m, marked, group, topics, alive)
				methods = append(methods, how...)
				for _, one := range subjects {
					out.Series = append(out.Series, one.series)
				}
			}
		}
	}
	read := map[string]bool{}
	for _, m := range stores {
		read[m.Database] = true
	}
	for key := range s.times {
		if read[key.database] && !alive[key] {
			delete(s.times, key)
		}
	}

	q := questions{}
	for _, m := range methods {
		m.ask(&q)
	}
	out.problems = q.answer(ctx, s.o.Offsets)
	for _, m := range methods {
		m.judge(&q)
	}
	out.problems = append(out.problems, s.rewind.find(ctx, now, s.o.Offsets, topics, out.Series)...)
	slices.SortFunc(out.Series, func(a, b *Series) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic))
	})
	return out, nil
}

// subject is one group on one topic, seen from one store.
type subject struct {
	markers *postgres.Markers
	marked  *postgres.Series
	series  *Series
	parts   []*part
}

// part is a partition of a subject.
type part struct {
	*Partition
	start, end kafka.Known[int64]
	oldest     kafka.Known[time.Time]
	// beyond: the commit lies past the log's end.
	beyond bool
}

// method finds what subjects that belong together have exposed.
type method interface {
	// ask puts the questions whose answers judge needs.
	ask(*questions)
	judge(*questions)
}

// subjects pairs a series of markers with the topics that the group has
// commits on, or had.
func (s *Source) subjects(now time.Time, m *postgres.Markers, marked *postgres.Series, group *kafka.Group, topics *kafka.Topics, alive map[timesKey]bool) (out []*subject, methods []method) {
	exact := m.Table.Has.Topic != "" && m.Table.Has.Partition != "" && m.Table.Has.Offset != ""
	var together *times
	if !exact {
		key := timesKey{m.Database, marked.Group, marked.Topic}
		alive[key] = true
		if s.times[key] == nil {
			s.times[key] = newTimes()
		}
		together = s.times[key]
		together.see(now, m, marked, group)
	}
	for _, committed := range group.Topics {
		if marked.Topic != "" && committed.Topic != marked.Topic {
			continue
		}
		out = append(out, s.subject(now, m, marked, group, topics, committed.Topic, committed.Partitions, exact))
	}
	if len(out) == 0 && exact && len(marked.Handled) > 0 && topics.Topics[marked.Topic] != nil {
		out = append(out, s.subject(now, m, marked, group, topics, marked.Topic, nil, exact))
	}
	if !exact {
		return out, []method{&byTime{times: together, margin: s.o.ClockMargin, perTopic: m.Table.Has.Topic != "", marked: marked, watched: s.watch[m.Database], subjects: out}}
	}
	for _, one := range out {
		methods = append(methods, &byOffset{one, &s.history, s.watch[m.Database]})
	}
	return out, methods
}

func (s *Source) subject(now time.Time, m *postgres.Markers, marked *postgres.Series, group *kafka.Group, topics *kafka.Topics, name string, committed []kafka.GroupPartition, exact bool) *subject {
	topic := topics.Topics[name]
	one := &subject{markers: m, marked: marked, series: &Series{at: now, Database: m.Database, Group: group.Name, Topic: name, Exact: exact}}
	one.series.Compare(numbers(now, m, marked, topic), s.o.Factor)
	with := map[int32]bool{}
	for _, p := range committed {
		with[p.Partition] = true
		one.add(p, topic).beyond = p.OutOfRange.OK && p.OutOfRange.Value && p.Committed > one.parts[len(one.parts)-1].start.Value
	}
	for _, id := range slices.Sorted(maps.Keys(marked.Handled)) {
		// Its commit is gone, or has not come yet: the next start begins where
		// the consumer's reset policy says.
		if h := marked.Handled[id]; exact && !with[int32(id)] && h.To >= 0 && topic != nil && int(id) < len(topic.Partitions) {
			one.add(kafka.GroupPartition{Partition: int32(id), Committed: h.To + 1}, topic).CommitGone = true
		}
	}
	slices.SortFunc(one.series.Partitions, func(a, b *Partition) int { return cmp.Compare(a.Partition, b.Partition) })
	return one
}

func (s *subject) add(p kafka.GroupPartition, topic *kafka.Topic) *part {
	one := &part{Partition: &Partition{Partition: p.Partition, Committed: p.Committed}}
	if topic != nil && int(p.Partition) < len(topic.Partitions) {
		log := topic.Partitions[p.Partition]
		one.start, one.end, one.oldest = log.Start, log.End, log.Oldest
		one.LogStart = log.Start
	}
	s.series.Partitions = append(s.series.Partitions, one.Partition)
	s.parts = append(s.parts, one)
	return one
}

// settled judges what needs no markers: nothing of the group's on the broker,
// or nothing known. It says whether that was all.
func (s *subject) settled(p *part) bool {
	switch {
	case !p.start.OK || !p.end.OK:
		s.unknown(p, "the partition's offsets could not be read")
	case p.beyond:
		s.unknown(p, fmt.Sprintf("the committed offset %d lies beyond the log's end %d: the topic was made anew, or has lost records", p.Committed, p.end.Value))
	case p.Committed <= p.start.Value:
		p.conclude()
	case !s.markers.Ready:
		p.Why = "the markers are still being counted"
		p.Unseen = all(p.start.Value, p.Committed)
		p.conclude()
	default:
		return false
	}
	return true
}

// unknown says why nothing can be told of a partition, not even bounds.
func (s *subject) unknown(p *part, why string) {
	p.Why, p.Gone, p.Unseen = why, nil, nil
}

// missed says why more may have vanished than was found.
func (s *subject) missed() bool {
	return slices.ContainsFunc(s.markers.Inexact, func(r postgres.Reason) bool {
		return r == postgres.ReasonUnexplained || r == postgres.ReasonCatchingUp
	})
}

func known[T any](v T) kafka.Known[T] { return kafka.Known[T]{Value: v, OK: true} }
