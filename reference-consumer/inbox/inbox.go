// Package inbox applies events exactly once to a PostgreSQL database: the
// marker of an event and its effect are written in one transaction, the marker
// first, and an event whose marker exists is skipped. It works with any broker
// that delivers at least once.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/reference-consumer/retry"
)

// Handler applies the effect of one event. Everything it writes must go
// through tx; it may be called again for the same event when an attempt at its
// batch failed. Handlers of one batch run one after another. A panic is the
// event's error.
type Handler func(ctx context.Context, tx *Tx, ev Event) error

// BatchHandler applies the effects of all fresh events of a batch at once, for
// effects that a set-based statement does faster. When it fails, the batch is
// done again with the Handler, which tells the failing event.
type BatchHandler func(ctx context.Context, tx *Tx, evs []Event) error

// Config of an Inbox.
type Config struct {
	// Group is the first half of the marker's key: consumers of different
	// groups do not shadow each other.
	Group   string
	Handler Handler
	// BatchHandler is optional.
	BatchHandler BatchHandler

	// StatementTimeout bounds each statement, IdleTimeout the time the server
	// keeps a transaction whose client has stopped: a stopped process must not
	// hold its markers against the partition's next owner. Defaults 10 s, 5 s.
	StatementTimeout, IdleTimeout time.Duration
	// TransactionTimeout bounds one attempt; default 30 s. Below the group's
	// rebalance timeout.
	TransactionTimeout time.Duration
	// HandlerTimeout bounds one call of a handler; default 20 s, at most the
	// TransactionTimeout. Its context is then cancelled; one that ignores that
	// is left behind, and its transaction cannot commit.
	HandlerTimeout time.Duration

	// MaxAttempts at a batch that fails without being the data's fault;
	// default 8. Backoff between them starts at BackoffBase (100 ms), doubles
	// up to BackoffMax (5 s) and is jittered.
	MaxAttempts             int
	BackoffBase, BackoffMax time.Duration
	// Sleep waits between attempts; default a timer.
	Sleep func(context.Context, time.Duration) error
	// Log; default none.
	Log *slog.Logger

	// NoFold sends every queued statement as it was queued. By default equal
	// INSERTs of a batch are sent as one, where that leaves the same tables.
	NoFold bool

	// Failpoint is called at named boundaries; for crash tests only.
	Failpoint func(name string)
}

// Inbox of one consumer group. Safe for concurrent use by many partitions.
type Inbox struct {
	cfg Config
	// careful is how many more batches run with savepoints: the database
	// refused an event lately, and where there is one there are more.
	careful atomic.Int32
	// unfolded statements; nil where none are folded.
	unfolded *unfolded
}

