package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

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
	// ClassConfig: missing table, missing right, …: no event's fault, and time
	// alone does not heal it. The partition waits for an operator.
	ClassConfig
	// ClassBug: the handler broke the transaction's rules. The partition stops.
	ClassBug
)

// ErrTransactionControl says that a handler tried to end or begin a
// transaction. It would commit markers without their effects.
var ErrTransactionControl = errors.New("the handler must not control the transaction: COMMIT, ROLLBACK, BEGIN, SAVEPOINT and PREPARE belong to the inbox")

// ErrTxClosed says that a Tx was used after its handler had returned.
var ErrTxClosed = errors.New("the handler's Tx is closed: it ends when the handler returns")

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
	if errors.Is(err, ErrTransactionControl) || errors.Is(err, ErrTxClosed) {
		return ClassBug
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
	if Classify(err) == ClassData {
		return ReasonData
	}
	return ReasonRetries
}

// controlsTransaction recognizes statements that would begin or end a
// transaction. The extended protocol takes one statement at a time, so its
// first word decides.
func controlsTransaction(sql string) bool {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v;")
		switch {
		case strings.HasPrefix(sql, "--"):
			_, rest, ok := strings.Cut(sql, "\n")
			if !ok {
				return false
			}
			sql = rest
			continue
		case strings.HasPrefix(sql, "/*"):
			sql = skipComment(sql)
			continue
		}
		break
	}
	end := 0
	for end < len(sql) && (sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z') {
		end++
	}
	switch strings.ToUpper(sql[:end]) {
	case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE":
		return true
	}
	return false
}

// skipComment returns what follows a block comment; they nest in PostgreSQL.
func skipComment(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return sql[i+1:]
			}
		}
	}
	return ""
}
