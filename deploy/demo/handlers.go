package demo

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/payments"
)

// Handlers that do what handlers do wrong.

// ownConnection writes every other ledger entry on a connection of its own.
func (s *Stack) ownConnection() inbox.Handler {
	right := payments.Handler(Group, s.Consumer.Notify)
	pool := sync.OnceValues(func() (*pgxpool.Pool, error) {
		pool, err := payments.Pool(s.ctx, s.Consumer.DSN, 4)
		if err == nil {
			context.AfterFunc(s.ctx, pool.Close)
		}
		return pool, err
	})
	var n atomic.Int64
	return func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		var p payments.Payment
		if n.Add(1)%2 == 0 || json.Unmarshal(ev.Value, &p) != nil {
			return right(ctx, tx, ev)
		}
		own, err := pool()
		if err != nil {
			return err
		}
		_, err = own.Exec(ctx, "INSERT INTO ledger_entries (consumer_group, event_id, account, amount) VALUES ($1, $2, $3, $4)", Group, ev.ID, p.Account, p.Amount)
		return err
	}
}

// slow takes d for each event before it writes.
func (s *Stack) slow(d time.Duration) inbox.Handler {
	right := payments.Handler(Group, s.Consumer.Notify)
	return func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if !sleep(ctx, d) {
			return ctx.Err()
		}
		return right(ctx, tx, ev)
	}
}

// slowSQL has a statement that takes d for every nth event.
func (s *Stack) slowSQL(d time.Duration, nth int64) inbox.Handler {
	right := payments.Handler(Group, s.Consumer.Notify)
	var n atomic.Int64
	return func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if n.Add(1)%nth == 0 {
			tx.Queue("SELECT pg_sleep($1)", d.Seconds())
		}
		return right(ctx, tx, ev)
	}
}

// commits ends the transaction it was lent.
func commits(ctx context.Context, tx *inbox.Tx, _ inbox.Event) error {
	_, err := tx.Exec(ctx, "COMMIT")
	return err
}
