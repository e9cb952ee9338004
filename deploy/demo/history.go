package demo

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/payments"
)

// History is the past a stack starts with.
type History struct {
	// Markers is how far back the table goes, Topic how far the topic still
	// does. Events are Every apart.
	Markers, Topic, Every time.Duration
	// EdgeEvery is how far apart the events are that the pruner meets within
	// Edge from the start: there they must be as dense as the live ones, or
	// the table would grow. 0: as the others.
	EdgeEvery, Edge time.Duration
	// Idle is a time without events, between the two ages.
	Idle [2]time.Duration
}

const accountCount = 1000

// Days is as much as a table and a topic have that have been in use for longer
// than both keep.
func Days() History {
	return History{Markers: 9 * 24 * time.Hour, Topic: 7 * 24 * time.Hour, Every: 15 * time.Second}
}

// past is one event of the history. Its place in the topic follows from its
// number, so that markers carry the offsets the broker gave.
type past struct {
	id        string
	at        time.Time
	account   string
	amount    int64
	partition int32
	offset    int64
}

func (h History) events(now time.Time) []past {
	var events []past
	for age := h.Markers; age > 0 && h.Every > 0; {
		step := h.Every
		if h.EdgeEvery > 0 && age <= markerRetention && age > markerRetention-h.Edge {
			step = h.EdgeEvery
		}
		if age > h.Idle[0] || age <= h.Idle[1] {
			i := len(events)
			at := now.Add(-age).Truncate(time.Microsecond)
			events = append(events, past{
				id: idAt(at), at: at,
				// One account, one partition, as the producer does it.
				account: "acct_" + strconv.Itoa(i%accountCount), amount: int64(100 + i%9000),
				partition: int32(i % partitionCount), offset: int64(i / partitionCount),
			})
		}
		age -= step
	}
	return events
}

// idAt is a UUIDv7 of a time in the past.
func idAt(t time.Time) string {
	id := uuid.Must(uuid.NewV7())
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(t.UnixMilli()))
	copy(id[:6], ms[2:])
	return id.String()
}

// writeTopic publishes the history with its own timestamps, deletes what the
// broker's retention would have deleted, and commits the group past all of it.
func (h History) writeTopic(ctx context.Context, opts []kgo.Opt, events []past, now time.Time) error {
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(512 << 10),
		kgo.MaxBufferedRecords(len(events) + 1),
	}, opts...)...)
	if err != nil {
		return fmt.Errorf("create the Kafka client: %w", err)
	}
	defer client.Close()
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		value, err := json.Marshal(payments.Payment{Account: e.account, Amount: e.amount})
		if err != nil {
			return err
		}
		records[i] = &kgo.Record{
			Topic: Topic, Partition: e.partition, Key: []byte(e.account), Value: value, Timestamp: e.at,
			Headers: []kgo.RecordHeader{{Key: header.EventID, Value: []byte(e.id)}},
		}
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("publish the history: %w", err)
	}

	start, end := kadm.Offsets{}, kadm.Offsets{}
	for _, e := range events {
		end.AddOffset(Topic, e.partition, e.offset+1, -1)
		if e.at.Before(now.Add(-h.Topic)) {
			start.AddOffset(Topic, e.partition, e.offset+1, -1)
		}
	}
	admin := kadm.NewClient(client)
	deleted, err := admin.DeleteRecords(ctx, start)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("age the topic: %w", err)
	}
	if err := admin.CommitAllOffsets(ctx, Group, end); err != nil {
		return fmt.Errorf("commit the history: %w", err)
	}
	return nil
}

// writeTables writes the markers and effects that a consumer of the history
// would have left.
func writeTables(ctx context.Context, dsn string, events []past) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"processed_events"},
			[]string{"consumer_group", "event_id", "topic", "partition", "offset", "processed_at"},
			pgx.CopyFromSlice(len(events), func(i int) ([]any, error) {
				e := events[i]
				return []any{Group, e.id, Topic, e.partition, e.offset, e.at}, nil
			}))
		if err != nil {
			return err
		}
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"ledger_entries"},
			[]string{"consumer_group", "event_id", "account", "amount", "created_at"},
			pgx.CopyFromSlice(len(events), func(i int) ([]any, error) {
				e := events[i]
				return []any{Group, e.id, e.account, e.amount, e.at}, nil
			}))
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO accounts (account, balance, entries)
			SELECT account, sum(amount), count(*) FROM ledger_entries GROUP BY account`)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	if _, err := conn.Exec(ctx, "ANALYZE processed_events, ledger_entries, accounts"); err != nil {
		return fmt.Errorf("analyze the history: %w", err)
	}
	return nil
}
