package retention

import (
	"slices"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// history is what earlier snapshots tell.
type history struct {
	groups []seenGroups // oldest first
	topics map[string]*seenTopic
}

type seenGroups struct {
	*kafka.Groups
	at time.Time // when they were there, at the latest
}

type seenTopic struct {
	id kafka.TopicID
	// anew is, by database, the column's time at which the topic was found to
	// be another than before.
	anew map[string]time.Time
}

func newHistory() history { return history{topics: map[string]*seenTopic{}} }

// keepGroups is how many snapshots of the groups are kept: enough to reach
// back before the oldest markers that are served.
const keepGroups = 8

func (h *history) see(now time.Time, topics *kafka.Topics, groups *kafka.Groups, stores []*postgres.Markers) {
	if n := len(h.groups); n == 0 || h.groups[n-1].Groups != groups {
		h.groups = append(h.groups, seenGroups{groups, now})
		h.groups = slices.Delete(h.groups, 0, max(0, len(h.groups)-keepGroups))
	}
	for name, t := range topics.Topics {
		if t.ID == (kafka.TopicID{}) {
			continue // not known
		}
		was := h.topics[name]
		if was == nil {
			h.topics[name] = &seenTopic{id: t.ID}
			continue
		}
		if was.id == t.ID {
			continue
		}
		was.id, was.anew = t.ID, map[string]time.Time{}
		for _, m := range stores {
			was.anew[m.Database] = m.ServerTime.Add(now.Sub(m.ReadAt))
		}
	}
}

// voidBefore is the time up to which a topic's markers are of an earlier topic
// of its name; zero where nothing of the kind was seen.
func (h *history) voidBefore(database, topic string) time.Time {
	if t := h.topics[topic]; t != nil {
		return t.anew[database]
	}
	return time.Time{}
}

// committed is the lowest offset that the group's commit had from the time the
// markers were read on: a marker is written before its offset is committed, so
// what lies below it and has no marker has lost it. Unknown where the commits
// were not read before the markers.
func (h *history) committed(group, topic string, partition int32, markersRead time.Time) kafka.Known[int64] {
	base := -1
	for i, g := range h.groups {
		if !g.at.After(markersRead) {
			base = i
		}
	}
	if base < 0 {
		return kafka.Known[int64]{}
	}
	lowest := kafka.Known[int64]{}
	for _, groups := range h.groups[base:] {
		c, ok := commit(groups.Groups, group, topic, partition)
		if !ok {
			return kafka.Known[int64]{}
		}
		if !lowest.OK || c < lowest.Value {
			lowest = known(c)
		}
	}
	return lowest
}

func commit(groups *kafka.Groups, group, topic string, partition int32) (int64, bool) {
	g := groups.Group(group)
	if g == nil || !g.Readable {
		return 0, false
	}
	t := g.Topic(topic)
	if t == nil {
		return 0, false
	}
	i := slices.IndexFunc(t.Partitions, func(p kafka.GroupPartition) bool { return p.Partition == partition })
	if i < 0 {
		return 0, false
	}
	return t.Partitions[i].Committed, true
}
