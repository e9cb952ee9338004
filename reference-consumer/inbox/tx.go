package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Tx is all a handler gets of the transaction that holds its event's marker:
// enough to write and read, not enough to end it or to reach another
// connection. It closes when the handler returns.
type Tx struct {
	mu     sync.Mutex
	s      *session
	index  int
	err    error
	closed bool
}

// Queue adds a statement to the batch's pipeline. It is sent with those of the
// other events, in order; should it fail, this event is to blame. Prefer it to
// Exec: a whole batch then costs one round trip.
func (t *Tx) Queue(sql string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.check(sql) != nil {
		return
	}
	t.s.pending.Queue(sql, args...)
	t.s.owners = append(t.s.owners, t.index)
}

// Exec runs a statement now, after those queued before it, and returns the
// number of rows it affected.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(ctx, sql); err != nil {
		return 0, err
	}
	tag, err := t.s.conn.Exec(ctx, sql, args...)
	return tag.RowsAffected(), t.keep(err)
}

// QueryRow runs a query now and scans its first row; pgx.ErrNoRows without one.
func (t *Tx) QueryRow(ctx context.Context, sql string, args []any, dest ...any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(ctx, sql); err != nil {
		return err
	}
	err := t.s.conn.QueryRow(ctx, sql, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return t.keep(err)
}

// Query runs a query now and calls row for each row.
func (t *Tx) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(ctx, sql); err != nil {
		return err
	}
	rows, err := t.s.conn.Query(ctx, sql, args...)
	if err != nil {
		return t.keep(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return t.keep(rows.Err())
}

// ready refuses what may not run and sends what was queued before.
func (t *Tx) ready(ctx context.Context, sql string) error {
	if err := t.check(sql); err != nil {
		return err
	}
	if err := t.s.flush(ctx); err != nil {
		t.err = err
		return err
	}
	return nil
}

func (t *Tx) check(sql string) error {
	if t.closed {
		return ErrTxClosed
	}
	if t.err == nil && controlsTransaction(sql) {
		t.err = fmt.Errorf("%w: %q", ErrTransactionControl, sql)
	}
	return t.err
}

// keep remembers the first error: a handler that ignores it does not get its
// event past the inbox.
func (t *Tx) keep(err error) error {
	if err != nil && t.err == nil {
		t.err = err
	}
	return err
}

func (t *Tx) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return t.err
}

// session is one attempt at one batch on one connection.
type session struct {
	conn    *pgx.Conn
	pending *pgx.Batch
	owners  []int // index of the event behind each pending statement
	events  []Event
}

// flush sends the pending statements in one round trip. A failure is pinned on
// the event whose statement failed.
func (s *session) flush(ctx context.Context) error {
	if s.pending.Len() == 0 {
		return nil
	}
	pending, owners := s.pending, s.owners
	s.pending, s.owners = &pgx.Batch{}, nil
	results := s.conn.SendBatch(ctx, pending)
	for i, owner := range owners {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			// The first error may be one of preparing any statement of the
			// batch, so it can only be pinned if all belong to one event.
			sure := i > 0 || owners[0] == owners[len(owners)-1]
			return &pipelineError{index: owner, sure: sure, err: err}
		}
	}
	if err := results.Close(); err != nil {
		return fmt.Errorf("%w: %w", errConnection, err)
	}
	return nil
}

// pipelineError is a failed statement and the event that queued it.
type pipelineError struct {
	index int
	sure  bool
	err   error
}

func (e *pipelineError) Error() string { return e.err.Error() }
func (e *pipelineError) Unwrap() error { return e.err }

// inTransaction says whether the transaction is still open and sound.
func (s *session) inTransaction() bool { return s.conn.PgConn().TxStatus() == 'T' }
