package payments

import (
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/outbox"
)

// NotifyPer says what makes two confirmations the same one.
//
// The event id identifies a delivery: right for the entries, where each event
// is an entry of its own. A confirmation belongs to the payment, of which
// several events may speak: there the business operation (account, payment id
// and type of notification) is the identity, or the customer gets two e-mails
// for one payment.
type NotifyPer string

// The identities.
const (
	NotifyNever     NotifyPer = ""
	NotifyEvent     NotifyPer = "event"
	NotifyOperation NotifyPer = "operation"
)

const kindConfirmation = "payment_confirmation"

// queue writes the intent to send a confirmation.
func (n NotifyPer) queue(tx *inbox.Tx, group string, ev inbox.Event, p Payment) error {
	if n == NotifyNever {
		return nil
	}
	operation := kindConfirmation + ":event:" + ev.ID
	if n == NotifyOperation && p.PaymentID != "" {
		operation = kindConfirmation + ":" + p.Account + ":" + p.PaymentID
	}
	return outbox.Queue(tx, group, ev, outbox.Intent{OperationID: operation, Key: p.Account, Kind: kindConfirmation, Payload: p})
}
