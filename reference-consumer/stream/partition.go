package stream

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/telemetry"
)

// A partition's queue is bounded: fetching pauses above high and resumes below
// low, for this partition alone.
const (
	highRecords, lowRecords = 10_000, 2_500
	highBytes, lowBytes     = 8 << 20, 2 << 20
)

// partition is one assignment of one partition and the worker that handles its
// records in order.
type partition struct {
	c     *consumer
	topic string
	id    int32
	label string
	m     *telemetry.Topic

	mu      sync.Mutex
	topicID [16]byte
	queue   []*kgo.Record
	bytes   int
	paused  bool
	wake    chan struct{}

	ctx      context.Context // ends the transaction in flight
	cancel   context.CancelFunc
	stopping chan struct{} // ends the worker after its transaction
	stopOnce sync.Once
	done     chan struct{}

	// Of the worker alone:
	limit     int
	replaying bool // the last batch held nothing but duplicates
	sequences *sequences
	crash     crashGuard
}

func startPartition(c *consumer, topic string, id int32) *partition {
	ctx, cancel := context.WithCancel(context.Background())
	p := &partition{
		c: c, topic: topic, id: id, label: strconv.Itoa(int(id)), m: c.topics[topic],
		wake: make(chan struct{}, 1), ctx: ctx, cancel: cancel, stopping: make(chan struct{}), done: make(chan struct{}),
		limit: c.cfg.BatchSize,
	}
	c.cfg.metrics.Partition(topic, p.label)
	c.commits.register(p)
	go p.run()
	return p
}

// stop ends the worker once its transaction is done.
func (p *partition) stop() { p.stopOnce.Do(func() { close(p.stopping) }) }

func (p *partition) isStopping() bool {
	select {
	case <-p.stopping:
		return true
	case <-p.ctx.Done():
		return true
	default:
		return false
	}
}

func (p *partition) self() map[string][]int32 { return map[string][]int32{p.topic: {p.id}} }

// add queues fetched records.
func (p *partition) add(records []*kgo.Record) {
	p.mu.Lock()
	p.queue = append(p.queue, records...)
	for _, r := range records {
		p.bytes += len(r.Key) + len(r.Value)
	}
	if !p.paused && (len(p.queue) > highRecords || p.bytes > highBytes) {
		p.paused = true
		p.c.client.PauseFetchPartitions(p.self())
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// next returns up to limit records, or none when there is other work or the
// worker is to stop.
func (p *partition) next(limit int) []*kgo.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(limit, len(p.queue))
	records := p.queue[:n:n]
	p.queue = p.queue[n:]
	for _, r := range records {
		p.bytes -= len(r.Key) + len(r.Value)
	}
	if p.paused && len(p.queue) < lowRecords && p.bytes < lowBytes {
		p.paused = false
		p.c.client.ResumeFetchPartitions(p.self())
	}
	return records
}

func (p *partition) setTopicID(id [16]byte) {
	p.mu.Lock()
	p.topicID = id
	p.mu.Unlock()
}

func (p *partition) run() {
	defer close(p.done)
	defer p.cancel()
	defer p.c.cfg.metrics.Stopped(p.topic, p.label, false)
	for !p.isStopping() {
		records := p.next(p.limit)
		if len(records) == 0 {
			p.idle()
			continue
		}
		if !p.handleAll(records) {
			return
		}
	}
}

// idle waits for records, and counts gaps that nothing will fill any more.
func (p *partition) idle() {
	var tick <-chan time.Time
	if p.sequences.waiting() {
		t := time.NewTimer(p.c.cfg.GapGrace / 4)
		defer t.Stop()
		tick = t.C
	}
	select {
	case <-p.wake:
	case <-p.stopping:
	case <-p.ctx.Done():
	case <-tick:
		p.sequences.expire(p, true)
	}
}

// handleAll handles records until they are all done; false if the worker must
// end before that.
func (p *partition) handleAll(records []*kgo.Record) bool {
	for len(records) > 0 {
		if p.isStopping() {
			return false
		}
		n, err := p.handle(records)
		records = records[n:]
		if err == nil {
			p.c.cfg.metrics.Stopped(p.topic, p.label, false)
			continue
		}
		if p.isStopping() {
			return false
		}
		if !p.stuck(err) {
			return false
		}
	}
	return true
}

// stuck handles an event that can neither be applied nor passed: this
// partition waits, the others go on. A handler that breaks the transaction's
// rules would only do so again, so then the partition waits for a restart.
func (p *partition) stuck(err error) bool {
	p.c.cfg.metrics.Stopped(p.topic, p.label, true)
	attrs := []any{"consumer_group", p.c.cfg.Inbox.Group(), "topic", p.topic, "partition", p.id}
	var ee *inbox.EventError
	if errors.As(err, &ee) && ee.Index >= 0 {
		attrs = append(attrs, "event_id", ee.Event.ID, "offset", ee.Event.Offset)
		err = ee.Err
	}
	if inbox.Classify(err) == inbox.ClassBug {
		p.c.cfg.Log.Error("partition stopped until the handler is mended and the consumer restarted", append(attrs, "error", err)...)
		select {
		case <-p.stopping:
		case <-p.ctx.Done():
		}
		return false
	}
	p.c.cfg.Log.Error("partition paused: the event can neither be handled nor passed", append(attrs, "error", err, "retry_in", p.c.cfg.PauseFor)...)
	t := time.NewTimer(p.c.cfg.PauseFor)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.stopping:
	case <-p.ctx.Done():
	}
	return true
}

