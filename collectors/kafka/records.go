package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/poll"
)

// Span is a part of a partition: the offsets From up to To, without To.
type Span struct {
	Partition int32
	From, To  int64
}

// Bounds of what a Reader holds in memory, and of its patience.
const (
	fetchBytes    = 2 << 20 // of one answer, as it comes from the broker
	fetchesAtOnce = 2
	recordsAtOnce = 5000
	readPatience  = 30 * time.Second
)

// Reader reads a topic's records once, as a consumer of committed data would,
// but in no group: it commits nothing and needs READ on the topic only.
type Reader struct {
	client       *kgo.Client
	topic        string
	recordRanges map[int32]*recordRange // that are not read to their end
	held         []Span

	// Patience is how long to wait for a record while recordRanges are not at their
	// end.
	Patience time.Duration
}

type recordRange struct{ next, to int64 }

// Read begins to read the recordRanges of one topic. What is no longer there is left
// out; what an open transaction holds back from readers of committed data is
// left out too, and told by Held.
func (c *Client) Read(ctx context.Context, topic string, recordRanges []Span) (*Reader, error) {
	admin := kadm.NewClient(c.kgo)
	ctx, cancel := context.WithTimeout(ctx, 3*requestTimeout)
	defer cancel()
	starts, err := listed1(admin.ListStartOffsets(ctx, topic))
	if err != nil {
		return nil, wrap(fmt.Errorf("topic %s: %w", topic, err))
	}
	stable, err := listed1(admin.ListCommittedOffsets(ctx, topic))
	if err != nil {
		return nil, wrap(fmt.Errorf("topic %s: %w", topic, err))
	}
	r := &Reader{topic: topic, recordRanges: map[int32]*recordRange{}, Patience: readPatience}
	from := map[int32]kgo.Offset{}
	for _, s := range recordRanges {
		start, ok := starts.Lookup(topic, s.Partition)
		end, ok2 := stable.Lookup(topic, s.Partition)
		if !ok || !ok2 {
			return nil, wrap(fmt.Errorf("topic %s has no partition %d", topic, s.Partition))
		}
		if s.To > end.Offset {
			r.held = append(r.held, Span{s.Partition, max(s.From, end.Offset), s.To})
		}
		one := &recordRange{next: max(s.From, start.Offset), to: min(s.To, end.Offset)}
		if one.next < one.to {
			r.recordRanges[s.Partition] = one
			from[s.Partition] = kgo.NewOffset().At(one.next)
		}
	}
	if len(from) == 0 {
		return r, nil
	}
	r.client, err = kgo.NewClient(append(slices.Clone(c.options),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		// What retention deletes while we read is not there to be read again.
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// They tell that the end is reached where the last record was aborted.
		kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(fetchBytes), kgo.FetchMaxPartitionBytes(fetchBytes/2),
		kgo.MaxConcurrentFetches(fetchesAtOnce),
	)...)
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", topic, err)
	}
	return r, nil
}

// MayRead says which of the topics the brokers would not let us read, before a
// long reading: an error of kind denied. Brokers that tell no rights refuse later.
func (c *Client) MayRead(ctx context.Context, topics []string) error {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation, req.IncludeTopicAuthorizedOperations = false, true
	for _, name := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, rt)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*requestTimeout)
	defer cancel()
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return wrap(fmt.Errorf("which topics may be read: %w", err))
	}
	var denied []string
	for _, t := range resp.Topics {
		told := t.AuthorizedOperations > 0
		if t.Topic != nil && (told && t.AuthorizedOperations&(1<<kmsg.ACLOperationRead) == 0 || t.ErrorCode == kerr.TopicAuthorizationFailed.Code) {
			denied = append(denied, *t.Topic)
		}
	}
	if len(denied) == 0 {
		return nil
	}
	slices.Sort(denied)
	return &poll.KindError{Kind: "denied", Err: fmt.Errorf("records of topic %s may not be read: grant READ on it, or name another with --topic", strings.Join(denied, ", "))}
}

// listed1 is kadm's answer with the errors of its partitions.
func listed1(l kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	return l, errors.Join(err, l.Error())
}

// Next returns some of the records, io.EOF after the last, and an error that
// names where it stands if none has come for Patience.
func (r *Reader) Next(ctx context.Context) ([]*kgo.Record, error) {
	for len(r.recordRanges) > 0 {
		poll, cancel := context.WithTimeout(ctx, r.Patience)
		fetches := r.client.PollRecords(poll, recordsAtOnce)
		expired := poll.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var failed error
		fetches.EachError(func(_ string, p int32, err error) {
			if failed == nil && !errors.Is(err, context.DeadlineExceeded) {
				failed = wrap(fmt.Errorf("topic %s, partition %d: %w", r.topic, p, err))
			}
		})
		if failed != nil {
			return nil, failed
		}
		var out []*kgo.Record
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			s := r.recordRanges[p.Partition]
			for _, record := range p.Records {
				if s == nil || record.Offset >= s.to {
					break
				}
				if s.next = record.Offset + 1; !record.Attrs.IsControl() {
					out = append(out, record)
				}
			}
			if n := len(p.Records); s != nil && n > 0 && p.Records[n-1].Offset+1 >= s.to {
				delete(r.recordRanges, p.Partition)
				r.client.PauseFetchPartitions(map[string][]int32{r.topic: {p.Partition}})
			}
		})
		if len(out) > 0 {
			return out, nil
		}
		if expired && len(r.recordRanges) > 0 {
			return nil, wrap(fmt.Errorf("topic %s: no record came for %s, with %s still to be read: %w", r.topic, r.Patience, r.left(), context.DeadlineExceeded))
		}
	}
	return nil, io.EOF
}

// left says where the reading stands.
func (r *Reader) left() string {
	var parts []string
	for p, s := range r.recordRanges {
		parts = append(parts, fmt.Sprintf("partition %d from offset %d to %d", p, s.next, s.to))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// Left are the parts that Next has not reached.
func (r *Reader) Left() []Span {
	var out []Span
	for p, s := range r.recordRanges {
		out = append(out, Span{p, s.next, s.to})
	}
	slices.SortFunc(out, func(a, b Span) int { return int(a.Partition - b.Partition) })
	return out
}

// Held are the parts that an open transaction holds back.
func (r *Reader) Held() []Span { return r.held }

// Close ends the reading.
func (r *Reader) Close() {
	if r.client != nil {
		r.client.Close()
	}
}
