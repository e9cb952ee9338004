package kafka

import "context"

// The isolation levels of ListOffsets and Fetch.
const (
	readUncommitted = 0
	readCommitted   = 1
)

// stableEvery is how many polls apart the last stable offsets are asked for: in
// the polls in which no members are described.
const stableEvery = 2

// stable is what was last told of where transactions hold readers back.
type stable struct {
	id TopicID
	// at is the last stable offset where it lay before the log end, else unset.
	at int64
}

// askStable asks for the last stable offset of every partition: where its
// oldest open transaction began, and the log end where there is none. It comes
// after the ends, so that a transaction that began in between holds nothing.
func (c *Client) askStable(ctx context.Context, r *requester, meta metadata, ends map[partition]listed) {
	if c.memory.polls != 1 && (c.memory.polls%stableEvery != 0 || !r.affords(len(meta.brokers))) {
		return
	}
	answers := r.listOffsets(ctx, meta, atAll(meta.partitions(), atEnd), readCommitted)
	c.memory.stable = make(map[partition]stable, len(answers))
	for p, a := range answers {
		end, ok := ends[p]
		if !ok || end.err != nil || a.err != nil {
			continue
		}
		s := stable{meta.topics[p.topic].id, unset}
		if a.offset < end.offset {
			s.at = a.offset
		}
		c.memory.stable[p] = s
	}
}

// fillStable sets the last stable offsets. In a poll that did not ask for them,
// a partition that a transaction held is taken to be held still, and one that
// none held to be free.
func (t *Topics) fillStable(last map[partition]stable) {
	for name, topic := range t.Topics {
		for id := range topic.Partitions {
			p := &topic.Partitions[id]
			s, ok := last[partition{name, int32(id)}]
			switch {
			case !ok || s.id != topic.ID || !p.End.OK || s.at > p.End.Value:
			case s.at == unset:
				p.Stable = p.End
			default:
				p.Stable = known(s.at)
			}
		}
	}
}