// handle applies the first records and returns how many are done.
func (p *partition) handle(records []*kgo.Record) (int, error) {
	p.mu.Lock()
	topicID := p.topicID
	p.mu.Unlock()
	if err := p.load(records[0].Offset, topicID); err != nil {
		return 0, err
	}
	n, blame, err := p.crash.before(p, records[0].Offset)
	if err != nil {
		return 0, err
	}
	if n > 0 {
		records = records[:n]
	}
	deliveries := p.redeliver(records)
	b := inbox.Batch{
		Topic: p.topic, TopicID: topicID, Partition: p.id,
		Events: make([]inbox.Event, len(deliveries)),
		Next:   records[len(records)-1].Offset + 1,
		Replay: p.replaying,
		OnRetry: func(error, int) {
			p.m.Retries.Inc()
		},
	}
	if blame != nil {
		b.Blame = map[int]error{0: blame}
	}
	ctx, process := p.c.cfg.Tracer.Process(p.ctx, p.topic, p.id, deliveries)
	traceID, traceParent := process.TraceID(), process.TraceParent()
	for i, r := range deliveries {
		b.Events[i] = p.c.cfg.Decode(r)
		b.Events[i].TraceID, b.Events[i].TraceParent = traceID, traceParent
		p.sequences.see(p, r)
	}
	p.sequences.expire(p, false)
	b.Also = func(pipe *pgx.Batch) { p.sequences.store(p, pipe) }

	res, err := p.c.cfg.Inbox.Apply(ctx, p.c.cfg.Pool, b)
	process.End(err)
	if res.Next == 0 {
		return 0, err
	}
	p.sequences.stored()
	p.crash.passed(res.Next)
	p.report(b.Events, res)
	done := 0
	for done < len(records) && records[done].Offset < res.Next {
		done++
	}
	p.c.commits.committed(p, res.Next, records[done-1].LeaderEpoch, process.Context())
	p.adapt(done, res.Duration)
	p.replaying = !slices.ContainsFunc(res.Handled, func(h inbox.Handled) bool { return h.Outcome != inbox.Duplicate })
	return done, err
}

// redeliver repeats the configured share of the records.
func (p *partition) redeliver(records []*kgo.Record) []*kgo.Record {
	share := p.c.cfg.Redeliver
	if share <= 0 {
		return records
	}
	out := make([]*kgo.Record, 0, len(records)+8)
	for _, r := range records {
		if out = append(out, r); rand.Float64() < share {
			out = append(out, r)
		}
	}
	return out
}

// adapt keeps transactions short: other consumers wait for a batch's locks,
// and a crash repeats a whole batch. It does not go below a quarter: what is
// left then is waiting for the disk, which a smaller batch does not shorten.
func (p *partition) adapt(n int, took time.Duration) {
	size := p.c.cfg.BatchSize
	switch target := p.c.cfg.TargetLatency; {
	case took > target && n >= p.limit/2:
		p.limit = max(p.limit*4/5, min(max(size/4, 10), size))
	case took < target/2 && n == p.limit:
		p.limit = min(p.limit+p.limit/8+1, size)
	}
}

// report counts and logs each event as if it had been alone in its
// transaction.
func (p *partition) report(events []inbox.Event, res inbox.Result) {
	log := p.c.cfg.Log
	debug := log.Enabled(p.ctx, slog.LevelDebug)
	for i, h := range res.Handled {
		ev := events[i]
		switch h.Outcome {
		case inbox.Processed:
			p.m.Processed.Inc()
		case inbox.Duplicate:
			p.m.Duplicate.Inc()
			switch h.Origin {
			case inbox.SameOffset:
				p.m.SameOffset.Inc()
			case inbox.OtherOffset:
				p.m.OtherOffset.Inc()
			}
		case inbox.DeadLettered:
			p.m.DeadLettered(h.Reason)
			if h.Reason == inbox.ReasonIDConflict {
				p.m.OtherOffset.Inc() // the producer used the id again
			}
			attrs := append(p.attrs(ev), "reason", h.Reason, "attempts", h.Attempts, "error", h.Err)
			if h.Reason == inbox.ReasonIDConflict {
				attrs = append(attrs, "first_partition", h.FirstPartition, "first_offset", h.FirstOffset)
			}
			log.Warn("event dead-lettered", attrs...)
			continue
		}
		p.m.Observe(res.Duration, ev.TraceID)
		if debug {
			attrs := append(p.attrs(ev), "outcome", h.Outcome.String())
			if h.Outcome == inbox.Duplicate {
				attrs = append(attrs, "origin", h.Origin.String(), "first_partition", h.FirstPartition, "first_offset", h.FirstOffset)
			}
			log.Debug("event handled", attrs...)
		}
	}
}

// attrs are the fields every log line about an event carries.
func (p *partition) attrs(ev inbox.Event) []any {
	attrs := []any{"event_id", ev.ID, "consumer_group", p.c.cfg.Inbox.Group(), "topic", p.topic, "partition", p.id, "offset", ev.Offset}
	if ev.TraceID != "" {
		attrs = append(attrs, "trace_id", ev.TraceID)
	}
	return attrs
}

// load reads what earlier owners of the partition left in the database.
func (p *partition) load(offset int64, topicID [16]byte) error {
	if p.sequences != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	seqs, err := loadSequences(ctx, p)
	if err != nil {
		return err
	}
	guard, err := beginAt(ctx, p, offset, topicID)
	if err != nil {
		return err
	}
	p.sequences, p.crash = seqs, guard
	return nil
}
