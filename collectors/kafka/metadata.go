package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// metadata is the brokers, and for each topic asked for its id and leaders.
type metadata struct {
	cluster string
	brokers []int32 // sorted
	topics  map[string]topicMetadata
}

type topicMetadata struct {
	id      TopicID
	err     error
	leaders map[int32]leader // by partition
	holders []int32          // the brokers that have replicas of it, sorted
}

type leader struct {
	broker int32
	err    error
}

// maxPartition is far above what a cluster can hold.
const maxPartition = 1 << 20

// loadMetadata asks any broker, for the named topics only. Topics are never
// created by asking: on a broker that creates topics by itself, a request for a
// deleted one would bring it back.
func (r *requester) loadMetadata(ctx context.Context, topics []string) (metadata, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	req.Topics = []kmsg.MetadataRequestTopic{} // none, where nil would be all
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t)
		req.Topics = append(req.Topics, rt)
	}
	r.count(1)
	resp, err := req.RequestWith(ctx, r.client)
	if err != nil {
		return metadata{}, fmt.Errorf("no broker answered: %w", r.throttles.explain(anyBroker, err))
	}
	m := metadata{topics: make(map[string]topicMetadata, len(resp.Topics))}
	if resp.ClusterID != nil {
		m.cluster = *resp.ClusterID
	}
	for _, b := range resp.Brokers {
		m.brokers = append(m.brokers, b.NodeID)
	}
	slices.Sort(m.brokers)
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		tm := topicMetadata{id: t.TopicID, err: codeError(t.ErrorCode), leaders: make(map[int32]leader, len(t.Partitions))}
		for _, p := range t.Partitions {
			if p.Partition < 0 || p.Partition > maxPartition {
				continue // no broker says so; the number becomes an index
			}
			// A partition without a leader may carry an error or just -1. Other
			// errors, such as a replica that is away, leave the leader readable.
			l := leader{broker: p.Leader}
			if p.Leader < 0 {
				if l.err = codeError(p.ErrorCode); l.err == nil {
					l.err = kerr.LeaderNotAvailable
				}
			}
			tm.leaders[p.Partition] = l
			tm.holders = append(tm.holders, p.Replicas...)
		}
		slices.Sort(tm.holders)
		tm.holders = slices.Compact(tm.holders)
		m.topics[*t.Topic] = tm
	}
	for _, t := range topics {
		if _, ok := m.topics[t]; !ok {
			m.topics[t] = topicMetadata{err: fmt.Errorf("the broker's metadata does not mention it")}
		}
	}
	return m, nil
}

func (m metadata) partitions() []partition {
	var out []partition
	for name, t := range m.topics {
		for id := range t.leaders {
			out = append(out, partition{name, id})
		}
	}
	return out
}

// addMetadata makes meta's topics exactly the wanted ones: it asks for those
// that commits revealed, which is rare, and forgets those nobody has commits
// on any more.
func (c *Client) addMetadata(ctx context.Context, r *requester, meta *metadata, wanted map[string]bool) error {
	var missing []string
	for name := range wanted {
		if _, ok := meta.topics[name]; !ok {
			missing = append(missing, name)
		}
	}
	maps.DeleteFunc(meta.topics, func(name string, _ topicMetadata) bool { return !wanted[name] })
	if len(missing) == 0 {
		return nil
	}
	more, err := r.loadMetadata(ctx, missing)
	if err != nil {
		return fmt.Errorf("metadata of %d topics: %w", len(missing), err)
	}
	maps.Copy(meta.topics, more.topics)
	return nil
}
