package inbox

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// session is one attempt at one batch on one connection.
type session struct {
	conn     *pgx.Conn
	events   []Event
	settings settings
	state    string // of the transaction when the markers were written
	pending  []statement
	unmark   []string // ids whose markers are to go again
	// left says that a handler was left behind with this session.
	left atomic.Bool
}

// statement that an event's handler has queued.
type statement struct {
	owner int // index of the event
	sql   string
	args  []any
}

func newSession(conn *pgx.Conn, events []Event) *session {
	return &session{conn: conn, events: events}
}

// flush sends the pending statements in one round trip. A failure is pinned on
// the event whose statement failed.
func (s *session) flush(ctx context.Context) error { return s.send(ctx, false) }

// finish sends them too, and looks whether the transaction is still what it
// was.
func (s *session) finish(ctx context.Context) error { return s.send(ctx, true) }

func (s *session) send(ctx context.Context, check bool) error {
	if len(s.pending) == 0 && !check {
		return nil
	}
	pending := s.pending
	s.pending = nil
	pipe := &pgx.Batch{}
	done := 0
	for _, st := range pending {
		pipe.Queue(st.sql, st.args...).Exec(func(pgconn.CommandTag) error { done++; return nil })
	}
	if check {
		pipe.Queue(stateSQL).QueryRow(s.check)
	}
	err := s.conn.SendBatch(ctx, pipe).Close()
	switch {
	case err == nil:
		return nil
	case len(pending) == 0:
		return &pipelineError{index: setBased, err: err}
	}
	// The first error may be one of preparing any statement of the batch, and
	// the last one of them all, so these are sure only where all are one
	// event's.
	one := pending[0].owner == pending[len(pending)-1].owner
	at := min(done, len(pending)-1)
	return &pipelineError{index: pending[at].owner, sure: one || done > 0 && done < len(pending), err: err}
}

// savepointEvery is how many events share a savepoint: few enough that doing
// them again costs little, many enough that the savepoints do.
const savepointEvery = 50

// finishCarefully does what finish does with a savepoint every few events, so
// that an event that the database refuses costs the work of its neighbours and
// not of the batch. refused is told of it, and says whether the rest can go on
// without it.
func (s *session) finishCarefully(ctx context.Context, refused func(owner int, err error) bool) error {
	pending := s.pending
	s.pending = nil
	for {
		rest, owner, err := s.sendChunks(ctx, pending)
		if err == nil {
			return nil
		}
		if rest == nil || Classify(err) != ClassData || !refused(owner, err) {
			return &pipelineError{index: owner, sure: rest != nil, err: err}
		}
		if _, err := s.conn.Exec(ctx, "ROLLBACK TO SAVEPOINT chunk"); err != nil {
			return fmt.Errorf("%w: %w", errConnection, err)
		}
		pending = slices.DeleteFunc(rest, func(st statement) bool { return st.owner == owner })
	}
}

// sendChunks sends statements with savepoints and the look at the transaction.
// Where one fails whose event is known, rest is what has not been done: from
// its savepoint on.
func (s *session) sendChunks(ctx context.Context, pending []statement) (rest []statement, owner int, err error) {
	pipe := &pgx.Batch{}
	done, safe, inside := 0, 0, false
	for from := 0; from < len(pending); {
		to := chunkEnd(pending, from)
		pipe.Queue("SAVEPOINT chunk").Exec(func(pgconn.CommandTag) error { inside = true; return nil })
		for _, st := range pending[from:to] {
			pipe.Queue(st.sql, st.args...).Exec(func(pgconn.CommandTag) error { done++; return nil })
		}
		pipe.Queue("RELEASE chunk").Exec(func(pgconn.CommandTag) error { inside, safe = false, done; return nil })
		from = to
	}
	pipe.Queue(stateSQL).QueryRow(s.check)
	if err = s.conn.SendBatch(ctx, pipe).Close(); err == nil {
		return nil, 0, nil
	}
	if !inside || done == len(pending) { // of preparing, or of the look at the end
		if len(pending) == 0 {
			return nil, setBased, err
		}
		return nil, pending[min(done, len(pending)-1)].owner, err
	}
	return slices.Clone(pending[safe:]), pending[done].owner, err
}

// chunkEnd is where the chunk that begins at from ends: after its last event's
// last statement.
func chunkEnd(pending []statement, from int) int {
	events := 1
	for i := from + 1; i < len(pending); i++ {
		if pending[i].owner != pending[i-1].owner {
			if events == savepointEvery {
				return i
			}
			events++
		}
	}
	return len(pending)
}

// pipelineError is a failed statement and the event that queued it.
type pipelineError struct {
	index int
	sure  bool
	err   error
}

func (e *pipelineError) Error() string { return e.err.Error() }
func (e *pipelineError) Unwrap() error { return e.err }

// inTransaction says whether the transaction is still open and sound.
func (s *session) inTransaction() bool { return s.conn.PgConn().TxStatus() == 'T' }
