package stream

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A partition's queue is bounded: fetching pauses above high and resumes below
// low, for this partition alone.
const (
	highRecords, lowRecords = 10_000, 2_500
	highBytes, lowBytes     = 8 << 20, 2 << 20
)

// queue of a partition's fetched records.
type queue struct {
	pause, resume func()
	wake          chan struct{}

	mu      sync.Mutex
	records []*kgo.Record
	bytes   int
	paused  bool
}

func newQueue(pause, resume func()) *queue {
	return &queue{pause: pause, resume: resume, wake: make(chan struct{}, 1)}
}

func (q *queue) add(records []*kgo.Record) {
	q.mu.Lock()
	q.records = append(q.records, records...)
	for _, r := range records {
		q.bytes += len(r.Key) + len(r.Value)
	}
	if !q.paused && (len(q.records) > highRecords || q.bytes > highBytes) {
		q.paused = true
		q.pause()
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next returns up to limit records.
func (q *queue) next(limit int) []*kgo.Record {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(limit, len(q.records))
	records := q.records[:n:n]
	q.records = q.records[n:]
	for _, r := range records {
		q.bytes -= len(r.Key) + len(r.Value)
	}
	if q.paused && len(q.records) < lowRecords && q.bytes < lowBytes {
		q.paused = false
		q.resume()
	}
	return records
}

// idle says that nothing waits here and fetching goes on.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.records) == 0 && !q.paused
}
