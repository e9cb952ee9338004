package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/header"
)

// Refusals of Requeue.
var (
	ErrRequeued = errors.New("it was sent again already (--force sends it once more)")
	ErrConflict = errors.New("its event id belongs to another event, so it would only be refused again: the producer must publish it with an id of its own")
	ErrTooOld   = errors.New("its event id is older than the markers: whether it was applied before can no longer be told; the producer must publish it with a new id")
	// ErrUnprotected: had the event been published again and applied in the
	// meantime, nothing would tell.
	ErrUnprotected = errors.New("the event may have been applied since, by another publication of it, and its marker pruned: sending it again would then apply it twice. Look for its effect first; --force sends it all the same")
)

// Options of Requeue.
type Options struct {
	// Force sends what was sent already, and what no marker protects any more.
	Force bool
	// Retention is how long the pruner keeps markers; 0: for ever.
	Retention time.Duration
}

// Outcome says what will become of a letter that was sent again.
type Outcome string

// A marker makes it a duplicate; without one it is applied, if its cause is
// mended.
const (
	WillBeApplied Outcome = "it will be applied, if what kept it from being applied is mended"
	WillBeSkipped Outcome = "it will be skipped as a duplicate: it was applied in the meantime"
)

// Requeue publishes the record of a dead letter to its topic again, word for
// word, with the same event id: should it have been applied in the meantime,
// its marker absorbs it. A letter older than the markers' retention without a
// marker is refused unless forced, with ErrUnprotected. The row is locked until
// the broker has the record, so that two operators do not send it twice.
func Requeue(ctx context.Context, db DB, client *kgo.Client, id int64, o Options) (l Letter, outcome Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+columns+` FROM dead_letters WHERE id = $1 FOR UPDATE`, id)
		if err != nil {
			return fmt.Errorf("dead letter %d: %w", id, err)
		}
		if l, err = one(rows, id); err != nil {
			return err
		}
		if outcome, err = assess(ctx, tx, l, o); err != nil {
			return fmt.Errorf("dead letter %d: %w", id, err)
		}
		if err := client.ProduceSync(ctx, l.record()).FirstErr(); err != nil {
			return fmt.Errorf("dead letter %d: publish to %s: %w", id, l.Topic, err)
		}
		if _, err := tx.Exec(ctx, "UPDATE dead_letters SET requeued_at = now() WHERE id = $1", id); err != nil {
			return fmt.Errorf("dead letter %d: note that it was sent: %w", id, err)
		}
		return nil
	})
	return l, outcome, err
}

// assess says what sending a letter would lead to, or why it is not sent. A
// marker written after the letter is younger than the letter, so one that is
// not there was never written while the letter is younger than the retention.
func assess(ctx context.Context, tx pgx.Tx, l Letter, o Options) (Outcome, error) {
	switch {
	case l.Reason == ReasonIDConflict:
		return "", ErrConflict
	case l.Reason == ReasonTooOld:
		return "", ErrTooOld
	case l.RequeuedAt != nil && !o.Force:
		return "", ErrRequeued
	}
	var marked bool
	var age time.Duration
	err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM processed_events WHERE consumer_group = $1 AND event_id = $2), now() - $3::timestamptz", l.Group, l.EventID, l.CreatedAt).Scan(&marked, &age)
	switch {
	case err != nil:
		return "", fmt.Errorf("look for the event's marker: %w", err)
	case marked:
		return WillBeSkipped, nil
	case o.Retention > 0 && age >= o.Retention && !o.Force:
		return "", fmt.Errorf("%w (it was put aside %s ago, markers are kept for %s: --retention)", ErrUnprotected, age.Round(time.Second), o.Retention)
	}
	return WillBeApplied, nil
}

// record to publish. A sequence number counts publications by its producer;
// this is none.
func (l Letter) record() *kgo.Record {
	r := &kgo.Record{Topic: l.Topic, Key: l.Key, Value: l.Value}
	for _, h := range l.Headers {
		if h.Key != header.Producer && h.Key != header.Sequence {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	return r
}
