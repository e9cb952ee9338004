package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/retry"
	"oncewatch/reference-consumer/telemetry"
)

// partition is one assignment of one partition and the worker that handles its
// records in order.
type partition struct {
	place
	label    string
	cfg      *Config
	log      *slog.Logger // with the place
	metrics  *telemetry.Consumer
	m        *telemetry.Topic
	commits  *committer
	trials   *semaphore.Weighted
	queue    *queue
	position position
	running  inbox.Running

	mu      sync.Mutex
	topicID [16]byte

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

func (c *consumer) startPartition(client *kgo.Client, topic string, id int32) *partition {
	ctx, cancel := context.WithCancel(context.Background())
	self := map[string][]int32{topic: {id}}
	at := place{c.group, topic, id}
	log := c.cfg.Log.With("consumer_group", c.group, "topic", topic, "partition", id)
	p := &partition{
		place: at, label: strconv.Itoa(int(id)), cfg: &c.cfg, log: log, metrics: c.metrics, m: c.topics[topic], commits: c.commits, trials: c.trials,
		queue:    newQueue(func() { client.PauseFetchPartitions(self) }, func() { client.ResumeFetchPartitions(self) }),
		position: position{next: -1},
		ctx:      ctx, cancel: cancel, stopping: make(chan struct{}), done: make(chan struct{}),
		limit: c.cfg.BatchSize,
		crash: crashGuard{place: at, pool: c.cfg.Pool, log: log, limit: c.cfg.CrashLimit, batch: int64(c.cfg.BatchSize), begun: -1},
	}
	c.metrics.Partition(topic, p.label)
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

func (p *partition) setTopicID(id [16]byte) {
	p.mu.Lock()
	p.topicID = id
	p.mu.Unlock()
}

func (p *partition) run() {
	defer close(p.done)
	defer p.cancel()
	defer p.crash.over()
	defer p.metrics.Stopped(p.topic, p.label, false)
	for !p.isStopping() {
		records := p.queue.next(p.limit)
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
		t := time.NewTimer(p.cfg.GapGrace / 4)
		defer t.Stop()
		tick = t.C
	}
	select {
	case <-p.queue.wake:
	case <-p.stopping:
	case <-p.ctx.Done():
	case <-tick:
		p.sequences.expireAndSave(p.ctx, p.cfg.Now())
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
			p.metrics.Stopped(p.topic, p.label, false)
			continue
		}
		p.crash.over()
		if p.isStopping() {
			return false
		}
		if !p.stuck(err) {
			return false
		}
	}
	return true
}

// maxLeft is how many handlers may have been left behind by a partition until
// it waits for one of them before it tries again.
const maxLeft = 4

// stuck handles an event that can neither be applied nor passed: this
// partition waits, the others go on. A handler that breaks the transaction's
// rules would only do so again, so then the partition waits for a restart.
func (p *partition) stuck(err error) bool {
	p.metrics.Stopped(p.topic, p.label, true)
	log := p.log
	var ee *inbox.EventError
	if errors.As(err, &ee) && ee.Index >= 0 {
		log = log.With(eventAttrs(ee.Event)...)
		err = ee.Err
	}
	if inbox.Classify(err) == inbox.ClassBug {
		log.Error("partition stopped until the handler is mended and the consumer restarted", "error", err)
		select {
		case <-p.stopping:
		case <-p.ctx.Done():
		}
		return false
	}
	pause := p.cfg.PauseFor
	if ee == nil && inbox.Classify(err) == inbox.ClassTransient {
		pause = min(pause, time.Second) // nothing was tried yet: the database is away for a moment
	}
	log.Error("partition paused: the event can neither be handled nor passed", "error", err, "retry_in", pause)
	for first := true; first || p.running.Left() >= maxLeft; first = false {
		p.rest(pause)
		if p.isStopping() {
			break
		}
	}
	return true
}

// rest for a time, or until the worker is to end.
func (p *partition) rest(d time.Duration) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	go func() {
		select {
		case <-p.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	_ = retry.Wait(ctx, d)
}

// everybody is the weight of what must run alone in the process.
const everybody = 1 << 20

// handle applies the first records and returns how many are done.
func (p *partition) handle(records []*kgo.Record) (int, error) {
	p.mu.Lock()
	topicID := p.topicID
	p.mu.Unlock()
	b := inbox.Batch{Topic: p.topic, TopicID: topicID, Partition: p.id, Replay: p.replaying, Running: &p.running, OnRetry: func(error, int) { p.m.Retries.Inc() }}
	if err := p.load(records[0].Offset, topicID); err != nil {
		return 0, err
	}
	weight := int64(1)
	if offset := records[0].Offset; p.crash.careful(offset) {
		records, weight = records[:1], everybody
		blame, err := p.crash.verdict(p.ctx, offset)
		if err != nil {
			return 0, err
		}
		if blame != nil {
			b.Blame = map[int]error{0: blame}
		}
		b.Trial = p.crash.trial(offset)
	}
	if err := p.trials.Acquire(p.ctx, weight); err != nil {
		return 0, err
	}
	defer p.trials.Release(weight)

	b.Next = records[len(records)-1].Offset + 1
	deliveries := p.deliveries(records)
	ctx, process := p.cfg.Tracer.Process(p.ctx, p.topic, p.id, deliveries)
	traceID, traceParent := process.TraceID(), process.TraceParent()
	b.Events = make([]inbox.Event, len(deliveries))
	now := p.cfg.Now()
	for i, r := range deliveries {
		b.Events[i] = decode(p.cfg.Decode, r)
		b.Events[i].TraceID, b.Events[i].TraceParent = traceID, traceParent
	}
	for _, r := range records {
		if isLost(r) {
			p.sequences.jump()
		} else {
			p.sequences.see(r, now)
		}
	}
	p.sequences.expire(now)
	b.Also = func(pipe *pgx.Batch) { p.sequences.store(pipe); p.crash.store(pipe) }

	res, err := p.cfg.Inbox.Apply(ctx, p.cfg.Pool, b)
	process.End(err)
	if res.Next == 0 {
		return 0, err
	}
	p.sequences.stored()
	p.crash.stored(res.Next)
	p.report(b.Events, res)
	done := 0
	for done < len(records) && records[done].Offset < res.Next {
		done++
	}
	p.commits.committed(p, res.Next, records[done-1].LeaderEpoch, process.Context())
	p.adapt(done, res.Duration)
	p.replaying = len(res.Handled) > 0 && !slices.ContainsFunc(res.Handled, func(h inbox.Handled) bool { return h.Outcome != inbox.Duplicate })
	return done, err
}

// decode a record. A panic is the record's error.
func decode(f func(*kgo.Record) inbox.Event, r *kgo.Record) (ev inbox.Event) {
	defer func() {
		if v := recover(); v != nil {
			ev = event(r)
			ev.Err = fmt.Errorf("decoding panicked: %w", &inbox.PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	return f(r)
}

// deliveries are the records that are events, the configured share of them
// twice.
func (p *partition) deliveries(records []*kgo.Record) []*kgo.Record {
	share := p.cfg.Redeliver
	out := make([]*kgo.Record, 0, len(records))
	for _, r := range records {
		if !isEvent(r) {
			continue
		}
		if out = append(out, r); share > 0 && rand.Float64() < share {
			out = append(out, r)
		}
	}
	return out
}

// adapt keeps transactions short: other consumers wait for a batch's locks,
// and a crash repeats a whole batch. It does not go below a quarter: what is
// left then is waiting for the disk, which a smaller batch does not shorten.
func (p *partition) adapt(n int, took time.Duration) {
	size := p.cfg.BatchSize
	switch target := p.cfg.TargetLatency; {
	case took > target && n >= p.limit/2:
		p.limit = max(p.limit*4/5, min(max(size/4, 10), size))
	case took < target/2 && n == p.limit:
		p.limit = min(p.limit+p.limit/8+1, size)
	}
}

// report counts and logs each event as if it had been alone in its
// transaction.
func (p *partition) report(events []inbox.Event, res inbox.Result) {
	debug := p.log.Enabled(p.ctx, slog.LevelDebug)
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
			attrs := append(eventAttrs(ev), "reason", h.Reason, "attempts", h.Attempts, "error", h.Err)
			if h.Reason == inbox.ReasonIDConflict {
				attrs = append(attrs, "first_partition", h.FirstPartition, "first_offset", h.FirstOffset)
			}
			p.log.Warn("event dead-lettered", attrs...)
			continue
		}
		p.m.Observe(res.Duration, ev.TraceID)
		if debug {
			attrs := append(eventAttrs(ev), "outcome", h.Outcome.String())
			if h.Outcome == inbox.Duplicate {
				attrs = append(attrs, "origin", h.Origin.String(), "first_partition", h.FirstPartition, "first_offset", h.FirstOffset)
			}
			p.log.Debug("event handled", attrs...)
		}
	}
}

// eventAttrs are what a log line about an event carries besides its place.
func eventAttrs(ev inbox.Event) []any {
	attrs := []any{"event_id", ev.ID, "offset", ev.Offset}
	if ev.TraceID != "" {
		attrs = append(attrs, "trace_id", ev.TraceID)
	}
	return attrs
}

// load reads what earlier owners of the partition left in the database, and
// counts the beginning.
func (p *partition) load(offset int64, topicID [16]byte) error {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	if p.sequences == nil {
		s, err := loadSequences(ctx, p.cfg.Pool, p.place)
		if err != nil {
			return err
		}
		s.log, s.grace = p.log, p.cfg.GapGrace
		s.lost = func(n int64) { p.metrics.Lost(p.topic, p.label, float64(n)) }
		p.sequences = s
	}
	return p.crash.begin(ctx, offset, topicID)
}
