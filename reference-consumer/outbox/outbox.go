// Package outbox acts on the world outside the database. A handler writes an
// intent in the transaction of its effect; a relay delivers it afterwards, at
// least once, with a stable operation id that lets the receiver recognize a
// repetition.
//
// What remains: a relay that dies between the receiver's answer and the mark
// in the table sends again after the lease. A receiver that honours the
// Idempotency-Key header does nothing then; one that does not acts twice.
package outbox

import (
	"encoding/json"
	"fmt"

	"oncewatch/reference-consumer/inbox"
)

// Intent to act.
type Intent struct {
	// OperationID names the business operation, for example a booking id and
	// the type of notification. A second intent with the same id is the same
	// intent, whatever event it comes from.
	OperationID string
	// Key orders: intents of one key are delivered one after another.
	Key string
	// Kind of the intent, such as "payment_confirmation".
	Kind string
	// Payload is encoded as JSON.
	Payload any
}

const insertSQL = `INSERT INTO outbox (consumer_group, operation_id, key, kind, payload, event_id, trace_context)
VALUES ($1, $2, $3, $4, $5, $6, nullif($7, '')) ON CONFLICT (consumer_group, operation_id) DO NOTHING`

// Queue writes the intent in the transaction of the event's effect.
func Queue(tx *inbox.Tx, group string, ev inbox.Event, in Intent) error {
	payload, err := json.Marshal(in.Payload)
	if err != nil {
		return inbox.Invalid(fmt.Errorf("intent %s: %w", in.OperationID, err))
	}
	tx.Queue(insertSQL, group, in.OperationID, in.Key, in.Kind, string(payload), ev.ID, ev.TraceParent)
	return nil
}
