package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// session is one attempt at one batch on one connection.
type session struct {
	conn      *pgx.Conn
	events    []Event
	settings  settings
	state     string // of the transaction when the markers were written
	pending   []statement
	unmark    []string  // ids whose markers are to go again
	unfolded  *unfolded // nil: nothing is folded
	leastFold int
	oneByOne  bool // each event's statements are sent as they were queued
	// ran are the events some of whose statements were sent while their handlers
	// ran: they cannot be taken out alone.
	ran   map[int]bool
	plain map[int]bool // events whose statements are not folded
	// left says that a handler was left behind with this session.
	left atomic.Bool
}

// statement that an event's handler has queued.
type statement struct {
	owner int // index of the event
	sql   string
	args  []any
}

func newSession(conn *pgx.Conn, events []Event, u *unfolded, oneByOne bool) *session {
	return &session{conn: conn, events: events, unfolded: u, leastFold: leastFold, oneByOne: oneByOne, ran: map[int]bool{}, plain: map[int]bool{}}
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
	units, err := s.fold(ctx, s.pending)
	if err != nil {
		return err
	}
	s.pending = nil
	pipe := &pgx.Batch{}
	done := 0
	for _, u := range units {
		pipe.Queue(u.sql(), u.args()...).Exec(func(pgconn.CommandTag) error { done++; return nil })
	}
	if check {
		pipe.Queue(stateSQL).QueryRow(s.check)
	}
	err = s.conn.SendBatch(ctx, pipe).Close()
	switch {
	case err == nil:
		return nil
	case len(units) == 0:
		return &pipelineError{index: setBased, err: err}
	}
	s.noteUnfoldable(units, err)
	// The first error may be one of preparing any statement of the batch, and
	// the last one of them all, so these are sure only where there is one.
	owner := units[min(done, len(units)-1)].owner()
	return &pipelineError{index: owner, sure: owner != setBased && (len(units) == 1 || done > 0 && done < len(units)), err: err}
}

// noteUnfoldable remembers folds that failed though no event's data is wrong:
// they would fail each time.
func (s *session) noteUnfoldable(units []unit, err error) {
	if c := Classify(err); s.unfolded != nil && c != ClassData && c != ClassTransient && c != ClassBug {
		s.unfolded.add(units)
	}
}

// savepointEvery is how many events share a savepoint: few enough that doing
// them again costs little, many enough that the savepoints do.
const savepointEvery = 50

const (
	savepointSQL  = "SAVEPOINT chunk"
	releaseSQL    = "RELEASE chunk"
	rollbackToSQL = "ROLLBACK TO SAVEPOINT chunk"
)

// prepare a statement for good. Those that the driver prepares by itself it
// forgets with every error of their batch, and planning is most of the work.
func (s *session) prepare(ctx context.Context, sql string) error {
	if s.conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return nil // behind a pooler there may be no prepared statements
	}
	_, err := s.conn.Prepare(ctx, sql, sql)
	return err
}

// finishCarefully does what finish does with a savepoint every few events, so
// that an event that the database refuses costs the work of its neighbours and
// not of the batch. refused is told of it, and says whether the rest can go on
// without it.
func (s *session) finishCarefully(ctx context.Context, refused func(owner int, err error) bool) error {
	pending := s.pending
	s.pending = nil
	s.leastFold = 1
	alone := map[int]bool{}
	for _, sql := range []string{savepointSQL, releaseSQL, rollbackToSQL, stateSQL} {
		if err := s.prepare(ctx, sql); err != nil {
			return fmt.Errorf("prepare %q: %w", sql, err)
		}
	}
	for {
		rest, failed, err := s.sendChunks(ctx, pending, alone)
		if err == nil {
			return nil
		}
		owner := failed.owner()
		unknown := &pipelineError{index: owner, sure: owner != setBased && rest != nil, err: err}
		if rest == nil || Classify(err) != ClassData {
			return unknown
		}
		if owner == setBased {
			s.separate(failed, err, alone)
		} else if !refused(owner, err) {
			return unknown
		}
		if _, err := s.conn.Exec(ctx, rollbackToSQL); err != nil {
			return fmt.Errorf("%w: %w", errConnection, err)
		}
		pending = slices.DeleteFunc(rest, func(st statement) bool { return st.owner == owner })
	}
}

// separate the events of a fold that failed: the one of which the error speaks
// is sent alone next time, or, if it is not clear, the statements of all of
// them as they were queued.
func (s *session) separate(failed unit, err error, alone map[int]bool) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		if owner, ok := failed.suspect(pg.Message + " " + pg.Detail); ok {
			alone[owner] = true
			return
		}
	}
	for _, row := range failed.rows {
		s.plain[row.owner] = true
	}
}

// sendChunks sends statements with savepoints and the look at the transaction.
// Where one fails, rest is what has not been done: from its savepoint on; nil
// where it is not known which one failed.
func (s *session) sendChunks(ctx context.Context, pending []statement, alone map[int]bool) (rest []statement, failed unit, err error) {
	pipe := &pgx.Batch{}
	var all []unit
	done, safe, inside := 0, 0, false
	for from := 0; from < len(pending); {
		to := chunkEnd(pending, from, alone)
		units, err := s.fold(ctx, pending[from:to])
		if err != nil {
			return nil, unit{rows: pending[from:to]}, err
		}
		pipe.Queue(savepointSQL).Exec(func(pgconn.CommandTag) error { inside = true; return nil })
		for _, u := range units {
			pipe.Queue(u.sql(), u.args()...).Exec(func(pgconn.CommandTag) error { done++; return nil })
		}
		pipe.Queue(releaseSQL).Exec(func(pgconn.CommandTag) error { inside, safe = false, to; return nil })
		all, from = append(all, units...), to
	}
	pipe.Queue(stateSQL).QueryRow(s.check)
	if err = s.conn.SendBatch(ctx, pipe).Close(); err == nil {
		return nil, unit{}, nil
	}
	s.noteUnfoldable(all, err)
	if len(all) == 0 {
		return nil, unit{rows: []statement{{owner: setBased}}}, err
	}
	failed = all[min(done, len(all)-1)]
	if !inside || done == len(all) { // of preparing, or of the look at the end
		return nil, failed, err
	}
	return slices.Clone(pending[safe:]), failed, err
}

// chunkEnd is where the chunk that begins at from ends: after its last event's
// last statement.
func chunkEnd(pending []statement, from int, alone map[int]bool) int {
	events := 1
	for i := from + 1; i < len(pending); i++ {
		if before, now := pending[i-1].owner, pending[i].owner; before != now {
			if events == savepointEvery || alone[before] || alone[now] {
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
