package retention

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
)

var missingDesc = prometheus.NewDesc("consumer_group_offsets_missing",
	"1 where the group has markers of the topic and no committed offset on it, or on some of its partitions: expired or deleted, and the next start begins where the consumer's reset policy says. Absent where the commits or the topic could not be read, and where there are no markers.", []string{"consumer_group", "topic"}, nil)

// Missing says whether the committed offsets of a group on a topic are gone
// although it has markers there.
type Missing struct {
	Group, Topic string // Topic is empty where the table has no such column and the group has no commits at all
	Gone         bool
	// Partitions are those whose commits are gone, where the table tells them.
	Partitions []int32
}

// missing looks at one series of markers. ok is false where nothing can be said.
func missing(m *postgres.Markers, marked *postgres.Series, group *kafka.Group, topics *kafka.Topics) (out Missing, ok bool) {
	if group == nil || !group.Readable || marked.Oldest.IsZero() && marked.Rows == 0 && len(marked.Handled) == 0 {
		return out, false
	}
	out = Missing{Group: group.Name, Topic: marked.Topic}
	if marked.Topic == "" {
		out.Gone = len(group.Topics) == 0
		return out, out.Gone // each topic it has commits on is one that it has not lost
	}
	topic := topics.Topics[marked.Topic]
	if topic == nil || len(topic.Partitions) == 0 {
		return out, false // of another cluster, or not to be read
	}
	if s := group.Subscribed(marked.Topic); s.OK && !s.Value {
		return out, true // it has left the topic: there is no next start there
	}
	committed := group.Topic(marked.Topic)
	out.Gone = committed == nil
	if m.Table.Has.Partition == "" {
		return out, true
	}
	for id, h := range marked.Handled {
		if h.To < 0 || int(id) >= len(topic.Partitions) {
			continue
		}
		if committed == nil || !slices.ContainsFunc(committed.Partitions, func(p kafka.GroupPartition) bool { return p.Partition == int32(id) }) {
			out.Partitions = append(out.Partitions, int32(id))
		}
	}
	slices.Sort(out.Partitions)
	out.Gone = out.Gone || len(out.Partitions) > 0
	return out, true
}

// addMissing notes what was found of one store; several may hold markers of the
// same group.
func (s *Snapshot) addMissing(one Missing) {
	for i := range s.Missing {
		if was := &s.Missing[i]; was.Group == one.Group && was.Topic == one.Topic {
			was.Gone = was.Gone || one.Gone
			was.Partitions = append(was.Partitions, one.Partitions...)
			slices.Sort(was.Partitions)
			was.Partitions = slices.Compact(was.Partitions)
			return
		}
	}
	s.Missing = append(s.Missing, one)
	slices.SortFunc(s.Missing, func(a, b Missing) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic)) })
}

// FindMissing returns what is known of a group's commits on a topic; nil where
// nothing is.
func (s *Snapshot) FindMissing(group, topic string) *Missing {
	for i := range s.Missing {
		if s.Missing[i].Group == group && s.Missing[i].Topic == topic {
			return &s.Missing[i]
		}
	}
	return nil
}

func (s *Snapshot) collectMissing(ch chan<- prometheus.Metric) {
	for _, one := range s.Missing {
		value := 0.0
		if one.Gone {
			value = 1
		}
		poll.Gauge(ch, missingDesc, value, one.Group, one.Topic)
	}
}
