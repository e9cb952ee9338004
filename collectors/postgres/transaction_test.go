package postgres

import (
	"context"
	"errors"
	"testing"
	"time"
)

// However many statements a snapshot is asked for, the last gets only the time
// that is left of a second, and what comes too late or can wait is not begun.
func TestAStatementGetsTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	ctx := t.Context()
	took := func(f func(conn *transaction) error) error {
		return b.store.inSnapshot(ctx, bounds{}, f)
	}
	sleep := func(ctx context.Context, conn *transaction, seconds float64) error {
		return conn.QueryRow(ctx, "SELECT 1 FROM pg_sleep($1::float8)", seconds).Scan(new(int))
	}
	err := took(func(conn *transaction) error {
		for range 3 {
			var ms int
			before := time.Since(conn.began).Truncate(time.Millisecond)
			if err := conn.QueryRow(ctx, "SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'").Scan(&ms); err != nil {
				return err
			}
			if most := snapshotTime - before; time.Duration(ms)*time.Millisecond > most {
				t.Errorf("a statement may take %d ms though the snapshot was %s old, want at most %s", ms, before, most)
			}
			if err := sleep(ctx, conn, 0.3); err != nil {
				return err
			}
		}
		return errors.New("three statements of 0.3 s went through")
	})
	if !timedOut(err) {
		t.Errorf("%v, want no time for a third statement of 0.3 s", err)
	}
	if err := took(func(conn *transaction) error {
		conn.began = conn.began.Add(-snapshotTime)
		return sleep(ctx, conn, 0)
	}); !errors.Is(err, errSpent) {
		t.Errorf("%v after the snapshot's time", err)
	}
	if err := took(func(conn *transaction) error {
		conn.began, conn.budget = conn.began.Add(-snapshotBudget), snapshotBudget
		return sleep(ctx, conn, 0)
	}); !errors.Is(err, errSpent) {
		t.Errorf("%v of what can wait", err)
	}
	// After a statement that took too long the transaction is over, and no error.
	if err := took(func(conn *transaction) error {
		conn.budget = time.Hour
		if err := sleep(ctx, conn, 2); code(err) != "57014" {
			t.Errorf("%v, want a timeout", err)
		}
		if err := sleep(ctx, conn, 0); !errors.Is(err, errSpent) {
			t.Errorf("%v after a timeout", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
