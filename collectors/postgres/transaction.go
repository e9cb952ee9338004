package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A snapshot keeps vacuum from removing what is deleted meanwhile, so none is
// held for a second, whatever is done in it.
const (
	// snapshotBudget is how long a transaction goes on starting statements that
	// can wait for the next poll.
	snapshotBudget = 400 * time.Millisecond
	// snapshotTime is when the last of its statements has ended.
	snapshotTime = snapshotBudget + statementTimeout
	// idleTimeout is how long the server waits for the next statement of a
	// client that may have vanished.
	idleTimeout = 700 * time.Millisecond
	// transactionTimeout is when PostgreSQL 17 and later end it by themselves.
	transactionTimeout = 980 * time.Millisecond
)

// beginSQL opens a transaction that can do no harm. row_security = off turns
// policies that would silently hide rows into an error.
const beginSQL = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL statement_timeout = %[1]d; SET LOCAL lock_timeout = %[2]d; SET LOCAL row_security = off;
SET LOCAL idle_in_transaction_session_timeout = %[3]d; SET LOCAL DateStyle = 'ISO'; SET LOCAL standard_conforming_strings = on;
SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL jit = off; SET LOCAL enable_seqscan = %[4]s; SET LOCAL enable_indexscan = %[4]s; SET LOCAL enable_sort = %[4]s`

// bounds of one transaction.
type bounds struct {
	statement time.Duration
	// index is for ranges of the time index: neither sequential scans nor plain
	// index scans. A bitmap visits each page once, which for rows spread over
	// the table (they are, where a pruner frees space) costs a quarter. And no
	// sort: hashing the few groups costs half.
	index bool
}

// transaction is a read-only snapshot. What is asked late in it gets only the
// time that is left.
type transaction struct {
	*pgx.Conn
	began     time.Time
	statement time.Duration // the bound of the next statement
	budget    time.Duration // of what can wait; 0: there is nothing of the kind
}

// errSpent says that a statement was not begun: the snapshot is old enough to
// end, or is lost to a statement that took too long. What has been counted in
// it stands.
var errSpent = errors.New("the snapshot is old enough to end")

// spent says whether there is no time for what can wait.
func (t *transaction) spent() bool {
	return t.budget > 0 && time.Since(t.began) > t.budget || t.PgConn().TxStatus() == 'E'
}

// bound gives the next statement what time there is.
func (t *transaction) bound(ctx context.Context) error {
	left := (snapshotTime - time.Since(t.began)).Truncate(time.Millisecond)
	switch {
	case t.spent() || left <= 0:
		return errSpent
	case left < t.statement:
		t.statement = left
		_, err := t.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", left.Milliseconds()))
		return err
	}
	return nil
}

// Query is that of the connection.
func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.bound(ctx); err != nil {
		return nil, err
	}
	return t.Conn.Query(ctx, sql, args...)
}

// QueryRow is that of the connection.
func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.bound(ctx); err != nil {
		return noRow{err}
	}
	return t.Conn.QueryRow(ctx, sql, args...)
}

type noRow struct{ error }

func (r noRow) Scan(...any) error { return r.error }

// inSnapshot runs f in one read-only snapshot.
func (s *Store) inSnapshot(ctx context.Context, b bounds, f func(conn *transaction) error) error {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release() // a connection that is not idle is closed by it
	conn := &transaction{Conn: pooled.Conn(), began: time.Now(), statement: cmp.Or(b.statement, statementTimeout)}
	others := "on"
	if b.index {
		others = "off"
	}
	sql := fmt.Sprintf(beginSQL, conn.statement.Milliseconds(), lockTimeout.Milliseconds(), idleTimeout.Milliseconds(), others)
	if major(conn.PgConn()) >= 17 {
		sql += fmt.Sprintf("; SET LOCAL transaction_timeout = %d", transactionTimeout.Milliseconds())
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return err
	}
	if err := f(conn); err != nil {
		if conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = conn.Exec(end, "ROLLBACK")
		}
		return err
	}
	_, err = conn.Exec(ctx, "COMMIT")
	return err
}

// major is the server's version; 0 where it does not say.
func major(conn *pgconn.PgConn) (n int) {
	_, _ = fmt.Sscanf(conn.ParameterStatus("server_version"), "%d", &n)
	return n
}
