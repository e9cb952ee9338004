package retention

import (
	"cmp"
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

// commits are a group's on a topic, from the last time they were read before
// the markers were; empty where they were not, or are not known at one of these
// times.
func (h *history) commits(group, topic string, markersRead time.Time) (since []*kafka.GroupTopic) {
	for _, groups := range slices.Backward(h.groups) {
		g := groups.Group(group)
		if g == nil || !g.Readable || g.Topic(topic) == nil {
			return nil
		}
		since = append(since, g.Topic(topic))
		if !groups.at.After(markersRead) {
			return since
		}
	}
	return nil
}

// lowest is the lowest offset that a group's commit on a partition had. A marker
// is written before its offset is committed: what lies below this offset and
// has no marker has lost it.
func lowest(commits []*kafka.GroupTopic, partition int32) (low kafka.Known[int64]) {
	for _, t := range commits {
		i, ok := slices.BinarySearchFunc(t.Partitions, partition, func(p kafka.GroupPartition, id int32) int { return cmp.Compare(p.Partition, id) })
		if !ok {
			return kafka.Known[int64]{}
		}
		if c := t.Partitions[i].Committed; !low.OK || c < low.Value {
			low = known(c)
		}
	}
	return low
}
