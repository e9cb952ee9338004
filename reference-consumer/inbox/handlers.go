package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// ErrHandlerTimeout says that a handler did not return in time.
var ErrHandlerTimeout = errors.New("the handler did not return in time")

// leftGrace is how long a handler may take to notice that its context has
// ended before it is left behind.
const leftGrace = 500 * time.Millisecond

// PanicError is a panic of a handler: its event's error.
type PanicError struct {
	Value any
	Stack []byte
}

// ErrorType of spans.
func (e *PanicError) ErrorType() string { return ReasonPanic }

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// errNoTransaction says that after a handler the transaction was gone, or had
// failed although the handler reported success.
var errNoTransaction = fmt.Errorf("%w (the transaction was no longer open after it returned)", ErrTransactionControl)

// errExited is a handler that ended its goroutine.
var errExited = errors.New("the handler called runtime.Goexit")

// effects runs the handlers of the fresh events and sends what they queued. A
// handler that neither returns in time nor heeds its context is left behind:
// its session is given up, and so is its transaction.
func (in *Inbox) effects(ctx context.Context, s *session, b Batch, p *plan, handled []Handled) error {
	fresh := make([]int, 0, len(handled))
	for i := range handled {
		if handled[i].Outcome == Processed {
			fresh = append(fresh, i)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c := &call{}
	untrack := b.Running.track(c)
	done := make(chan error, 1)
	go func() {
		defer untrack()
		err := errExited
		defer func() { done <- err }()
		err = in.handlers(ctx, s, b, p, handled, fresh, c)
	}()
	err := in.watch(ctx, stop, s, b, c, done)
	if errors.Is(err, errExited) {
		err = fail(b, int(c.index.Load()), &PanicError{Value: err, Stack: nil})
	}
	return err
}

// watch waits for the handlers, but not for ever.
func (in *Inbox) watch(ctx context.Context, stop context.CancelCauseFunc, s *session, b Batch, c *call, done chan error) error {
	overdue := time.NewTimer(in.cfg.HandlerTimeout)
	defer overdue.Stop()
	for late := false; !late; {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			late = true
		case <-overdue.C:
			if took := c.running(); took < in.cfg.HandlerTimeout {
				overdue.Reset(in.cfg.HandlerTimeout - took)
				continue
			}
			late = true
			stop(ErrHandlerTimeout)
		}
	}
	// From here on the attempt has failed; what remains is how it ends.
	event, took := int(c.index.Load()), c.running()
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrHandlerTimeout) {
		cause = fmt.Errorf("%w: it has been running for %s (--handler-timeout=%s)", cause, took.Round(time.Millisecond), in.cfg.HandlerTimeout)
		in.cfg.Log.Error("a handler does not return", append(in.attrs(b, asEventError(b, event, cause)), "running", took, "handler_timeout", in.cfg.HandlerTimeout)...)
	}
	grace := time.NewTimer(leftGrace)
	defer grace.Stop()
	select {
	case err := <-done:
		if errors.Is(cause, ErrHandlerTimeout) {
			return fail(b, event, cause)
		}
		if err == nil {
			err = cause
		}
		return err
	case <-grace.C:
	}
	c.left.Store(true)
	s.left.Store(true)
	in.cfg.Log.Error("a handler ignores that its context has ended and is left behind; its transaction is given up", append(in.attrs(b, asEventError(b, event, cause)), "running", took)...)
	return fail(b, event, cause)
}

func asEventError(b Batch, i int, err error) *EventError {
	if i < 0 {
		return &EventError{Index: 0, Event: b.Events[0], Err: err} // of all: the first stands for them
	}
	return &EventError{Index: i, Event: b.Events[i], Err: err}
}

// fail pins an error on an event, or on the batch handler.
func fail(b Batch, i int, err error) error {
	if i == setBased {
		return &pipelineError{index: setBased, err: err}
	}
	return &EventError{Index: i, Event: b.Events[i], Err: err}
}

// handlers runs the handlers in offset order and sends what they queued.
func (in *Inbox) handlers(ctx context.Context, s *session, b Batch, p *plan, handled []Handled, fresh []int, c *call) error {
	if in.cfg.BatchHandler != nil && !p.noSet && in.careful.Load() == 0 {
		evs := make([]Event, len(fresh))
		for k, i := range fresh {
			evs[k] = b.Events[i]
		}
		tx := &Tx{s: s, index: setBased}
		err := in.call(ctx, b, tx, c, func() error { return in.cfg.BatchHandler(ctx, tx, evs) })
		if err == nil {
			err = s.finish(ctx)
		}
		if err == nil && !s.inTransaction() {
			err = errNoTransaction
		}
		if err != nil {
			return &pipelineError{index: setBased, err: err}
		}
		return nil
	}
	for _, i := range fresh {
		queued := len(s.pending)
		tx := &Tx{s: s, index: i}
		err := in.call(ctx, b, tx, c, func() error { return in.cfg.Handler(ctx, tx, b.Events[i]) })
		if s.left.Load() {
			return ErrTxClosed // nobody listens
		}
		s.ran[i] = tx.ran
		if err != nil && !tx.ran && !p.repeated[i] && Classify(err) == ClassData {
			// Nothing of it has been sent: it alone is taken out.
			s.pending = s.pending[:queued]
			s.takeOut(handled, i, err, p.attempt)
			continue
		}
		if err == nil && p.oneByOne {
			if err = s.finish(ctx); err != nil {
				err = fail(b, i, err) // all before it were looked at
			}
		}
		if err == nil && !s.inTransaction() {
			err = errNoTransaction
		}
		if err != nil {
			return pin(b, i, err)
		}
	}
	if in.careful.Load() == 0 || p.oneByOne {
		return s.finish(ctx)
	}
	return s.finishCarefully(ctx, func(i int, err error) bool {
		if p.repeated[i] || s.ran[i] {
			return false
		}
		in.careful.Store(carefulBatches)
		s.takeOut(handled, i, err, p.attempt)
		return true
	})
}

// takeOut makes a fresh event a dead letter within the transaction.
func (s *session) takeOut(handled []Handled, i int, err error, attempts int) {
	s.unmark = append(s.unmark, s.events[i].ID)
	handled[i] = Handled{Outcome: DeadLettered, Reason: reason(err), Err: err, Attempts: attempts}
}

// call a handler. What it panicked with is its error.
func (in *Inbox) call(ctx context.Context, b Batch, tx *Tx, c *call, handler func() error) (err error) {
	returned := func() {}
	if b.Trial != nil {
		if returned, err = b.Trial(ctx); err != nil {
			return fmt.Errorf("%w: %w", errConnection, err)
		}
	}
	c.begin(tx.index)
	func() {
		panicking := true
		defer func() {
			if v := recover(); panicking && v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		err = handler()
		panicking = false
	}()
	c.end()
	returned()
	in.cfg.Failpoint("in_effect")
	if swallowed := tx.close(); swallowed != nil {
		err = swallowed
	}
	return err
}

// pin blames the event whose handler failed, unless the error is one of the
// pipeline, which knows better.
func pin(b Batch, i int, err error) error {
	var pe *pipelineError
	if errors.As(err, &pe) {
		return err
	}
	return fail(b, i, err)
}
