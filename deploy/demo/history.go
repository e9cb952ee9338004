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

	"oncewatch/reference-consumer/payments"
)

// The past that the demo starts with: as much as a table and a topic that have
// been in use for longer than both keep.
const (
	historyMarkers = 9 * 24 * time.Hour
	historyTopic   = 7 * 24 * time.Hour
	historyEvery   = 15 * time.Second
	accountCount   = 1000
)

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

func history(now time.Time) []past {
	n := int(historyMarkers / historyEvery)
	events := make([]past, n)
	for i := range events {
		at := now.Add(-historyMarkers + time.Duration(i)*historyEvery).Truncate(time.Microsecond)
		events[i] = past{
			id: idAt(at), at: at,
			// One account, one partition, as the producer does it.
			account: "acct_" + strconv.Itoa(i%accountCount), amount: int64(100 + i%9000),
			partition: int32(i % partitionCount), offset: int64(i / partitionCount),
		}
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
func writeTopic(ctx context.Context, opts []kgo.Opt, events []past, now time.Time) error {
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
			Headers: []kgo.RecordHeader{{Key: payments.HeaderEventID, Value: []byte(e.id)}},
		}
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("publish the history: %w", err)
	}

	start, end := kadm.Offsets{}, kadm.Offsets{}
	for _, e := range events {
		end.AddOffset(Topic, e.partition, e.offset+1, -1)
		if e.at.Before(now.Add(-historyTopic)) {
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
	// The audit looks for effects without a marker by time.
	if _, err := conn.Exec(ctx, "CREATE INDEX ON ledger_entries (created_at)"); err != nil {
		return fmt.Errorf("index the effects: %w", err)
	}
	if _, err := conn.Exec(ctx, "ANALYZE processed_events, ledger_entries, accounts"); err != nil {
		return fmt.Errorf("analyze the history: %w", err)
	}
	return nil
}
