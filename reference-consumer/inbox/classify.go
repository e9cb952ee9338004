package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class says what to do about an error.
type Class uint8

const (
	// ClassHandler: the handler said no without saying why. A bounded number
	// of attempts, then the dead letters.
	ClassHandler Class = iota
	// ClassData: this event will never succeed. The dead letters at once.
	ClassData
	// ClassTransient: the same attempt may succeed later.
	ClassTransient
	// ClassConfig: missing table, missing right, a handler that hangs, …: no
	// event's fault, and trying again at once does not heal it. The partition
	// waits.
	ClassConfig
	// ClassBug: the handler broke the transaction's rules. The partition stops.
	ClassBug
)

// DataError marks an event that can never be applied.
type DataError struct {
	Reason string // of the dead letter
	Err    error
}

func (e *DataError) Error() string { return e.Err.Error() }
func (e *DataError) Unwrap() error { return e.Err }

// Invalid says that the event itself is wrong: it goes to the dead letters
// without another attempt.
func Invalid(err error) error { return &DataError{ReasonData, err} }

// ErrorType of spans: the reason.
func (e *DataError) ErrorType() string { return e.Reason }

// EventError ties an error to an event of the batch.
type EventError struct {
	Index int // in Batch.Events; -1 where no single event can be blamed
	Event Event
	Err   error
}

func (e *EventError) Error() string {
	if e.Index < 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("event %q (%s/%d offset %d): %v", e.Event.ID, e.Event.Topic, e.Event.Partition, e.Event.Offset, e.Err)
}
func (e *EventError) Unwrap() error { return e.Err }

// Classify sorts an error by its SQLSTATE (PostgreSQL manual, appendix A) or,
// without one, by its kind.
func Classify(err error) Class {
	var data *DataError
	if errors.As(err, &data) {
		return ClassData
	}
	if errors.Is(err, ErrTransactionControl) || errors.Is(err, ErrSession) || errors.Is(err, ErrTxClosed) || errors.Is(err, ErrTxBusy) {
		return ClassBug
	}
	if errors.Is(err, ErrHandlerTimeout) || errors.Is(err, ErrSimpleProtocol) {
		return ClassConfig
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "25006", // read-only: connected to a demoted primary
			"25P03", "25P04", // idle or whole transaction timeout
			"40001", "40P01", // serialization failure, deadlock
			"55P03": // lock timeout
			return ClassTransient
		case "P0001": // RAISE EXCEPTION
			return ClassData
		case "2D000", // COMMIT or ROLLBACK within DO or CALL
			"25001": // what cannot run inside a transaction, such as VACUUM
			return ClassBug
		}
		switch pg.Code[:2] {
		case "08", "53", "57": // connection, resources, operator intervention
			return ClassTransient
		case "22", "23", "54": // data, constraint, a limit such as that of an index row
			return ClassData
		}
		return ClassConfig
	}
	var netErr net.Error
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.As(err, &netErr), errors.As(err, &connect), pgconn.SafeToRetry(err),
		errors.Is(err, errConnection):
		return ClassTransient
	}
	return ClassHandler
}

// errConnection wraps what went wrong on the connection itself.
var errConnection = errors.New("connection to PostgreSQL")

// reason of the dead letter an error leads to.
func reason(err error) string {
	var data *DataError
	if errors.As(err, &data) {
		return data.Reason
	}
	var panicked *PanicError
	switch {
	case Classify(err) == ClassData:
		return ReasonData
	case errors.As(err, &panicked):
		return ReasonPanic
	}
	return ReasonRetries
}
