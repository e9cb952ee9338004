package kafka

import (
	"time"

	"oncewatch/collectors/poll"
)

// TopicID tells a topic from an earlier one of the same name. Zero before
// Kafka 2.8.
type TopicID = [16]byte

// Known is a value that a poll may not have been able to read. Without OK there
// is no value: not zero, not -1.
type Known[T any] struct {
	Value T
	OK    bool
}

func known[T any](v T) Known[T] { return Known[T]{v, true} }

// then is f of what is known.
func (k Known[T]) then(f func(T) T) Known[T] {
	if !k.OK {
		return k
	}
	return known(f(k.Value))
}

// Topics is what one poll saw of the watched topics: those that the watched
// groups have commits on, and those that Client.Watch named.
type Topics struct {
	// At is when the poll began, by our clock.
	At time.Time
	// Cluster is Kafka's id of itself; empty where it has none.
	Cluster string
	// Topics by name. One that could not be read is here with nothing known.
	Topics map[string]*Topic
	// OffsetsRetention is how long the brokers keep the committed offsets of a
	// group without members (offsets.retention.minutes), the shortest of them;
	// not known without DESCRIBE_CONFIGS on the cluster.
	OffsetsRetention Known[time.Duration]

	problems    []poll.Problem
	granularity string
}

// Topic is one of Topics.
type Topic struct {
	Name      string
	ID        TopicID
	Retention Known[Retention]
	// Partitions by number; nil where the topic could not be read.
	Partitions []Partition

	labels labelSet
}

// Partition is one of a Topic.
type Partition struct {
	// Start is the log start: the first offset that is still there. End is the
	// next offset to be written.
	Start, End Known[int64]
	// Stable is the last stable offset: where the oldest open transaction began,
	// and End where none is open. As of this poll or the one before.
	Stable Known[int64]
	// Oldest is the timestamp of the first record; not known where there is
	// none.
	Oldest Known[time.Time]

	labels labelSet
}

// Groups is what one poll saw of the watched consumer groups.
type Groups struct {
	// At is when the poll began, by our clock.
	At time.Time
	// Groups by name, in order. A group whose commits could not be read is here
	// without topics.
	Groups []*Group
	// LeftOut is how many groups --kafka.max-groups left out.
	LeftOut int

	problems    []poll.Problem
	granularity string
}

// Group is one of Groups.
type Group struct {
	Name string
	// Type is classic or consumer (KIP-848).
	Type string
	// State as Kafka calls it: Stable, Empty, PreparingRebalance, …; empty
	// where it could not be read.
	State   string
	Members Known[int]
	// Readable says whether the commits could be read.
	Readable bool
	// Topics that the group has commits on, by name.
	Topics []GroupTopic

	subscription        *subscription
	labels, stateLabels labelSet
}

// GroupTopic is a topic that a Group has commits on.
type GroupTopic struct {
	Topic string
	// Subscribed says whether a member of the group consumes the topic; not
	// known where the group has no members or they do not tell.
	Subscribed Known[bool]
	Partitions []GroupPartition

	labels labelSet
}

// GroupPartition is a partition that a Group has a commit on. Committed is
// always known; the rest where the log's bounds could be read.
type GroupPartition struct {
	Partition int32
	// Committed is the group's next offset.
	Committed int64
	// Next is the later of Committed and the log start, moved past what is known
	// to be no event: transactions' own records, those of aborted ones, holes
	// that compaction left.
	Next int64
	// Lag is log end minus Next, 0 at least.
	Lag Known[int64]
	// Expired is log start minus Committed, 0 at least, without what is known to
	// have been no event: records deleted before the group handled them.
	Expired Known[int64]
	// Unverified is how many of Expired may have been no events either.
	Unverified int64
	// Held says that the group waits for an open transaction to end: its next
	// record is the transaction's first.
	Held bool
	// OutOfRange says whether Committed lies outside the log: the next fetch
	// resets the group.
	OutOfRange Known[bool]
	// Waiting is the timestamp of the oldest record not yet committed past, the
	// zero time where there is none. To a second or 1 % of its age as a rule,
	// to 15 seconds or 5 % at worst.
	Waiting Known[time.Time]

	labels labelSet
}

// waits says whether the log has something to come for the group.
func (p GroupPartition) waits() bool { return p.Lag.OK && p.Lag.Value > 0 }

// Beyond says that the commit lies past the log's end: the topic was made anew,
// or has lost records.
func (p GroupPartition) Beyond() bool {
	return p.OutOfRange.OK && p.OutOfRange.Value && p.Next <= p.Committed
}

// Problems implements poll.Snapshot.
func (t *Topics) Problems() []poll.Problem { return t.problems }

// Problems implements poll.Snapshot.
func (g *Groups) Problems() []poll.Problem { return g.problems }

// Topic returns the group's topic of this name; nil where it has no commits on
// it.
func (g *Group) Topic(name string) *GroupTopic {
	for i := range g.Topics {
		if g.Topics[i].Topic == name {
			return &g.Topics[i]
		}
	}
	return nil
}

// Subscribed says whether a member of the group consumes a topic; not known
// where the group has no members or they do not tell.
func (g *Group) Subscribed(topic string) Known[bool] {
	if g.subscription == nil {
		return Known[bool]{}
	}
	return known(g.subscription.has(topic))
}

// Group returns the group of this name; nil where there is none.
func (g *Groups) Group(name string) *Group {
	for _, one := range g.Groups {
		if one.Name == name {
			return one
		}
	}
	return nil
}

// clockSlack is how far ahead of us a producer's clock may be; what is later
// has a wrong timestamp, of which no age can be told.
const clockSlack = time.Minute

// age is a record's age in seconds; unknown where its timestamp lies in the
// future.
func age(now, record time.Time) Known[float64] {
	d := now.Sub(record)
	if d < -clockSlack {
		return Known[float64]{}
	}
	return known(max(0, d.Seconds()))
}
