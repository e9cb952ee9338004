package kafka

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// How much one look reads, at most: headers are what is wanted, so that little
// of each partition is enough. A broker sends the first batch whole, however
// large.
const (
	tailPartitions     = 32  // of one broker in a poll
	tailPartitionsCold = 256 // in the first poll, which knows nothing
	tailPartitionBytes = 16 << 10
	tailBytes          = 1 << 20
)

// tails are the partitions where groups stand, and what is known of the topics.
type tails struct {
	byPartition map[partition]*tail
	topics      map[string]*transactions
	none        bool // there never was a transaction on the cluster
}

// transactions is what was seen of a topic's use of them.
type transactions struct {
	id TopicID
	// seen: a record of one, or a partition that one held. plain: only other
	// records, so far.
	seen, plain bool
	// deniedAt is when the broker last refused to show records.
	deniedAt time.Time
}

func newTails() tails {
	return tails{byPartition: map[partition]*tail{}, topics: map[string]*transactions{}}
}

// refresh looks at where groups stand still: twice in a row at one offset, with
// records after it that nobody has looked at. Each such place is looked at once,
// by one request to each leader, and only headers of batches are read. It needs
// READ on the topic; where that is denied, nothing is known.
func (t *tails) refresh(ctx context.Context, r *requester, meta metadata, topics *Topics, groups *Groups, cold bool, retry time.Duration) {
	standing := groups.committedAt()
	t.keep(meta, standing)
	due := map[partition]int64{}
	for p, offsets := range standing {
		bounds := topics.partition(p.topic, p.id)
		if !bounds.Start.OK || !bounds.End.OK {
			continue
		}
		tail, topic := t.byPartition[p], t.topics[p.topic]
		if bounds.Stable.OK && bounds.Stable.Value < bounds.End.Value {
			topic.seen = true
		}
		waiting := make([]int64, 0, len(offsets))
		for _, committed := range offsets {
			offset := tail.next(max(committed, bounds.Start.Value))
			end := bounds.End.Value
			if bounds.Stable.OK {
				end = min(end, bounds.Stable.Value)
			}
			if offset >= end || tail.knows(offset) {
				continue
			}
			waiting = append(waiting, offset)
			if cold || slices.Contains(tail.stood, offset) {
				if was, ok := due[p]; !ok || offset < was {
					due[p] = offset
				}
			}
		}
		tail.stood = waiting
		if !topic.deniedAt.IsZero() && topics.At.Sub(topic.deniedAt) < retry && !topics.At.Before(topic.deniedAt) {
			delete(due, p)
		}
	}
	limit := tailPartitions
	if cold {
		limit = tailPartitionsCold
	}
	if len(due) > 0 && (cold || r.affords(len(meta.brokers))) {
		t.look(ctx, r, meta, due, limit, topics.At)
	}
}

// keep forgets partitions and offsets where no group stands, and what an
// earlier topic of the same name left.
func (t *tails) keep(meta metadata, standing map[partition][]int64) {
	kept := make(map[partition]*tail, len(standing))
	topics := map[string]*transactions{}
	for p, offsets := range standing {
		id := meta.topics[p.topic].id
		if topics[p.topic] == nil {
			if topics[p.topic] = t.topics[p.topic]; topics[p.topic] == nil || topics[p.topic].id != id {
				topics[p.topic] = &transactions{id: id}
			}
		}
		kept[p] = t.byPartition[p]
		if kept[p] == nil || kept[p].id != id {
			kept[p] = &tail{id: id}
		}
		kept[p].forget(offsets[0])
	}
	t.byPartition, t.topics = kept, topics
}

// look fetches the batches from the given offsets on.
func (t *tails) look(ctx context.Context, r *requester, meta metadata, due map[partition]int64, limit int, now time.Time) {
	requests := map[int32]kmsg.Request{}
	taken := map[int32]int{}
	for _, p := range slices.SortedFunc(maps.Keys(due), func(a, b partition) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.id, b.id))
	}) {
		broker, err := meta.leader(p)
		if err != nil || taken[broker] == limit {
			continue
		}
		taken[broker]++
		req, _ := requests[broker].(*kmsg.FetchRequest)
		if req == nil {
			req = kmsg.NewPtrFetchRequest()
			req.ReplicaID, req.SessionEpoch = -1, -1 // a consumer, without a session
			req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 0, 0, tailBytes
			req.IsolationLevel = readCommitted
			requests[broker] = req
		}
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != p.topic {
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic = p.topic
			req.Topics = append(req.Topics, rt)
		}
		rt := &req.Topics[len(req.Topics)-1]
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = p.id, due[p], tailPartitionBytes
		rt.Partitions = append(rt.Partitions, rp)
	}
	for _, resp := range ask[*kmsg.FetchResponse](ctx, r, requests).ok {
		for _, rt := range resp.Topics {
			for _, rp := range rt.Partitions {
				p := partition{rt.Topic, rp.Partition}
				topic, tail := t.topics[p.topic], t.byPartition[p]
				if topic == nil || tail == nil {
					continue
				}
				switch err := codeError(rp.ErrorCode); {
				case err == nil:
					topic.deniedAt = time.Time{}
					spans, transactional := readTail(due[p], rp.RecordBatches, rp.AbortedTransactions)
					tail.learn(spans)
					topic.seen = topic.seen || transactional
					topic.plain = topic.plain || len(spans) > 0
				case kindOf(err) == "denied":
					topic.deniedAt = now
				}
			}
		}
	}
}

// judge computes what the log's bounds and what was looked at tell of a commit.
func (t *tails) judge(p *GroupPartition, topic string, bounds Partition) {
	tail := t.byPartition[partition{topic, p.Partition}]
	if !bounds.Start.OK || !bounds.End.OK {
		return
	}
	start, end := bounds.Start.Value, bounds.End.Value
	p.Next = tail.next(max(p.Committed, start))
	void, unknown := tail.count(p.Committed, start)
	if known := t.topics[topic]; known != nil && (known.plain || t.none) && !known.seen {
		unknown = 0
	}
	p.Lag = known(max(0, end-p.Next))
	p.Expired = known(max(0, start-p.Committed) - void)
	p.Unverified = unknown
	p.OutOfRange = known(p.Committed < start || p.Committed > end)
	p.Held = bounds.Stable.OK && bounds.Stable.Value < end && p.Next == bounds.Stable.Value
}

// committedAt is where groups stand: the committed offsets of each partition.
func (g *Groups) committedAt() map[partition][]int64 {
	out := map[partition][]int64{}
	for _, group := range g.Groups {
		for _, t := range group.Topics {
			for _, gp := range t.Partitions {
				p := partition{t.Topic, gp.Partition}
				out[p] = append(out[p], gp.Committed)
			}
		}
	}
	for p, offsets := range out {
		slices.Sort(offsets)
		out[p] = slices.Compact(offsets)
	}
	return out
}
