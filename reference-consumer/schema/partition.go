package schema

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Bound is the smallest UUIDv7 text of an instant: the lower bound of the
// partition that begins there (RFC 9562, 48 bits of Unix milliseconds first).
func Bound(t time.Time) string {
	var id uuid.UUID
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(t.UnixMilli()))
	copy(id[:6], ms[2:])
	return id.String()
}

// BoundTime is the instant of a UUIDv7, to the millisecond. ok is false where
// the text is not a UUID.
func BoundTime(id string) (t time.Time, ok bool) {
	u, err := uuid.Parse(id)
	if err != nil {
		return time.Time{}, false
	}
	var ms [8]byte
	copy(ms[2:], u[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))), true
}

// Partition of processed_events.
type Partition struct {
	Name     string
	From, To time.Time
}

// PartitionAt is the partition of the given width that holds an instant.
func PartitionAt(t time.Time, width time.Duration) Partition {
	from := t.UTC().Truncate(width)
	return Partition{Name: "processed_events_" + from.Format("20060102_150405"), From: from, To: from.Add(width)}
}

// CreateSQL creates the partition if it is not there.
func (p Partition) CreateSQL() string {
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s PARTITION OF processed_events FOR VALUES FROM ('%s') TO ('%s')",
		pgx.Identifier{p.Name}.Sanitize(), Bound(p.From), Bound(p.To))
}

// createPartitioned makes the partitioned form of 001's marker table: the
// later migrations apply to both forms alike. There is no DEFAULT partition:
// it would forbid DETACH CONCURRENTLY, and an event outside every partition
// must be refused, not applied again.
func createPartitioned(ctx context.Context, tx pgx.Tx, o Options) error {
	if o.PartitionWidth <= 0 {
		o.PartitionWidth = 24 * time.Hour
	}
	if o.PartitionsBehind <= 0 {
		o.PartitionsBehind = 8 * 24 * time.Hour
	}
	if o.PartitionsAhead <= 0 {
		o.PartitionsAhead = 48 * time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	var kind *string
	if err := tx.QueryRow(ctx, "SELECT (SELECT relkind::text FROM pg_class WHERE oid = to_regclass('processed_events'))").Scan(&kind); err != nil {
		return fmt.Errorf("look for processed_events: %w", err)
	}
	if kind != nil {
		if *kind != "p" {
			return ErrNotPartitioned
		}
		return nil
	}
	_, err := tx.Exec(ctx, `CREATE TABLE processed_events (
    consumer_group text        NOT NULL,
    event_id       text        COLLATE "C" NOT NULL,
    topic          text        NOT NULL,
    partition      int         NOT NULL,
    "offset"       bigint      NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
) PARTITION BY RANGE (event_id)`)
	if err != nil {
		return fmt.Errorf("create the partitioned processed_events: %w", err)
	}
	now := o.Now()
	for t := now.Add(-o.PartitionsBehind); ; t = t.Add(o.PartitionWidth) {
		p := PartitionAt(t, o.PartitionWidth)
		if p.From.After(now.Add(o.PartitionsAhead)) {
			return nil
		}
		if _, err := tx.Exec(ctx, p.CreateSQL()); err != nil {
			return fmt.Errorf("create partition %s: %w", p.Name, err)
		}
	}
}
