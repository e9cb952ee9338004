package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The timestamps with a meaning of their own in ListOffsets.
const (
	atEnd    = -1 // the next offset to be written
	atStart  = -2 // the log start
	atNewest = -3 // the record with the greatest timestamp
)

// partition names one.
type partition struct {
	topic string
	id    int32
}

// listed is the answer for one partition: offset and timestamp are -1 where
// there is no such record.
type listed struct {
	offset    int64
	timestamp int64 // milliseconds
	err       error
}

// listOffsets asks each leader once for all its partitions. Partitions of
// brokers that are down have no answer.
func (r *requester) listOffsets(ctx context.Context, meta metadata, at map[partition]int64, isolation int8) map[partition]listed {
	out := make(map[partition]listed, len(at))
	type place struct {
		broker int32
		topic  string
	}
	requests := map[int32]*kmsg.ListOffsetsRequest{}
	topicAt := map[place]int{}
	for p, timestamp := range at {
		broker, err := meta.leader(p)
		if err != nil {
			out[p] = listed{err: err}
			continue
		}
		req := requests[broker]
		if req == nil {
			req = kmsg.NewPtrListOffsetsRequest()
			req.ReplicaID, req.IsolationLevel = -1, isolation
			requests[broker] = req
		}
		i, ok := topicAt[place{broker, p.topic}]
		if !ok {
			i = len(req.Topics)
			topicAt[place{broker, p.topic}] = i
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic = p.topic
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.id, timestamp
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	plain := make(map[int32]kmsg.Request, len(requests))
	for broker, req := range requests {
		plain[broker] = req
	}
	answers := ask[*kmsg.ListOffsetsResponse](ctx, r, plain)
	for _, resp := range answers.ok {
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				out[partition{t.Topic, p.Partition}] = listed{offset: p.Offset, timestamp: p.Timestamp, err: codeError(p.ErrorCode)}
			}
		}
	}
	for broker, err := range answers.refused {
		for _, t := range requests[broker].Topics {
			for _, p := range t.Partitions {
				out[partition{t.Topic, p.Partition}] = listed{err: err}
			}
		}
	}
	return out
}

// leader is who to ask for a partition.
func (m metadata) leader(p partition) (int32, error) {
	t, ok := m.topics[p.topic]
	switch {
	case !ok:
		return 0, kerr.UnknownTopicOrPartition
	case t.err != nil:
		return 0, t.err
	}
	l, ok := t.leaders[p.id]
	if !ok {
		return 0, kerr.UnknownTopicOrPartition
	}
	return l.broker, l.err
}

// ListedOffset is one answer of ListOffsets.
type ListedOffset struct {
	// Offset of the first record at or after the time asked for, and its
	// Timestamp; -1 and zero where there is none.
	Offset    int64
	Timestamp time.Time
	// AtLeast says that Offset is the log start, and the record there or after:
	// the broker could not find it by time.
	AtLeast bool
	// Err is why this partition could not be read; the others may be fine.
	Err error
}

// ListOffsets finds, for each partition, the first record whose timestamp is
// at or after the given time: one request for metadata and one for each leader,
// however many partitions there are; where a leader finds no record, one or
// two more to see whether there is none. An error means that nothing could be asked; a
// partition that failed by itself says so in its own answer.
func (c *Client) ListOffsets(ctx context.Context, at map[string]map[int32]time.Time) (map[string]map[int32]ListedOffset, error) {
	r := c.requester()
	asks := map[partition]int64{}
	topics := make([]string, 0, len(at))
	for topic, partitions := range at {
		topics = append(topics, topic)
		for id, t := range partitions {
			asks[partition{topic, id}] = max(0, t.UnixMilli())
		}
	}
	meta, err := r.loadMetadata(ctx, topics)
	if err != nil {
		return nil, wrap(err)
	}
	answers := r.listOffsets(ctx, meta, asks, readUncommitted)
	atLeast := r.doubt(ctx, meta, asks, answers)
	out := make(map[string]map[int32]ListedOffset, len(at))
	for p := range asks {
		if out[p.topic] == nil {
			out[p.topic] = map[int32]ListedOffset{}
		}
		a, ok := answers[p]
		if !ok {
			broker, _ := meta.leader(p)
			a.err = fmt.Errorf("broker %d, its leader, does not answer: %w", broker, r.down[broker])
		}
		l := ListedOffset{Offset: -1, AtLeast: atLeast[p]}
		switch {
		case a.err != nil:
			l.Err = wrap(fmt.Errorf("topic %s, partition %d: %w", p.topic, p.id, a.err))
		case l.AtLeast:
			l.Offset = a.offset
		case a.offset >= 0:
			l.Offset, l.Timestamp = a.offset, time.UnixMilli(a.timestamp)
		}
		out[p.topic][p.id] = l
	}
	return out, nil
}

// doubt looks again where a leader found no record at or after a time. Before
// the log start there may be segments that DeleteRecords has emptied and the
// broker has yet to delete, and it looks no further than the first that is late
// enough. Where the newest record is as late as asked, or the question was for
// any record at all, the log start takes the answer's place: atLeast.
func (r *requester) doubt(ctx context.Context, meta metadata, asks map[partition]int64, answers map[partition]listed) (atLeast map[partition]bool) {
	atLeast = map[partition]bool{}
	var none, doubted []partition
	for p, a := range answers {
		if a.err == nil && a.offset < 0 {
			none = append(none, p)
		}
	}
	newest := r.listOffsets(ctx, meta, atAll(none, atNewest), readUncommitted)
	for _, p := range none {
		switch a, ok := newest[p]; {
		case !ok:
			delete(answers, p) // its leader is down by now
		case a.err != nil:
			answers[p] = a
		case asks[p] == 0 || a.offset >= 0 && a.timestamp >= asks[p]:
			doubted = append(doubted, p)
		}
	}
	starts := r.listOffsets(ctx, meta, atAll(doubted, atStart), readUncommitted)
	for _, p := range doubted {
		if a, ok := starts[p]; ok {
			answers[p], atLeast[p] = a, a.err == nil
		} else {
			delete(answers, p)
		}
	}
	return atLeast
}

func atAll(partitions []partition, timestamp int64) map[partition]int64 {
	at := make(map[partition]int64, len(partitions))
	for _, p := range partitions {
		at[p] = timestamp
	}
	return at
}
