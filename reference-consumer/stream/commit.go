package stream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/trace"

	"oncewatch/reference-consumer/retry"
	"oncewatch/reference-consumer/telemetry"
)

// achieved is what one assignment of a partition has achieved. It ends with
// the assignment: whoever gets the partition next has a record of its own.
type achieved struct {
	topic     string
	partition int32
	next      int64 // committed to the database; 0: nothing yet
	epoch     int32
	sent      int64     // in the offset commit in flight
	acked     int64     // committed to the broker
	waiting   time.Time // database commit of the oldest offset not yet acknowledged
	unsent    time.Time // database commit of the oldest offset not yet sent
	newest    time.Time // database commit of next
	gap       time.Duration
	covers    []trace.SpanContext // transactions the next offset commit covers
}

// committer commits offsets, one request at a time for all partitions, each
// after the database commit that it covers.
type committer struct {
	log       *slog.Logger
	tracer    *telemetry.Tracer
	now       func() time.Time
	failpoint func(string)
	client    *kgo.Client
	fail      func(error) // ends the consumer

	wake   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}

	// sending serializes requests; a revocation waits for the one in flight.
	sending sync.Mutex
	mu      sync.Mutex
	all     map[*partition]*achieved
}

const commitTimeout = 5 * time.Second

func newCommitter(log *slog.Logger, tracer *telemetry.Tracer, now func() time.Time, failpoint func(string)) *committer {
	return &committer{log: log, tracer: tracer, now: now, failpoint: failpoint, wake: make(chan struct{}, 1), done: make(chan struct{}), all: map[*partition]*achieved{}}
}

// start committing with the consuming client.
func (m *committer) start(client *kgo.Client, fail func(error)) {
	m.client, m.fail = client, fail
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go m.run(ctx)
}

func (m *committer) stop() {
	m.cancel()
	<-m.done
}

func (m *committer) run(ctx context.Context) {
	defer close(m.done)
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		if err := m.send(ctx, nil); err != nil {
			failures++
			if retry.Wait(ctx, retry.Backoff(100*time.Millisecond, 1600*time.Millisecond, failures)) != nil {
				return
			}
			m.signal()
			continue
		}
		failures = 0
	}
}

func (m *committer) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// register begins a new assignment.
func (m *committer) register(p *partition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[p] = &achieved{topic: p.topic, partition: p.id, epoch: -1}
}

// committed notes a database commit up to next.
func (m *committer) committed(p *partition, next int64, epoch int32, span trace.SpanContext) {
	m.mu.Lock()
	if pos := m.all[p]; pos != nil {
		now := m.now()
		if next < pos.next { // the topic was created anew
			pos.sent, pos.acked = 0, 0
		}
		if pos.next <= pos.acked {
			pos.waiting = now
		}
		if pos.next <= pos.sent {
			pos.unsent = now
		}
		pos.next, pos.epoch, pos.newest = next, epoch, now
		if span.IsSampled() {
			pos.covers = append(pos.covers, span)
		}
	}
	m.mu.Unlock()
	m.signal()
}

// final commits what the partitions have achieved and ends their assignment.
func (m *committer) final(ctx context.Context, parts []*partition) {
	if err := m.send(ctx, parts); err != nil {
		m.log.Warn("final offset commit failed: the events will be redelivered and skipped", "error", err)
	}
	m.forget(parts)
}

// forget ends assignments without a commit.
func (m *committer) forget(parts []*partition) {
	m.sending.Lock()
	defer m.sending.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range parts {
		delete(m.all, p)
	}
}

// pending is what the database has and the broker has not, of all partitions
// or of those given.
func (m *committer) pending(only []*partition) (map[string]map[int32]kgo.EpochOffset, map[string]map[int32]*achieved) {
	m.mu.Lock()
	defer m.mu.Unlock()
	offsets := map[string]map[int32]kgo.EpochOffset{}
	positions := map[string]map[int32]*achieved{}
	add := func(pos *achieved) {
		if pos == nil || pos.next <= pos.acked {
			return
		}
		if offsets[pos.topic] == nil {
			offsets[pos.topic] = map[int32]kgo.EpochOffset{}
			positions[pos.topic] = map[int32]*achieved{}
		}
		pos.sent = pos.next
		offsets[pos.topic][pos.partition] = kgo.EpochOffset{Epoch: pos.epoch, Offset: pos.next}
		positions[pos.topic][pos.partition] = pos
	}
	if only != nil {
		for _, p := range only {
			add(m.all[p])
		}
		return offsets, positions
	}
	for _, pos := range m.all {
		add(pos)
	}
	return offsets, positions
}

// send commits what is pending and reads the answer of every partition.
func (m *committer) send(ctx context.Context, only []*partition) error {
	m.sending.Lock()
	defer m.sending.Unlock()
	offsets, positions := m.pending(only)
	if len(offsets) == 0 {
		return nil
	}
	m.failpoint("before_offset_commit")
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	var failed error
	for topic, covers := range m.covered(positions) {
		end := m.tracer.Commit(ctx, topic, covers)
		defer func() { end(failed) }()
	}
	m.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			failed = err
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					m.refused(t.Topic, p.Partition, err)
					failed = errors.Join(failed, err)
					continue
				}
				if pos := positions[t.Topic][p.Partition]; pos != nil {
					m.acked(pos, offsets[t.Topic][p.Partition].Offset)
				}
			}
		}
	})
	m.failpoint("after_offset_commit")
	return failed
}

// covered takes the transactions that an offset commit covers, by topic.
func (m *committer) covered(positions map[string]map[int32]*achieved) map[string][]trace.SpanContext {
	if m.tracer == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]trace.SpanContext{}
	for topic, parts := range positions {
		out[topic] = nil
		for _, pos := range parts {
			out[topic] = append(out[topic], pos.covers...)
			pos.covers = nil
		}
	}
	return out
}

// acked notes that the broker has the offset.
func (m *committer) acked(pos *achieved, offset int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	pos.acked = offset
	if pos.next > offset {
		pos.waiting = pos.unsent
		return
	}
	pos.gap = now.Sub(pos.newest)
}

// refused handles a partition's refusal. The offset stays pending; a member
// that the group no longer knows must join again before it can commit.
func (m *committer) refused(topic string, partition int32, err error) {
	m.log.Warn("offset commit refused", "topic", topic, "partition", partition, "error", err)
	switch {
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.StaleMemberEpoch):
		m.client.ForceRebalance()
	case fenced(err):
		m.fail(err)
	}
}

// lags is the gap of each assigned partition, as of now.
func (m *committer) lags() []telemetry.Age {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	lags := make([]telemetry.Age, 0, len(m.all))
	for _, pos := range m.all {
		lag := pos.gap
		if pos.next > pos.acked {
			lag = now.Sub(pos.waiting)
		}
		lags = append(lags, telemetry.Age{Topic: pos.topic, Partition: pos.partition, Age: lag})
	}
	return lags
}
