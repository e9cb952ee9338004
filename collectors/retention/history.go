package retention

import (
	"cmp"
	"slices"
	"time"

	"oncewatch/collectors/kafka"
)

// history is where the groups stood at earlier polls.
type history struct {
	groups []seenGroups // oldest first
}

type seenGroups struct {
	*kafka.Groups
	at time.Time // when they were there, at the latest
}

// keepGroups is how many snapshots of the groups are kept: enough to reach
// back before the oldest markers that are served.
const keepGroups = 8

func (h *history) see(now time.Time, groups *kafka.Groups) {
	if n := len(h.groups); n == 0 || h.groups[n-1].Groups != groups {
		h.groups = append(h.groups, seenGroups{groups, now})
		h.groups = slices.Delete(h.groups, 0, max(0, len(h.groups)-keepGroups))
	}
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
