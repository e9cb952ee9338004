package kafka

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/poll"
)

var (
	topicInfoDesc = prometheus.NewDesc("consumer_group_topic_info",
		"1 for each topic that the group has commits on. Absent for any other.", []string{"consumer_group", "topic"}, nil)
	membersDesc = prometheus.NewDesc("consumer_group_members",
		"Members of the group. Absent where the group could not be described.", []string{"consumer_group"}, nil)
	stateDesc = prometheus.NewDesc("consumer_group_state",
		"1 for the state that the group is in, as Kafka calls it. Absent for the other states, and where the group could not be described.", []string{"consumer_group", "state"}, nil)
	subscribedDesc = prometheus.NewDesc("consumer_group_topic_subscribed",
		"1 where a member of the group consumes the topic, 0 where none does any more. Absent where the group has no members.", []string{"consumer_group", "topic"}, nil)
	leftOutDesc = prometheus.NewDesc("oncewatch_kafka_groups_left_out",
		"Groups that are not watched because there are more than --kafka.max-groups.", nil, nil)
)

// lagDescs are the metrics whose labels follow the granularity.
type lagDescs struct{ committed, lag, seconds, expired, unverified, outOfRange *prometheus.Desc }

func newLagDescs(labels ...string) lagDescs {
	return lagDescs{
		committed: prometheus.NewDesc("consumer_committed_offset",
			"The group's committed offset: where it goes on after a restart; summed where there is no partition label. Absent where it has none.", labels, nil),
		lag: prometheus.NewDesc("consumer_lag",
			"Records that the group has yet to handle: log end minus the later of its committed offset and log start, and not what is known to be no event. Absent where the group has no commit, or the partition no leader.", labels, nil),
		seconds: prometheus.NewDesc("consumer_lag_seconds",
			"Age of the oldest record that the group has not committed past, by the record's own timestamp; 0 where there is none. Absent where the group has no commit, or the record's time cannot be read.", labels, nil),
		expired: prometheus.NewDesc("consumer_records_expired",
			"Records deleted before the group handled them: log start minus its committed offset, 0 at least, without what is known to have been no event. Absent where the group has no commit.", labels, nil),
		unverified: prometheus.NewDesc("consumer_records_expired_unverified",
			"Of consumer_records_expired, those that may have been no events: transaction markers or records of aborted transactions. Absent where nothing expired.", labels, nil),
		outOfRange: prometheus.NewDesc("consumer_offset_out_of_range",
			"1 where the group's committed offset lies outside the log, so that its next fetch resets it. Absent where the group has no commit.", labels, nil),
	}
}

var (
	lagByPartition = newLagDescs("consumer_group", "topic", "partition")
	lagByTopic     = newLagDescs("consumer_group", "topic")
)

func lagOf(granularity string) lagDescs {
	if granularity == ByTopic {
		return lagByTopic
	}
	return lagByPartition
}

// groupsSource is the poll source of Groups.
type groupsSource struct {
	client *Client
	had    int
}

// Groups returns the source of the consumer groups' metrics, whose snapshots
// are of type *Groups. It is for one poller.
func (c *Client) Groups() poll.Source { return &groupsSource{client: c} }

// Describe implements poll.Source.
func (s *groupsSource) Describe(ch chan<- *prometheus.Desc) {
	l := lagOf(s.client.config.Granularity)
	for _, d := range []*prometheus.Desc{topicInfoDesc, membersDesc, stateDesc, subscribedDesc, leftOutDesc, l.committed, l.lag, l.seconds, l.expired, l.unverified, l.outOfRange} {
		ch <- d
	}
}

// Poll implements poll.Source.
func (s *groupsSource) Poll(ctx context.Context) (poll.Snapshot, error) {
	r := s.client.after(ctx, s.had)
	s.had = r.number
	if r.groupsErr != nil {
		return nil, r.groupsErr
	}
	return r.groups, nil
}

// Collect implements poll.Snapshot.
func (g *Groups) Collect(now time.Time, ch chan<- prometheus.Metric) {
	descs := lagOf(g.granularity)
	send := newSender(now, ch)
	send.gauge(leftOutDesc, float64(g.LeftOut), nil)
	for _, group := range g.Groups {
		if group.Members.OK {
			send.gauge(membersDesc, float64(group.Members.Value), group.labels)
		}
		if group.State != "" {
			send.gauge(stateDesc, 1, group.stateLabels)
		}
		for i := range group.Topics {
			t := &group.Topics[i]
			send.gauge(topicInfoDesc, 1, t.labels)
			if s := t.Subscribed; s.OK {
				send.flag(subscribedDesc, s.Value, t.labels)
			}
			if g.granularity == ByTopic {
				sum := t.Sum()
				send.lag(descs, &sum, t.labels)
				continue
			}
			for i := range t.Partitions {
				send.lag(descs, &t.Partitions[i], t.Partitions[i].labels)
			}
		}
	}
}

