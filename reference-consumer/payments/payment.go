// Package payments is the sample service: payments into entries and account
// balances, each applied exactly once.
package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"oncewatch/reference-consumer/inbox"
)

// Payment is the payload of an event.
type Payment struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"` // minor units, negative for a debit, never 0
	// PaymentID names the business operation: several events (authorized,
	// captured, corrected) may speak of one payment.
	PaymentID string `json:"payment_id,omitempty"`
}

// Parse the payload of an event.
func (p *Payment) Parse(value []byte) error { return json.Unmarshal(value, p) }

func parse(ev inbox.Event) (Payment, error) {
	var p Payment
	if err := p.Parse(ev.Value); err != nil {
		return p, &inbox.DataError{Reason: inbox.ReasonDecode, Err: fmt.Errorf("not a payment: %w", err)}
	}
	if p.Account == "" {
		return p, inbox.Invalid(errors.New("the payment names no account"))
	}
	return p, nil
}

const (
	entrySQL = `INSERT INTO ledger_entries (consumer_group, event_id, account, amount) VALUES ($1, $2, $3, $4)`

	balanceSQL = `INSERT INTO accounts AS a (account, balance, entries) VALUES ($1, $2, 1)
ON CONFLICT (account) DO UPDATE SET balance = a.balance + excluded.balance, entries = a.entries + 1, updated_at = now()`
)

// Handler writes an entry and moves the account's balance, and with
// notify leaves the intent to confirm the payment in the outbox.
func Handler(group string, notify NotifyPer) inbox.Handler {
	return func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
		p, err := parse(ev)
		if err != nil {
			return err
		}
		tx.Queue(entrySQL, group, ev.ID, p.Account, p.Amount)
		tx.Queue(balanceSQL, p.Account, p.Amount)
		return notify.queue(tx, group, ev, p)
	}
}

const setSQL = `WITH fresh AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[]) AS f(event_id, account, amount)
), entries AS (
    INSERT INTO ledger_entries (consumer_group, event_id, account, amount) SELECT $1, event_id, account, amount FROM fresh
)
INSERT INTO accounts AS a (account, balance, entries)
SELECT account, sum(amount)::bigint, count(*) FROM fresh GROUP BY account ORDER BY account
ON CONFLICT (account) DO UPDATE SET balance = a.balance + excluded.balance, entries = a.entries + excluded.entries, updated_at = now()`

// SetHandler does the same for a whole batch in one statement.
func SetHandler(group string) inbox.BatchHandler {
	return func(_ context.Context, tx *inbox.Tx, evs []inbox.Event) error {
		ids, accounts, amounts := make([]string, len(evs)), make([]string, len(evs)), make([]int64, len(evs))
		for i, ev := range evs {
			p, err := parse(ev)
			if err != nil {
				return err
			}
			ids[i], accounts[i], amounts[i] = ev.ID, p.Account, p.Amount
		}
		tx.Queue(setSQL, group, ids, accounts, amounts)
		return nil
	}
}
