// Package deadletter keeps the events that could not be applied, with the
// reason, and sends them again.
package deadletter

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Reasons for which a record is not applied.
const (
	// ReasonData: the handler or the database refused the event's own data.
	ReasonData = "data"
	// ReasonDecode: the record is no event.
	ReasonDecode = "decode"
	// ReasonTooOld: its marker may have been dropped already.
	ReasonTooOld = "too_old"
	// ReasonIDConflict: its id belongs to another event.
	ReasonIDConflict = "id_conflict"
	// ReasonRetries: the handler failed at every attempt, without saying why.
	ReasonRetries = "retries"
	// ReasonPanic: the handler panicked at every attempt.
	ReasonPanic = "panic"
	// ReasonCrash: handling it ended the process each time.
	ReasonCrash = "crash"
	// ReasonParked: an earlier event of its key is a dead letter.
	ReasonParked = "parked"
)

// Header of the record.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Letter is one record that was not applied.
type Letter struct {
	ID        int64    `json:"id"`
	Group     string   `json:"consumer_group"`
	EventID   string   `json:"event_id"`
	Topic     string   `json:"topic"`
	TopicID   [16]byte `json:"-"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	// FirstPartition and FirstOffset are where the event id was first seen,
	// for reason id_conflict.
	FirstPartition *int32     `json:"first_partition,omitempty"`
	FirstOffset    *int64     `json:"first_offset,omitempty"`
	Reason         string     `json:"reason"`
	Error          string     `json:"error"`
	Attempts       int        `json:"attempts"`
	ValueBytes     int        `json:"value_bytes"` // length of the value
	Key            []byte     `json:"key,omitempty"`
	Value          []byte     `json:"value,omitempty"`
	Headers        []Header   `json:"headers,omitempty"`
	RecordTime     time.Time  `json:"record_time"`
	CreatedAt      time.Time  `json:"created_at"`
	RequeuedAt     *time.Time `json:"requeued_at,omitempty"`
}

const insertSQL = `INSERT INTO dead_letters (consumer_group, event_id, topic, topic_id, partition, "offset",
    first_partition, first_offset, reason, error, attempts, key, value, headers, record_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (consumer_group, topic, topic_id, partition, "offset") DO UPDATE
SET reason = excluded.reason, error = excluded.error, attempts = excluded.attempts, requeued_at = NULL`

// Queue adds the insert of the letter to a batch, to be sent in the
// transaction that moves the offset past the record.
func (l Letter) Queue(b *pgx.Batch) (*pgx.QueuedQuery, error) {
	headers := make([]Header, len(l.Headers))
	for i, header := range l.Headers {
		headers[i] = Header{clean(header.Key), header.Value}
	}
	h, err := json.Marshal(headers)
	if err != nil {
		return nil, fmt.Errorf("encode headers: %w", err)
	}
	return b.Queue(insertSQL, l.Group, clean(l.EventID[:min(len(l.EventID), maxID)]), l.Topic, l.TopicID, l.Partition, l.Offset,
		l.FirstPartition, l.FirstOffset, l.Reason, clean(l.Error), l.Attempts, l.Key, l.Value, string(h), l.RecordTime), nil
}

// maxID bounds the event id, which is indexed; the record's own is in its
// headers or its key.
const maxID = 512

// clean makes any bytes storable as text: whatever is wrong with an event must
// not keep it out of the dead letters.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
