package retention

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
)

const unprotectedHelp = "Records still on the broker, below the group's committed offset, whose marker is known to be gone: a reset to earliest applies each of them twice. 0 when none. Absent where it cannot be known yet."

var (
	byPartitionDesc = prometheus.NewDesc("processed_events_unprotected_records", unprotectedHelp,
		[]string{"database", "consumer_group", "topic", "partition"}, nil)
	byTopicDesc = prometheus.NewDesc("processed_events_unprotected_records", unprotectedHelp,
		[]string{"database", "consumer_group", "topic"}, nil)
)

// Snapshot is what one poll found. Nothing in it changes.
type Snapshot struct {
	// At is when the poll began, by our clock.
	At time.Time
	// Series by database, group and topic: those that have markers and commits.
	Series []*Series

	byTopic  bool
	problems []poll.Problem
}

// Series is a consumer group on a topic, with its markers in one database.
type Series struct {
	Database, Group, Topic string
	// Exact says that markers and records were compared by offset; else by
	// time, within a margin for clocks.
	Exact bool
	// Partitions that the group has a commit on, in order.
	Partitions []*Partition
	// Numbers are the five retention numbers; Margins compares them, the
	// smallest first; Changes would each mend the smallest.
	Numbers Numbers
	Margins []Margin
	Changes []Change

	at time.Time
}

// Partition is one of a Series.
type Partition struct {
	Partition int32
	// LogStart is the first offset that is still there, Committed the group's
	// next one.
	LogStart  kafka.Known[int64]
	Committed int64
	// Unprotected is how many records a reset to earliest would apply twice:
	// at least this many where Unseen is not 0.
	Unprotected kafka.Known[int64]
	// Gone are the offsets among which they are, in a few ranges. Empty by time.
	Gone []Range
	// Unseen is how many offsets from LogStart on no marker was ever seen of:
	// never handled, or pruned before we looked.
	Unseen int64
	// Why says in words why Unprotected is not known.
	Why string
}

// Range is the offsets First to Last.
type Range struct{ First, Last int64 }

// Unprotected adds the partitions up. Where one is not known, the sum of the
// others is at least what there is, and a zero is not known.
func (s *Series) Unprotected() kafka.Known[int64] {
	sum, all := int64(0), len(s.Partitions) > 0
	for _, p := range s.Partitions {
		all = all && p.Unprotected.OK
		sum += p.Unprotected.Value
	}
	if sum == 0 && !all {
		return kafka.Known[int64]{}
	}
	return known(sum)
}

// Find returns the series of a database, group and topic; nil where there is
// none.
func (s *Snapshot) Find(database, group, topic string) *Series {
	for _, one := range s.Series {
		if one.Database == database && one.Group == group && one.Topic == topic {
			return one
		}
	}
	return nil
}

// Problems implements poll.Snapshot.
func (s *Snapshot) Problems() []poll.Problem { return s.problems }

// Collect implements poll.Snapshot.
func (s *Snapshot) Collect(_ time.Time, ch chan<- prometheus.Metric) {
	for _, one := range s.Series {
		if s.byTopic {
			if n := one.Unprotected(); n.OK {
				poll.Gauge(ch, byTopicDesc, float64(n.Value), one.Database, one.Group, one.Topic)
			}
			continue
		}
		for _, p := range one.Partitions {
			if p.Unprotected.OK {
				poll.Gauge(ch, byPartitionDesc, float64(p.Unprotected.Value), one.Database, one.Group, one.Topic, strconv.Itoa(int(p.Partition)))
			}
		}
	}
}
