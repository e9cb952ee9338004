package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// attempt does the whole batch in one transaction, or nothing.
func (in *Inbox) attempt(ctx context.Context, pool *pgxpool.Pool, b Batch, p *plan) (_ Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, in.cfg.TransactionTimeout)
	defer cancel()
	in.cfg.Failpoint("before_write")
	c, err := pool.Acquire(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", errConnection, err)
	}
	s := newSession(c.Conn(), b.Events, in.unfolded, p.oneByOne)
	defer func() {
		if s.left.Load() {
			// The handler that was left behind still holds the connection. It
			// leaves the pool, and without its socket nothing can commit on it.
			_ = c.Hijack().PgConn().Conn().Close()
			return
		}
		if err != nil {
			discard(ctx, c.Conn(), err)
		}
		c.Release()
	}()
	start := time.Now()
	if err := s.learnSettings(ctx); err != nil {
		return Result{}, err
	}
	handled, err := in.mark(ctx, s, b, p)
	if err != nil {
		return Result{}, err
	}
	in.cfg.Failpoint("after_marker")
	if err := in.effects(ctx, s, b, p, handled); err != nil {
		return Result{}, err
	}
	if err := in.letters(ctx, s, b, handled); err != nil {
		return Result{}, err
	}
	in.cfg.Failpoint("before_db_commit")
	if err := commit(ctx, s, onlyDuplicates(handled)); err != nil {
		return Result{}, err
	}
	in.cfg.Failpoint("after_db_commit")
	return Result{Handled: handled, Next: b.Next, Duration: time.Since(start)}, nil
}

// discard ends a failed transaction. Where the connection itself may be at
// fault (a demoted primary, a lost server) it is not used again.
func discard(ctx context.Context, conn *pgx.Conn, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if !connectionFault(cause) {
		if conn.PgConn().TxStatus() == 'I' {
			return
		}
		if _, err := conn.Exec(ctx, "ROLLBACK"); err == nil {
			return
		}
	}
	_ = conn.Close(ctx)
}

// connectionFault is true for transient errors other than those of one
// statement against another.
func connectionFault(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "40001", "40P01", "55P03", "57014":
			return false
		}
	}
	return Classify(err) == ClassTransient
}

func onlyDuplicates(handled []Handled) bool {
	for i := range handled {
		if handled[i].Outcome != Duplicate {
			return false
		}
	}
	return true
}

// commit refuses a transaction that is no longer sound: PostgreSQL answers
// COMMIT of a failed one with a ROLLBACK and no error.
//
// One that only moved the progress past duplicates does not wait for the disk:
// should the server crash and forget it, they are skipped once more.
func commit(ctx context.Context, s *session, lazy bool) error {
	if !s.inTransaction() {
		return errNoTransaction
	}
	sql := "COMMIT"
	if lazy {
		sql = "SET LOCAL synchronous_commit = off; COMMIT"
	}
	tag, err := s.conn.Exec(ctx, sql)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if tag.String() != "COMMIT" {
		return fmt.Errorf("%w: the server answered COMMIT with %s", errConnection, tag)
	}
	return nil
}
