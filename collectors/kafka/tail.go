package kafka

import (
	"encoding/binary"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// tail is what is known of the offsets of one partition from where its groups
// stand: which hold events, and which hold nothing that a consumer is ever
// given. Transactions write their end as a record of its own, the records of an
// aborted one count for nothing, and compaction leaves holes; a group that has
// handled every event can stand before such offsets for ever, and later seem to
// have lost them.
type tail struct {
	id    TopicID
	spans []span // in order, none touching the next of its kind
	// stood are the offsets at which groups waited in the last poll.
	stood []int64
}

// span is the offsets from first up to, not including, end.
type span struct {
	first, end int64
	void       bool // nobody is given these
}

// maxSpans bounds the memory of one partition; beyond it the oldest are
// forgotten.
const maxSpans = 256

// learn notes spans that follow one another.
func (t *tail) learn(spans []span) {
	if len(spans) == 0 {
		return
	}
	first, end := spans[0].first, spans[len(spans)-1].end
	kept := make([]span, 0, len(t.spans)+len(spans))
	for _, s := range t.spans { // what was just read takes the place of what was known
		if s.first < first {
			kept = append(kept, span{s.first, min(s.end, first), s.void})
		}
	}
	kept = append(kept, spans...)
	for _, s := range t.spans {
		if s.end > end {
			kept = append(kept, span{max(s.first, end), s.end, s.void})
		}
	}
	joined := kept[:0]
	for _, s := range kept {
		if i := len(joined) - 1; i >= 0 && joined[i].end == s.first && joined[i].void == s.void {
			joined[i].end = s.end
		} else {
			joined = append(joined, s)
		}
	}
	t.spans = slices.Delete(joined, 0, max(0, len(joined)-maxSpans))
}

// forget drops what lies before every group.
func (t *tail) forget(before int64) {
	t.spans = slices.DeleteFunc(t.spans, func(s span) bool { return s.end <= before })
}

// next is the first offset at or after the given one that is not known to hold
// nothing.
func (t *tail) next(offset int64) int64 {
	if t == nil {
		return offset
	}
	for _, s := range t.spans {
		if s.void && s.first <= offset && offset < s.end {
			offset = s.end
		}
	}
	return offset
}

// knows says whether an offset has been looked at.
func (t *tail) knows(offset int64) bool {
	return slices.ContainsFunc(t.spans, func(s span) bool { return s.first <= offset && offset < s.end })
}

// count is how many offsets from first up to end are known to hold nothing, and
// of how many nothing is known.
func (t *tail) count(first, end int64) (void, unknown int64) {
	if first >= end {
		return 0, 0
	}
	unknown = end - first
	if t == nil {
		return 0, unknown
	}
	for _, s := range t.spans {
		n := max(0, min(s.end, end)-max(s.first, first))
		unknown -= n
		if s.void {
			void += n
		}
	}
	return void, unknown
}

// The header of a batch of records, of which the batch's own format is the
// source: org.apache.kafka.common.record.DefaultRecordBatch.
const (
	batchHeader      = 61
	batchLengthAt    = 8
	batchMagicAt     = 16
	batchAttributes  = 21
	batchLastDeltaAt = 23
	batchProducerAt  = 43
	batchCountAt     = 57

	attributeTransactional = 1 << 4
	attributeControl       = 1 << 5
)

// readTail tells from the headers of fetched batches what the offsets from the
// given one on hold, and whether any of them belongs to a transaction. aborted
// are the transactions that the broker says ended so. Records are not looked
// into; the last batch may be cut off behind its header.
func readTail(from int64, batches []byte, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction) (spans []span, transactional bool) {
	aborted = slices.Clone(aborted)
	slices.SortFunc(aborted, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return int(a.FirstOffset - b.FirstOffset)
	})
	failed := map[int64]bool{} // producers within a transaction that they aborted
	at := from
	add := func(end int64, void bool) {
		if end > at {
			spans = append(spans, span{at, end, void})
			at = end
		}
	}
	for len(batches) >= batchHeader {
		first := int64(binary.BigEndian.Uint64(batches))
		size := int(int32(binary.BigEndian.Uint32(batches[batchLengthAt:]))) + batchLengthAt + 4
		last := first + int64(int32(binary.BigEndian.Uint32(batches[batchLastDeltaAt:])))
		if size < batchHeader || last < first {
			return spans, transactional // no broker sends this
		}
		if batches[batchMagicAt] < 2 {
			// From before Kafka 0.11, which knew no transactions.
			add(max(at, first), true)
			add(first+1, false)
			return spans, transactional
		}
		attributes := binary.BigEndian.Uint16(batches[batchAttributes:])
		producer := int64(binary.BigEndian.Uint64(batches[batchProducerAt:]))
		for len(aborted) > 0 && aborted[0].FirstOffset <= last {
			failed[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		void := binary.BigEndian.Uint32(batches[batchCountAt:]) == 0 // compaction keeps a producer's last batch, empty
		if attributes&attributeTransactional != 0 {
			transactional = true
			void = void || failed[producer]
		}
		if attributes&attributeControl != 0 {
			transactional, void = true, true
			delete(failed, producer)
		}
		add(first, true) // compacted away
		add(last+1, void)
		batches = batches[min(size, len(batches)):]
	}
	return spans, transactional
}
