package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/header"
)

// DB is what the functions need of a pool or connection.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Filter of List.
type Filter struct {
	Group, Reason, EventID string // empty: any
	Requeued               bool   // also those that were sent again
	Limit                  int    // 0: 100
}

const columns = `id, consumer_group, event_id, topic, topic_id, partition, "offset", first_partition, first_offset,
reason, error, attempts, key, value, headers, coalesce(record_time, created_at), created_at, requeued_at`

// List returns dead letters, newest first.
func List(ctx context.Context, db DB, f Filter) ([]Letter, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	rows, err := db.Query(ctx, `SELECT `+columns+` FROM dead_letters
WHERE ($1 = '' OR consumer_group = $1) AND ($2 = '' OR reason = $2) AND ($3 = '' OR event_id = $3) AND ($4 OR requeued_at IS NULL)
ORDER BY id DESC LIMIT $5`, f.Group, f.Reason, f.EventID, f.Requeued, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", remedy(err))
	}
	letters, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", remedy(err))
	}
	return letters, nil
}

// ErrNotFound says that there is no dead letter of that number.
var ErrNotFound = errors.New("no such dead letter")

// Show returns one dead letter.
func Show(ctx context.Context, db DB, id int64) (Letter, error) {
	rows, err := db.Query(ctx, `SELECT `+columns+` FROM dead_letters WHERE id = $1`, id)
	if err != nil {
		return Letter{}, fmt.Errorf("dead letter %d: %w", id, err)
	}
	return one(rows, id)
}

func one(rows pgx.Rows, id int64) (Letter, error) {
	l, err := pgx.CollectExactlyOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return l, fmt.Errorf("dead letter %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return l, fmt.Errorf("dead letter %d: %w", id, remedy(err))
	}
	return l, nil
}

// remedy for a missing table.
func remedy(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42P01" {
		return fmt.Errorf("%w: run `reference-consumer migrate`", err)
	}
	return err
}

func scan(row pgx.CollectableRow) (Letter, error) {
	var l Letter
	var headers []byte
	err := row.Scan(&l.ID, &l.Group, &l.EventID, &l.Topic, &l.TopicID, &l.Partition, &l.Offset, &l.FirstPartition, &l.FirstOffset,
		&l.Reason, &l.Error, &l.Attempts, &l.Key, &l.Value, &headers, &l.RecordTime, &l.CreatedAt, &l.RequeuedAt)
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal(headers, &l.Headers)
}

// Refusals of Requeue.
var (
	ErrRequeued = errors.New("it was sent again already (--force sends it once more)")
	ErrConflict = errors.New("its event id belongs to another event, so it would only be refused again: the producer must publish it with an id of its own")
	ErrTooOld   = errors.New("its event id is older than the markers: whether it was applied before can no longer be told; the producer must publish it with a new id")
)

// Requeue publishes the record of a dead letter to its topic again, word for
// word, with the same event id: should it have been applied in the meantime,
// its marker absorbs it. The row is locked until the broker has the record, so
// that two operators do not send it twice.
func Requeue(ctx context.Context, db DB, client *kgo.Client, id int64, force bool) (Letter, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var l Letter
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+columns+` FROM dead_letters WHERE id = $1 FOR UPDATE`, id)
		if err != nil {
			return fmt.Errorf("dead letter %d: %w", id, err)
		}
		if l, err = one(rows, id); err != nil {
			return err
		}
		switch {
		case l.Reason == ReasonIDConflict:
			return fmt.Errorf("dead letter %d: %w", id, ErrConflict)
		case l.Reason == ReasonTooOld:
			return fmt.Errorf("dead letter %d: %w", id, ErrTooOld)
		case l.RequeuedAt != nil && !force:
			return fmt.Errorf("dead letter %d: %w", id, ErrRequeued)
		}
		r := &kgo.Record{Topic: l.Topic, Key: l.Key, Value: l.Value}
		for _, h := range l.Headers {
			// A sequence number counts publications by its producer; this is none.
			if h.Key == header.Producer || h.Key == header.Sequence {
				continue
			}
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			return fmt.Errorf("dead letter %d: publish to %s: %w", id, l.Topic, err)
		}
		if _, err := tx.Exec(ctx, "UPDATE dead_letters SET requeued_at = now() WHERE id = $1", id); err != nil {
			return fmt.Errorf("dead letter %d: note that it was sent: %w", id, err)
		}
		return nil
	})
	return l, err
}
