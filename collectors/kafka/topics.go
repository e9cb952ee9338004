package kafka

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/poll"
)

var (
	retentionSecondsDesc = prometheus.NewDesc("kafka_topic_retention_seconds",
		"Effective retention.ms of the topic, +Inf where it never deletes by age. Absent where the configuration cannot be read.", []string{"topic"}, nil)
	retentionBytesDesc = prometheus.NewDesc("kafka_topic_retention_bytes",
		"Effective retention.bytes of each of the topic's partitions, +Inf where it never deletes by size. Absent where the configuration cannot be read.", []string{"topic"}, nil)
	worstCaseDesc = prometheus.NewDesc("kafka_topic_worst_case_retention_seconds",
		"How long a record can really stay: retention.ms plus segment.ms, since whole segments are deleted after their newest record expired; +Inf where the policy compacts too. Absent where the configuration cannot be read.", []string{"topic"}, nil)
)

// boundsDescs are the metrics whose labels follow the granularity.
type boundsDescs struct{ oldest, start, end, stable *prometheus.Desc }

func newBoundsDescs(labels ...string) boundsDescs {
	return boundsDescs{
		oldest: prometheus.NewDesc("kafka_topic_oldest_record_age_seconds",
			"Age of the oldest record that is still there. Absent where there is none, or where it cannot be read.", labels, nil),
		start: prometheus.NewDesc("kafka_topic_partition_log_start_offset",
			"First offset that is still there; summed where there is no partition label. Absent where the partition has no leader.", labels, nil),
		end: prometheus.NewDesc("kafka_topic_partition_log_end_offset",
			"Next offset to be written; summed where there is no partition label. Absent where the partition has no leader.", labels, nil),
		stable: prometheus.NewDesc("kafka_topic_partition_last_stable_offset",
			"Where the oldest open transaction began, the log end where none is open: readers of committed records get no further; summed where there is no partition label. Absent where the partition has no leader.", labels, nil),
	}
}

var (
	boundsByPartition = newBoundsDescs("topic", "partition")
	boundsByTopic     = newBoundsDescs("topic")
)

func boundsOf(granularity string) boundsDescs {
	if granularity == ByTopic {
		return boundsByTopic
	}
	return boundsByPartition
}

// topicsSource is the poll source of Topics.
type topicsSource struct {
	client *Client
	had    int
}

// Topics returns the source of the topics' metrics, whose snapshots are of type
// *Topics. It is for one poller.
func (c *Client) Topics() poll.Source { return &topicsSource{client: c} }

// Describe implements poll.Source.
func (s *topicsSource) Describe(ch chan<- *prometheus.Desc) {
	b := boundsOf(s.client.config.Granularity)
	for _, d := range []*prometheus.Desc{retentionSecondsDesc, retentionBytesDesc, worstCaseDesc, b.oldest, b.start, b.end, b.stable} {
		ch <- d
	}
}

// Poll implements poll.Source.
func (s *topicsSource) Poll(ctx context.Context) (poll.Snapshot, error) {
	r := s.client.after(ctx, s.had)
	s.had = r.number
	if r.topicsErr != nil {
		return nil, r.topicsErr
	}
	return r.topics, nil
}

// Collect implements poll.Snapshot.
func (t *Topics) Collect(now time.Time, ch chan<- prometheus.Metric) {
	descs := boundsOf(t.granularity)
	send := newSender(now, ch)
	for _, topic := range t.Topics {
		if r := topic.Retention; r.OK {
			for desc, v := range map[*prometheus.Desc]Known[float64]{retentionSecondsDesc: r.Value.Seconds, retentionBytesDesc: r.Value.Bytes, worstCaseDesc: r.Value.WorstCaseSeconds} {
				if v.OK {
					send.gauge(desc, v.Value, topic.labels)
				}
			}
		}
		if t.granularity == ByTopic {
			start, end, stable, oldest, ok := topic.sum()
			if start.OK {
				send.gauge(descs.start, float64(start.Value), topic.labels)
				send.gauge(descs.end, float64(end.Value), topic.labels)
			}
			if stable.OK {
				send.gauge(descs.stable, float64(stable.Value), topic.labels)
			}
			if ok && !oldest.IsZero() {
				send.age(descs.oldest, oldest, topic.labels)
			}
			continue
		}
		for _, p := range topic.Partitions {
			if p.Start.OK && p.End.OK {
				send.gauge(descs.start, float64(p.Start.Value), p.labels)
				send.gauge(descs.end, float64(p.End.Value), p.labels)
			}
			if p.Stable.OK {
				send.gauge(descs.stable, float64(p.Stable.Value), p.labels)
			}
			if p.Oldest.OK {
				send.age(descs.oldest, p.Oldest.Value, p.labels)
			}
		}
	}
}

// label makes the samples' labels once, for all scrapes.
func (t *Topics) label(granularity string) {
	t.granularity = granularity
	in := interner{}
	for _, topic := range t.Topics {
		topic.labels = in.labels("topic", topic.Name)
		if granularity == ByTopic {
			continue
		}
		for id := range topic.Partitions {
			topic.Partitions[id].labels = in.labels("partition", strconv.Itoa(id), "topic", topic.Name)
		}
	}
}

// sum adds up the partitions' bounds and finds the oldest record, the zero time
// where there is none. A partition that is not known makes the topic's sum
// unknown, and one whose first record is not known makes the age so.
func (t *Topic) sum() (start, end, stable Known[int64], oldest time.Time, oldestOK bool) {
	if len(t.Partitions) == 0 {
		return start, end, stable, oldest, false
	}
	start, end, stable, oldestOK = known[int64](0), known[int64](0), known[int64](0), true
	for _, p := range t.Partitions {
		if !p.Start.OK || !p.End.OK {
			return Known[int64]{}, Known[int64]{}, Known[int64]{}, time.Time{}, false
		}
		start.Value += p.Start.Value
		end.Value += p.End.Value
		stable = both(stable, p.Stable, func(a, b int64) int64 { return a + b })
		switch {
		case p.Start.Value >= p.End.Value: // empty
		case !p.Oldest.OK:
			oldestOK = false
		case oldest.IsZero() || p.Oldest.Value.Before(oldest):
			oldest = p.Oldest.Value
		}
	}
	return start, end, stable, oldest, oldestOK
}

// fill copies the log's bounds.
func (t *Topics) fill(meta metadata, starts, ends map[partition]listed, found partitionProblems) {
	for name, tm := range meta.topics {
		topic := &Topic{Name: name, ID: tm.id}
		t.Topics[name] = topic
		if tm.err != nil {
			t.problems = append(t.problems, problem("topic "+name, tm.err))
			continue
		}
		for id := range tm.leaders {
			p := partition{name, id}
			for int(id) >= len(topic.Partitions) {
				topic.Partitions = append(topic.Partitions, Partition{})
			}
			// A broker that is down has no answer here; it is named itself.
			start, gotStart := starts[p]
			end, gotEnd := ends[p]
			if err := cmp.Or(start.err, end.err); err != nil {
				found.add(p, err)
			}
			if !gotStart || !gotEnd || start.err != nil || end.err != nil || start.offset < 0 || end.offset < 0 {
				continue
			}
			topic.Partitions[id] = Partition{
				// Retention may move the start between the two answers.
				Start: known(min(start.offset, end.offset)),
				End:   known(end.offset),
			}
		}
	}
}

// partition is what is known of one; the zero value where nothing is.
func (t *Topics) partition(topic string, id int32) Partition {
	if one := t.Topics[topic]; one != nil && int(id) < len(one.Partitions) {
		return one.Partitions[id]
	}
	return Partition{}
}
