package stream

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// position is where a partition's fetching stands.
type position struct {
	mu   sync.Mutex
	next int64 // offset after the last record fetched; -1: not known yet
	// handled is the offset below which everything was handled by earlier owners.
	handled int64
}

// set the position without a look at what lies between.
func (p *position) set(next, handled int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.handled = next, handled
}

// lost is the range [from, to) that is gone when the log is found to begin at
// start and the next record there is to lie at next. The client resumes at the
// log's start without a word when records were deleted (by retention, or by
// DeleteRecords) before it came to them. A jump within the log is none:
// compaction and aborted transactions leave gaps.
func (p *position) lost(start, next int64) (from, to int64) {
	if at := max(p.next, p.handled); p.next >= 0 && start > at && next > at {
		return at, min(start, next)
	}
	return 0, 0
}

// fetched takes what a poll brought, and sees what the log lost before it.
func (p *partition) fetched(records []*kgo.Record, logStart int64) {
	p.position.mu.Lock()
	from, to := p.position.lost(logStart, records[0].Offset)
	p.position.next = records[len(records)-1].Offset + 1
	p.position.mu.Unlock()
	p.countLost(from, to)
	p.queue.add(records)
}

// countLost counts and logs the records of [from, to), and lets the worker pass
// them at their place among the others. What an earlier owner has handled since
// this one was assigned the partition is no loss.
func (p *partition) countLost(from, to int64) {
	if from >= to {
		return
	}
	from = max(from, p.handledByNow())
	if from >= to {
		return
	}
	p.metrics.Lost(p.topic, p.label, float64(to-from))
	p.log.Error("events lost: the broker deleted records before they were handled", "from_offset", from, "to_offset", to-1, "lost", to-from)
	p.queue.add([]*kgo.Record{{Topic: p.topic, Partition: p.id, Offset: to - 1, LeaderEpoch: -1, Context: lostRecords}})
}

// handledByNow is the offset below which the database says that all has been
// handled; 0 where it cannot be asked: rather counted too often than not at all.
func (p *partition) handledByNow() (offset int64) {
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	p.mu.Lock()
	id := p.topicID
	p.mu.Unlock()
	err := p.cfg.Pool.QueryRow(ctx, "SELECT coalesce(max(greatest(handled_offset, next_offset)), 0) FROM consumer_progress WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND topic_id = $4",
		p.group, p.topic, p.id, id).Scan(&offset)
	if err != nil {
		p.log.Warn("could not ask how far the partition has been handled", "error", err)
		return 0
	}
	return offset
}

// lostRecords marks a record that stands for those that are gone.
var lostRecords = context.WithValue(context.Background(), lostKey{}, true)

type lostKey struct{}

func isLost(r *kgo.Record) bool { return r.Context == lostRecords }

// isEvent is false for what ends a transaction, and for what only moves the
// position.
func isEvent(r *kgo.Record) bool { return !r.Attrs.IsControl() && !isLost(r) }

// watchLogStarts looks for loss that no fetch can show: a log that was deleted
// up to its end, with nothing after it.
func (c *consumer) watchLogStarts(ctx context.Context) {
	t := time.NewTicker(c.cfg.LogStartEvery)
	defer t.Stop()
	before := map[*partition]int64{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := c.lookAtLogStarts(ctx, before); err != nil && ctx.Err() == nil {
			c.cfg.Log.Warn("could not read the logs' starts", "consumer_group", c.group, "error", err)
		}
	}
}

// lookAtLogStarts counts what is gone where the position has not moved since
// the look before and the log holds nothing that could still be fetched.
func (c *consumer) lookAtLogStarts(ctx context.Context, before map[*partition]int64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	starts, err := c.admin.ListStartOffsets(ctx, c.cfg.Topics...)
	if err != nil {
		return err
	}
	ends, err := c.admin.ListEndOffsets(ctx, c.cfg.Topics...)
	if err != nil {
		return err
	}
	now := map[*partition]int64{}
	for _, p := range c.all() {
		start, ok := starts.Lookup(p.topic, p.id)
		end, ok2 := ends.Lookup(p.topic, p.id)
		if !ok || !ok2 || start.Err != nil || end.Err != nil || !p.queue.idle() {
			continue
		}
		p.position.mu.Lock()
		at := p.position.next
		from, to := p.position.lost(start.Offset, end.Offset)
		if was, seen := before[p]; seen && was == at && from < to && end.Offset == start.Offset {
			p.position.next = to
		} else {
			from, to = 0, 0
		}
		now[p] = p.position.next
		p.position.mu.Unlock()
		p.countLost(from, to)
	}
	clear(before)
	for p, at := range now {
		before[p] = at
	}
	return nil
}
