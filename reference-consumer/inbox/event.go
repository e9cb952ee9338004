package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"oncewatch/reference-consumer/deadletter"
)

// Event is one delivery of one event.
type Event struct {
	// ID is assigned by the producer and the same at every delivery.
	ID        string
	Topic     string
	Partition int32
	Offset    int64
	// Time the record carries.
	Time    time.Time
	Key     []byte
	Value   []byte
	Headers []Header
	// TraceID of the handling, where there is a trace.
	TraceID string
	// TraceParent of the handling (W3C), for what the handler hands on.
	TraceParent string
	// Err says that the record could not be decoded: it goes to the dead
	// letters without a call of the handler.
	Err error
}

// Header of a record.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// maxIDLength keeps (consumer_group, event_id) far below the 2,704 bytes a
// B-tree entry may have.
const maxIDLength = 512

// checkID refuses ids that could not become a marker.
func checkID(id string) error {
	switch {
	case id == "":
		return errors.New("the event id is empty: the producer must assign one")
	case len(id) > maxIDLength:
		return fmt.Errorf("the event id is %d bytes long, %d are allowed", len(id), maxIDLength)
	case !utf8.ValidString(id) || strings.ContainsRune(id, 0):
		return errors.New("the event id is not UTF-8 text without NUL")
	}
	return nil
}

// hash of the payload: the same id with another hash is another event.
func hash(value []byte) int64 {
	sum := sha256.Sum256(value)
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// Outcome of one event.
type Outcome uint8

// The outcomes. Only the first two are counted as handled.
const (
	Processed Outcome = iota
	Duplicate
	DeadLettered
)

func (o Outcome) String() string {
	return [...]string{"processed", "duplicate", "dead_lettered"}[o]
}

// Origin tells where a duplicate came from, by the position on its marker.
type Origin uint8

// A marker at the same offset means a redelivery, at another offset that the
// event was published twice. Unknown: the marker went while it was looked at.
const (
	OriginUnknown Origin = iota
	SameOffset
	OtherOffset
)

func (o Origin) String() string {
	return [...]string{"unknown", "same_offset", "other_offset"}[o]
}

// Reasons of dead letters.
const (
	ReasonData       = deadletter.ReasonData
	ReasonDecode     = deadletter.ReasonDecode
	ReasonTooOld     = deadletter.ReasonTooOld
	ReasonIDConflict = deadletter.ReasonIDConflict
	ReasonRetries    = deadletter.ReasonRetries
	ReasonPanic      = deadletter.ReasonPanic
	ReasonCrash      = deadletter.ReasonCrash
	ReasonParked     = deadletter.ReasonParked
)

// Handled is what became of one event.
type Handled struct {
	Outcome Outcome
	Origin  Origin
	// FirstPartition and FirstOffset are the marker's position, for
	// duplicates and id conflicts.
	FirstPartition int32
	FirstOffset    int64
	// Reason, Err and Attempts of a dead letter.
	Reason   string
	Err      error
	Attempts int
}
