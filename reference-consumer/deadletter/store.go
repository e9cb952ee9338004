package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

const (
	summary = `id, consumer_group, event_id, topic, topic_id, partition, "offset", first_partition, first_offset,
reason, error, attempts, coalesce(octet_length(value), 0), coalesce(record_time, created_at), created_at, requeued_at`
	columns = summary + `, key, value, headers`
)

// List calls each with every dead letter of the filter, newest first, as they
// come from the server. Keys, values and headers, which may be large, are left
// out: see Show.
func List(ctx context.Context, db DB, f Filter, each func(Letter) error) error {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	rows, err := db.Query(ctx, `SELECT `+summary+` FROM dead_letters
WHERE ($1 = '' OR consumer_group = $1) AND ($2 = '' OR reason = $2) AND ($3 = '' OR event_id = $3) AND ($4 OR requeued_at IS NULL)
ORDER BY id DESC LIMIT $5`, f.Group, f.Reason, f.EventID, f.Requeued, f.Limit)
	if err != nil {
		return fmt.Errorf("list dead letters: %w", remedy(err))
	}
	var l Letter
	if _, err := pgx.ForEachRow(rows, l.fields(), func() error { return each(l) }); err != nil {
		return fmt.Errorf("list dead letters: %w", remedy(err))
	}
	return nil
}

// fields in the order of summary.
func (l *Letter) fields() []any {
	return []any{&l.ID, &l.Group, &l.EventID, &l.Topic, &l.TopicID, &l.Partition, &l.Offset, &l.FirstPartition, &l.FirstOffset,
		&l.Reason, &l.Error, &l.Attempts, &l.ValueBytes, &l.RecordTime, &l.CreatedAt, &l.RequeuedAt}
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
	if err := row.Scan(append(l.fields(), &l.Key, &l.Value, &headers)...); err != nil {
		return l, err
	}
	return l, json.Unmarshal(headers, &l.Headers)
}