// New checks the configuration.
func New(cfg Config) (*Inbox, error) {
	if cfg.Group == "" {
		return nil, errors.New("inbox: the consumer group is empty: without it, consumers shadow each other's markers")
	}
	if cfg.Handler == nil {
		return nil, errors.New("inbox: a Handler is required")
	}
	positive(&cfg.StatementTimeout, 10*time.Second)
	positive(&cfg.IdleTimeout, 5*time.Second)
	positive(&cfg.TransactionTimeout, 30*time.Second)
	positive(&cfg.HandlerTimeout, min(20*time.Second, cfg.TransactionTimeout))
	positive(&cfg.MaxAttempts, 8)
	positive(&cfg.BackoffBase, 100*time.Millisecond)
	positive(&cfg.BackoffMax, 5*time.Second)
	if cfg.HandlerTimeout > cfg.TransactionTimeout {
		return nil, fmt.Errorf("inbox: the handler timeout (%s) is above the transaction timeout (%s): it would never be reached", cfg.HandlerTimeout, cfg.TransactionTimeout)
	}
	if cfg.Sleep == nil {
		cfg.Sleep = retry.Wait
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Failpoint == nil {
		cfg.Failpoint = func(string) {}
	}
	in := &Inbox{cfg: cfg}
	if !cfg.NoFold {
		in.unfolded = &unfolded{sql: map[string]bool{}}
	}
	return in, nil
}

func positive[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Group the inbox belongs to.
func (in *Inbox) Group() string { return in.cfg.Group }

// Batch of events of one partition, in offset order.
type Batch struct {
	Topic     string
	TopicID   [16]byte
	Partition int32
	Events    []Event
	// Next is the offset to go on from after the batch; 0 where there is no
	// broker behind the batch: no progress is kept then.
	Next int64
	// Replay says that most events are expected to be duplicates: they are
	// looked up before any marker is inserted, which halves the work.
	Replay bool
	// Blame dead-letters an event without trying it (by index).
	Blame map[int]error
	// Also adds statements to the transaction, for state that must move with
	// the offset.
	Also func(*pgx.Batch)
	// Trial is called before each call of a handler, and what it returns after
	// the handler has returned.
	Trial func(context.Context) (returned func(), err error)
	// Running is told of the handlers that run; may be nil.
	Running *Running
	// OnRetry is told of each failed attempt that will be repeated.
	OnRetry func(err error, attempt int)
}

// upTo is the batch without the events from i on.
func (b Batch) upTo(i int) Batch {
	b.Next, b.Events = b.Events[i].Offset, b.Events[:i]
	return b
}

// from is the batch without the events before i.
func (b Batch) from(i int) Batch {
	b.Events = b.Events[i:]
	blame := map[int]error{}
	for k, err := range b.Blame {
		if k >= i {
			blame[k-i] = err
		}
	}
	b.Blame = blame
	return b
}

// Result of Apply.
type Result struct {
	// Handled holds what became of the first events of the batch: of all of
	// them unless Apply also returned an error.
	Handled []Handled
	// Next is the offset to commit to the broker; 0 if nothing was applied.
	Next int64
	// Duration of the transaction that succeeded.
	Duration time.Duration
	// Retries is the number of failed attempts on the way.
	Retries int
}

// Apply handles a batch: in one transaction the markers, the effects of the
// events that were new, the dead letters and the next offset.
//
// Events whose own data is wrong go to the dead letters and the rest succeeds.
// What is nobody's fault is retried; if it lasts, or if an error is not to be
// helped by retrying, the events before the failing one are applied and the
// error is returned as an *EventError together with what was achieved.
func (in *Inbox) Apply(ctx context.Context, pool *pgxpool.Pool, b Batch) (Result, error) {
	p := newPlan(b)
	retries := 0
	for {
		p.attempt = retries + 1
		res, err := in.attempt(ctx, pool, b, p)
		if err == nil {
			if n := in.careful.Load(); n > 0 {
				in.careful.CompareAndSwap(n, n-1)
			}
			res.Retries = retries
			return res, nil
		}
		if ctx.Err() != nil {
			return Result{Retries: retries}, &EventError{Index: -1, Err: ctx.Err()}
		}
		again, err := in.learn(ctx, b, p, err, &retries)
		if again {
			continue
		}
		var split *splitError
		if errors.As(err, &split) {
			return in.halves(ctx, pool, b, retries)
		}
		return in.prefix(ctx, pool, b, p, err, retries)
	}
}

// carefulBatches is how long savepoints are kept after the database has refused
// an event. At 1 % of such events and 200 a batch all but every seventh batch
// has one.
const carefulBatches = 32

// learn draws the conclusion from a failed attempt: true to try again with
// what the plan now knows.
func (in *Inbox) learn(ctx context.Context, b Batch, p *plan, err error, retries *int) (bool, error) {
	if errors.Is(err, errReplan) {
		return true, nil
	}
	ee := blame(b, err)
	class := Classify(err)
	if class == ClassData {
		in.careful.Store(carefulBatches)
	}
	switch {
	case class == ClassData && ee.Index >= 0:
		p.deadLetter(ee.Index, ee.Err, *retries+1)
		return true, nil
	case class != ClassTransient && p.unsure(err):
		return true, nil
	case class == ClassBug:
		return false, ee
	case class == ClassData && len(b.Events) > 1:
		return false, &splitError{}
	case class == ClassData && len(p.dead) == 0:
		p.deadLetter(0, err, *retries+1)
		return true, nil
	case class == ClassData:
		return false, ee
	case class == ClassConfig && !p.oneByOne && len(b.Events) > 1 && !errors.Is(err, ErrHandlerTimeout):
		// An event before it may have changed what it found.
		p.oneByOne = true
		return true, nil
	case class == ClassConfig:
		return false, ee
	}
	*retries++
	var panicked *PanicError
	if *retries == 1 && errors.As(err, &panicked) {
		in.cfg.Log.Error("the handler panicked", append(in.attrs(b, ee), "panic", fmt.Sprint(panicked.Value), "stack", string(panicked.Stack))...)
	}
	if *retries >= in.cfg.MaxAttempts {
		if class == ClassHandler && ee.Index >= 0 {
			p.deadLetter(ee.Index, ee.Err, *retries)
			*retries = 0
			return true, nil
		}
		return false, ee
	}
	if b.OnRetry != nil {
		b.OnRetry(ee, *retries)
	}
	in.cfg.Log.Debug("attempt failed, trying again", append(in.attrs(b, ee), "attempt", *retries, "error", ee.Err)...)
	if err := in.cfg.Sleep(ctx, retry.Backoff(in.cfg.BackoffBase, in.cfg.BackoffMax, *retries)); err != nil {
		return false, &EventError{Index: -1, Err: err}
	}
	return true, nil
}

// prefix applies what comes before the event that cannot be passed.
func (in *Inbox) prefix(ctx context.Context, pool *pgxpool.Pool, b Batch, p *plan, err error, retries int) (Result, error) {
	var ee *EventError
	if !errors.As(err, &ee) || ee.Index <= 0 || ctx.Err() != nil {
		return Result{Retries: retries}, err
	}
	head := b.upTo(ee.Index)
	res, headErr := in.attempt(ctx, pool, head, p)
	res.Retries = retries
	if headErr != nil {
		return Result{Retries: retries}, err
	}
	return res, err
}

// halves looks for the event behind an error that only showed when the batch
// was committed (a deferred constraint).
func (in *Inbox) halves(ctx context.Context, pool *pgxpool.Pool, b Batch, retries int) (Result, error) {
	mid := len(b.Events) / 2
	head, err := in.Apply(ctx, pool, b.upTo(mid))
	head.Retries += retries
	if err != nil {
		return head, err
	}
	tail, err := in.Apply(ctx, pool, b.from(mid))
	var ee *EventError
	if errors.As(err, &ee) && ee.Index >= 0 {
		ee.Index += mid
	}
	res := Result{
		Handled:  append(head.Handled, tail.Handled...),
		Next:     max(head.Next, tail.Next),
		Duration: max(head.Duration, tail.Duration),
		Retries:  head.Retries + tail.Retries,
	}
	return res, err
}

// blame finds the event behind an error, if there is one.
func blame(b Batch, err error) *EventError {
	var ee *EventError
	if errors.As(err, &ee) {
		return ee
	}
	var pe *pipelineError
	if errors.As(err, &pe) && pe.sure && pe.index >= 0 {
		return &EventError{Index: pe.index, Event: b.Events[pe.index], Err: pe.err}
	}
	return &EventError{Index: -1, Err: err}
}

// splitError asks for the batch to be halved.
type splitError struct{}

func (*splitError) Error() string { return "the failing event is not known" }

// attrs are the log fields of an event, or of its partition alone.
func (in *Inbox) attrs(b Batch, ee *EventError) []any {
	attrs := []any{"consumer_group", in.cfg.Group, "topic", b.Topic, "partition", b.Partition}
	if ee.Index >= 0 {
		attrs = append(attrs, "event_id", ee.Event.ID, "offset", ee.Event.Offset)
		if ee.Event.TraceID != "" {
			attrs = append(attrs, "trace_id", ee.Event.TraceID)
		}
	}
	return attrs
}

// Timeouts in force: of a statement, of an idle transaction, of an attempt.
func (in *Inbox) Timeouts() (statement, idle, transaction time.Duration) {
	return in.cfg.StatementTimeout, in.cfg.IdleTimeout, in.cfg.TransactionTimeout
}
