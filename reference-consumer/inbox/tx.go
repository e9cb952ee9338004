package inbox

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
)

// ErrTxClosed says that a Tx was used after its handler had returned, or after
// the handler had been given up.
var ErrTxClosed = errors.New("the handler's Tx is closed: it ends when the handler returns, or when its time is up")

// ErrTxBusy says that a statement was to run while the rows of a Query were
// being read on the same connection.
var ErrTxBusy = errors.New("the rows of a Query are still being read: Queue the statement, or run it after the Query")

// Tx is all a handler gets of the transaction that holds its event's marker:
// enough to write and read, not enough to end it or to reach another
// connection. It closes when the handler returns.
type Tx struct {
	mu      sync.Mutex
	s       *session
	index   int
	err     error
	closed  bool
	reading bool
	// ran says that something was sent already: then only the whole
	// transaction can be taken back.
	ran bool
}

// Queue adds a statement to the batch's pipeline. It is sent with those of the
// other events, in order; should it fail, this event is to blame. Prefer it to
// Exec: a whole batch then costs one round trip.
func (t *Tx) Queue(sql string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.check(sql, args) != nil {
		return
	}
	t.s.pending = append(t.s.pending, statement{t.index, sql, args})
}

// Exec runs a statement now, after those queued before it, and returns the
// number of rows it affected.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(ctx, sql, args); err != nil {
		return 0, err
	}
	// Not conn.Exec: without arguments it uses the simple protocol, in which one
	// string may hold several statements.
	rows, err := t.s.conn.Query(ctx, sql, args...)
	if err != nil {
		return 0, t.keep(err)
	}
	rows.Close()
	return rows.CommandTag().RowsAffected(), t.keep(rows.Err())
}

// QueryRow runs a query now and scans its first row; pgx.ErrNoRows without one.
func (t *Tx) QueryRow(ctx context.Context, sql string, args []any, dest ...any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(ctx, sql, args); err != nil {
		return err
	}
	err := t.s.conn.QueryRow(ctx, sql, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return t.keep(err)
}

// Query runs a query now and calls row for each row. Within row, statements can
// be queued and not run: the connection is busy.
func (t *Tx) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	rows, err := t.open(ctx, sql, args)
	if err != nil {
		return err
	}
	defer t.done(rows)
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keep(rows.Err())
}

func (t *Tx) open(ctx context.Context, sql string, args []any) (pgx.Rows, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(ctx, sql, args); err != nil {
		return nil, err
	}
	rows, err := t.s.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, t.keep(err)
	}
	t.reading = true
	return rows, nil
}

func (t *Tx) done(rows pgx.Rows) {
	rows.Close()
	t.mu.Lock()
	t.reading = false
	t.mu.Unlock()
}

// ready refuses what may not run and sends what was queued before.
func (t *Tx) ready(ctx context.Context, sql string, args []any) error {
	if err := t.check(sql, args); err != nil {
		return err
	}
	if t.reading {
		return t.keep(ErrTxBusy)
	}
	t.ran = true
	if err := t.s.flush(ctx); err != nil {
		t.err = err
		return err
	}
	return nil
}

func (t *Tx) check(sql string, args []any) error {
	if t.closed || t.s.left.Load() {
		return ErrTxClosed
	}
	if t.err == nil {
		t.err = refuse(sql, args)
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