func (s *sender) lag(descs lagDescs, p *GroupPartition, labels labelSet) {
	s.gauge(descs.committed, float64(p.Committed), labels)
	if p.Lag.OK {
		s.gauge(descs.lag, float64(p.Lag.Value), labels)
	}
	if p.Waiting.OK {
		s.age(descs.seconds, p.Waiting.Value, labels)
	}
	if p.Expired.OK {
		s.gauge(descs.expired, float64(p.Expired.Value), labels)
		if p.Expired.Value > 0 {
			s.gauge(descs.unverified, float64(p.Unverified), labels)
		}
	}
	if p.OutOfRange.OK {
		s.flag(descs.outOfRange, p.OutOfRange.Value, labels)
	}
}

// label makes the samples' labels once, for all scrapes.
func (g *Groups) label(granularity string) {
	g.granularity = granularity
	in := interner{}
	for _, group := range g.Groups {
		group.labels = in.labels("consumer_group", group.Name)
		group.stateLabels = in.labels("consumer_group", group.Name, "state", group.State)
		for i := range group.Topics {
			t := &group.Topics[i]
			t.labels = in.labels("consumer_group", group.Name, "topic", t.Topic)
			if granularity == ByTopic {
				continue
			}
			for j := range t.Partitions {
				p := &t.Partitions[j]
				p.labels = in.labels("consumer_group", group.Name, "partition", strconv.Itoa(int(p.Partition)), "topic", t.Topic)
			}
		}
	}
}

// Sum is the topic as one: offsets, lag and expired records summed, the record
// that has waited longest, out of range or held where any partition is. What is
// not known of one partition is not known of the sum. Partition means nothing
// in it.
func (t *GroupTopic) Sum() GroupPartition {
	if len(t.Partitions) == 0 {
		return GroupPartition{}
	}
	sum := GroupPartition{Lag: known[int64](0), Expired: known[int64](0), OutOfRange: known(false), Waiting: known(time.Time{})}
	for _, p := range t.Partitions {
		sum.Committed += p.Committed
		sum.Next += p.Next
		sum.Unverified += p.Unverified
		sum.Held = sum.Held || p.Held
		sum.Lag = both(sum.Lag, p.Lag, func(a, b int64) int64 { return a + b })
		sum.Expired = both(sum.Expired, p.Expired, func(a, b int64) int64 { return a + b })
		sum.OutOfRange = both(sum.OutOfRange, p.OutOfRange, func(a, b bool) bool { return a || b })
		sum.Waiting = both(sum.Waiting, p.Waiting, earlier)
	}
	return sum
}

func both[T any](a, b Known[T], join func(a, b T) T) Known[T] {
	if !a.OK || !b.OK {
		return Known[T]{}
	}
	return known(join(a.Value, b.Value))
}

// earlier is the earlier of two timestamps; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// fill copies what the coordinators told.
func (g *Groups) fill(picked []listedGroup, committed map[string]commits, members map[string]seenMembers) {
	for _, l := range picked {
		group := &Group{Name: l.name, Type: l.kind, State: l.state}
		g.Groups = append(g.Groups, group)
		if seen, ok := members[l.name]; ok && seen.err == nil {
			group.Members, group.subscription = known(seen.members), seen.subscription
			if group.State == "" {
				group.State = seen.description.state
			}
		}
		got, ok := committed[l.name]
		group.Readable = ok && got.err == nil
		if !group.Readable {
			continue
		}
		for _, topic := range slices.Sorted(maps.Keys(got.topics)) {
			gt := GroupTopic{Topic: topic, Subscribed: group.Subscribed(topic), Partitions: make([]GroupPartition, 0, len(got.topics[topic]))}
			for _, cm := range got.topics[topic] {
				gt.Partitions = append(gt.Partitions, GroupPartition{Partition: cm.partition, Committed: cm.offset, Next: cm.offset})
			}
			slices.SortFunc(gt.Partitions, func(a, b GroupPartition) int { return cmp.Compare(a.Partition, b.Partition) })
			gt.Partitions = slices.CompactFunc(gt.Partitions, func(a, b GroupPartition) bool { return a.Partition == b.Partition })
			group.Topics = append(group.Topics, gt)
		}
	}
}

// judge computes what the logs tell of the commits.
func (g *Groups) judge(known tails, topics *Topics) {
	for _, group := range g.Groups {
		for _, t := range group.Topics {
			for i := range t.Partitions {
				p := &t.Partitions[i]
				known.judge(p, t.Topic, topics.partition(t.Topic, p.Partition))
			}
		}
	}
}
