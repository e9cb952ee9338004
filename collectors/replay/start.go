package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"oncewatch/collectors/config"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
)

// Start is where a group stands on its topics, or on one of them, before
// anything is judged. The warnings say what Kafka will refuse.
func Start(group, topic string, groups *kafka.Groups, topics *kafka.Topics) (out []Topic, warnings []string, err error) {
	g := groups.Group(group)
	if i := slices.IndexFunc(topics.Problems(), func(p poll.Problem) bool { return p.Kind == "denied" && p.Entity == "topic "+topic }); i >= 0 {
		return nil, nil, bad("topic", "topic %s cannot be read: %v", topic, topics.Problems()[i].Err)
	}
	if g != nil && g.Readable && len(g.Topics) == 0 && g.State != "Dead" {
		return nil, nil, bad("group", "Kafka shows no offsets of group %s: it has none, or DESCRIBE on its topics is not granted", group)
	}
	if g == nil || g.Readable && len(g.Topics) == 0 {
		var names []string
		for _, one := range groups.Groups {
			if len(one.Topics) > 0 {
				names = append(names, one.Name)
			}
		}
		return nil, nil, bad("group", "Kafka keeps no offsets of a group %s%s", group, config.Nearest(group, names))
	}
	if !g.Readable {
		return nil, nil, bad("group", "the offsets of group %s cannot be read%s", group, because(groups.Problems(), "group "+group))
	}
	var names []string
	for _, committed := range g.Topics {
		names = append(names, committed.Topic)
		if topic != "" && committed.Topic != topic {
			continue
		}
		one := Topic{Topic: committed.Topic}
		log := topics.Topics[committed.Topic]
		for _, c := range committed.Partitions {
			var bounds kafka.Partition
			if log != nil && int(c.Partition) < len(log.Partitions) {
				bounds = log.Partitions[c.Partition]
			}
			if !bounds.Start.OK || !bounds.End.OK {
				return nil, nil, fmt.Errorf("topic %s, partition %d: its offsets cannot be read%s", one.Topic, c.Partition,
					because(slices.Concat(topics.Problems(), groups.Problems()), "topic "+one.Topic, "broker "))
			}
			p := Partition{Partition: c.Partition, LogStart: bounds.Start.Value, LogEnd: bounds.End.Value, Committed: c.Committed}
			if p.Committed > p.LogEnd {
				warnings = append(warnings, fmt.Sprintf("The offset %d of group %s on %s, partition %d, lies beyond the log's end %d: the topic was made anew, or has lost records.", p.Committed, group, one.Topic, p.Partition, p.LogEnd))
				p.Committed = p.LogEnd
			}
			one.Partitions = append(one.Partitions, p)
		}
		out = append(out, one)
	}
	if len(out) == 0 {
		return nil, nil, bad("topic", "group %s has no offsets on a topic %s%s", group, topic, config.Nearest(topic, names))
	}
	if n := g.Members; n.OK && n.Value > 0 {
		warnings = append(warnings, fmt.Sprintf("Group %s has %s (it is %s): Kafka refuses to reset its offsets until they are stopped.", group, number.Of(int64(n.Value), "active member"), strings.ToLower(cmp.Or(g.State, "running"))))
	}
	return out, warnings, nil
}

// because is the first problem of one of the entities, as the end of a line.
func because(problems []poll.Problem, entities ...string) string {
	for _, entity := range entities {
		for _, p := range problems {
			if strings.HasPrefix(p.Entity, entity) {
				return ": " + p.Err.Error()
			}
		}
	}
	return ""
}
