package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/reference-consumer/deadletter"
)

const (
	beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"
	// LOCAL: a pooled connection, or one behind pgbouncer, must not keep them.
	settingsSQL = "SELECT set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)"

	// ON CONFLICT, not catching the unique violation: a violation costs a
	// transaction id, a dead tuple and a line in the server's log each.
	markerSQL = `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset", payload_hash)
SELECT $1, m.id, $2, $3, m.off, m.hash FROM unnest($4::text[], $5::bigint[], $6::bigint[]) AS m(id, off, hash)
ON CONFLICT DO NOTHING RETURNING event_id`

	existingSQL = `SELECT event_id, topic = $3, partition, "offset", payload_hash FROM processed_events
WHERE consumer_group = $1 AND event_id = ANY ($2)`

	progressSQL = `INSERT INTO consumer_progress AS p (consumer_group, topic, partition, topic_id, next_offset)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET topic_id = excluded.topic_id, next_offset = excluded.next_offset, updated_at = now()`
)

// attempt does the whole batch in one transaction, or nothing.
func (in *Inbox) attempt(ctx context.Context, pool *pgxpool.Pool, b Batch, p *plan) (_ Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, in.cfg.TransactionTimeout)
	defer cancel()
	in.cfg.Failpoint("before_write")
	c, err := pool.Acquire(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", errConnection, err)
	}
	defer c.Release()
	defer func() {
		if err != nil {
			discard(ctx, c.Conn(), err)
		}
	}()
	start := time.Now()
	s := &session{conn: c.Conn(), pending: &pgx.Batch{}, events: b.Events}
	handled, err := in.mark(ctx, s, b, p)
	if err != nil {
		return Result{}, err
	}
	in.cfg.Failpoint("after_marker")
	if err := in.effects(ctx, s, b, p, handled); err != nil {
		return Result{}, err
	}
	if err := in.letters(ctx, s, b, handled); err != nil {
		return Result{}, err
	}
	in.cfg.Failpoint("before_db_commit")
	if err := commit(ctx, s, onlyDuplicates(handled)); err != nil {
		return Result{}, err
	}
	in.cfg.Failpoint("after_db_commit")
	return Result{Handled: handled, Next: b.Next, Duration: time.Since(start)}, nil
}

// discard ends a failed transaction. Where the connection itself may be at
// fault (a demoted primary, a lost server) it is not used again.
func discard(ctx context.Context, conn *pgx.Conn, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if !connectionFault(cause) {
		if conn.PgConn().TxStatus() == 'I' {
			return
		}
		if _, err := conn.Exec(ctx, "ROLLBACK"); err == nil {
			return
		}
	}
	_ = conn.Close(ctx)
}

// connectionFault is true for transient errors other than those of one
// statement against another.
func connectionFault(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "40001", "40P01", "55P03", "57014":
			return false
		}
	}
	return Classify(err) == ClassTransient
}

// answer is what the database said about the slots.
type answer struct {
	fresh    []bool // the marker was inserted
	existing []existing
}

// existing is a marker that was there already.
type existing struct {
	found     bool
	topic     bool // the same topic
	partition int32
	offset    int64
	hash      *int64
}

// mark opens the transaction and writes markers and progress in one round
// trip. It returns what is known of each event: Processed for the fresh ones,
// whose effects are still to come.
func (in *Inbox) mark(ctx context.Context, s *session, b Batch, p *plan) ([]Handled, error) {
	m := p.markers(b)
	a := answer{make([]bool, len(m.ids)), make([]existing, len(m.ids))}
	pipe := &pgx.Batch{}
	pipe.Queue(beginSQL)
	pipe.Queue(settingsSQL, in.settings[0], in.settings[1])
	switch {
	case len(m.ids) == 0:
	case b.Replay:
		pipe.Queue(existingSQL, in.cfg.Group, m.ids, b.Topic)
	default:
		pipe.Queue(markerSQL, in.cfg.Group, b.Topic, b.Partition, m.ids, m.offsets, m.hashes)
	}
	if b.Next > 0 {
		pipe.Queue(progressSQL, in.cfg.Group, b.Topic, b.Partition, b.TopicID, b.Next)
	}
	if b.Also != nil {
		b.Also(pipe)
	}
	n := pipe.Len()
	results := s.conn.SendBatch(ctx, pipe)
	defer func() { _ = results.Close() }()
	for i := range n {
		if i != 2 || len(m.ids) == 0 {
			if _, err := results.Exec(); err != nil {
				return nil, fmt.Errorf("open the transaction: %w", err)
			}
			continue
		}
		rows, err := results.Query()
		if err == nil {
			err = a.read(rows, m, b.Replay)
		}
		if err != nil {
			_ = results.Close()
			return nil, in.markerError(ctx, s, b, p, err)
		}
	}
	if err := results.Close(); err != nil {
		return nil, fmt.Errorf("open the transaction: %w", err)
	}
	if b.Replay {
		ids, offsets, hashes := m.only(func(k int) bool { return !a.existing[k].found })
		if len(ids) > 0 {
			rows, err := s.conn.Query(ctx, markerSQL, in.cfg.Group, b.Topic, b.Partition, ids, offsets, hashes)
			if err == nil {
				err = a.read(rows, m, false)
			}
			if err != nil {
				return nil, in.markerError(ctx, s, b, p, err)
			}
		}
	}
	if ids, _, _ := m.only(func(k int) bool { return !a.fresh[k] && !a.existing[k].found }); len(ids) > 0 {
		rows, err := s.conn.Query(ctx, existingSQL, in.cfg.Group, ids, b.Topic)
		if err == nil {
			err = a.read(rows, m, true)
		}
		if err != nil {
			return nil, fmt.Errorf("read the markers of duplicates: %w", err)
		}
	}
	return sortOut(b, p, m, a), nil
}

// read the rows of markerSQL or existingSQL.
func (a answer) read(rows pgx.Rows, m *markers, found bool) error {
	defer rows.Close()
	var id pgtype.DriverBytes // the driver's own memory: valid until the next row
	for rows.Next() {
		if !found {
			if err := rows.Scan(&id); err != nil {
				return err
			}
			if k, ok := m.find(id); ok {
				a.fresh[k] = true
			}
			continue
		}
		e := existing{found: true}
		if err := rows.Scan(&id, &e.topic, &e.partition, &e.offset, &e.hash); err != nil {
			return err
		}
		if k, ok := m.find(id); ok {
			a.existing[k] = e
		}
	}
	return rows.Err()
}

// sortOut tells fresh events from duplicates, and duplicates from other events
// that were given the same id.
func sortOut(b Batch, p *plan, m *markers, a answer) []Handled {
	handled := make([]Handled, len(b.Events))
	for i, ev := range b.Events {
		k := m.slot[i]
		if k < 0 {
			handled[i] = p.dead[i]
			continue
		}
		first := m.first[k]
		switch {
		case a.fresh[k] && first == i:
			// Processed
		case a.fresh[k]:
			handled[i] = duplicate(b, ev, p.hashes[i], existing{true, true, b.Partition, b.Events[first].Offset, &p.hashes[first]})
		case a.existing[k].found:
			handled[i] = duplicate(b, ev, p.hashes[i], a.existing[k])
		default:
			handled[i] = Handled{Outcome: Duplicate}
		}
	}
	return handled
}

// ErrIDConflict says that two different events carry one id.
var ErrIDConflict = errors.New("the event id belongs to another event, with another payload: the producer reused it")

func duplicate(b Batch, ev Event, h int64, e existing) Handled {
	d := Handled{Outcome: Duplicate, Origin: OtherOffset, FirstPartition: e.partition, FirstOffset: e.offset}
	if e.topic && e.partition == b.Partition && e.offset == ev.Offset {
		d.Origin = SameOffset
	}
	if e.hash != nil && *e.hash != h {
		d.Outcome, d.Reason, d.Attempts = DeadLettered, ReasonIDConflict, 1
		d.Err = fmt.Errorf("%w (first seen in partition %d at offset %d)", ErrIDConflict, e.partition, e.offset)
	}
	return d
}

// effects runs the handlers of the fresh events in offset order and sends what
// they queued.
func (in *Inbox) effects(ctx context.Context, s *session, b Batch, p *plan, handled []Handled) error {
	fresh := make([]int, 0, len(handled))
	for i := range handled {
		if handled[i].Outcome == Processed {
			fresh = append(fresh, i)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if in.cfg.BatchHandler != nil && !p.noSet {
		evs := make([]Event, len(fresh))
		for k, i := range fresh {
			evs[k] = b.Events[i]
		}
		tx := &Tx{s: s, index: setBased}
		err := in.cfg.BatchHandler(ctx, tx, evs)
		if err := in.settle(ctx, s, tx, err); err != nil {
			return &pipelineError{index: setBased, err: err}
		}
		in.cfg.Failpoint("in_effect")
		return nil
	}
	for _, i := range fresh {
		tx := &Tx{s: s, index: i}
		err := in.cfg.Handler(ctx, tx, b.Events[i])
		in.cfg.Failpoint("in_effect")
		if swallowed := tx.close(); swallowed != nil {
			err = swallowed
		}
		if err == nil && p.oneByOne {
			err = s.flush(ctx)
		}
		if err == nil && !s.inTransaction() {
			err = errNoTransaction
		}
		if err != nil {
			return pin(b, i, err)
		}
	}
	return s.flush(ctx)
}

// errNoTransaction says that after a handler the transaction was gone, or had
// failed although the handler reported success.
var errNoTransaction = fmt.Errorf("%w (the transaction was no longer open after it returned)", ErrTransactionControl)

// settle ends the batch handler's Tx and sends the rest of its statements.
func (in *Inbox) settle(ctx context.Context, s *session, tx *Tx, err error) error {
	if swallowed := tx.close(); swallowed != nil {
		err = swallowed
	}
	if err == nil {
		err = s.flush(ctx)
	}
	if err == nil && !s.inTransaction() {
		err = errNoTransaction
	}
	return err
}

// pin blames the event whose handler failed, unless the error is one of the
// pipeline, which knows better.
func pin(b Batch, i int, err error) error {
	var pe *pipelineError
	if errors.As(err, &pe) {
		return err
	}
	return &EventError{Index: i, Event: b.Events[i], Err: err}
}

// letters writes the dead letters of the batch.
func (in *Inbox) letters(ctx context.Context, s *session, b Batch, handled []Handled) error {
	pipe := &pgx.Batch{}
	var dead []int // the event behind each statement
	for i, h := range handled {
		if h.Outcome != DeadLettered {
			continue
		}
		dead = append(dead, i)
		ev := b.Events[i]
		l := deadletter.Letter{
			Group: in.cfg.Group, EventID: ev.ID, Topic: b.Topic, TopicID: b.TopicID, Partition: b.Partition, Offset: ev.Offset,
			Reason: h.Reason, Error: message(h.Err), Attempts: h.Attempts, Key: ev.Key, Value: ev.Value, RecordTime: ev.Time,
		}
		if h.Reason == ReasonIDConflict {
			l.FirstPartition, l.FirstOffset = &h.FirstPartition, &h.FirstOffset
		}
		for _, header := range ev.Headers {
			l.Headers = append(l.Headers, deadletter.Header(header))
		}
		if err := l.Queue(pipe); err != nil {
			return fmt.Errorf("write the dead letter of event %q: %w", ev.ID, err)
		}
	}
	if pipe.Len() == 0 {
		return nil
	}
	in.cfg.Failpoint("dead_letter")
	results := s.conn.SendBatch(ctx, pipe)
	defer func() { _ = results.Close() }()
	for _, i := range dead {
		if _, err := results.Exec(); err != nil {
			// Not a data error of the event: nothing may pass until it is stored.
			return fmt.Errorf("%w: write the dead letter of event %q (%s/%d offset %d): %w", errConnection, b.Events[i].ID, b.Topic, b.Partition, b.Events[i].Offset, opaque{err})
		}
	}
	if err := results.Close(); err != nil {
		return fmt.Errorf("%w: write dead letters: %w", errConnection, opaque{err})
	}
	return nil
}

// opaque hides an error's SQLSTATE, so that a failing dead-letter table is not
// taken for a failing event.
type opaque struct{ err error }

func (o opaque) Error() string { return o.err.Error() }

// message is what is stored: the server's message without its detail, which
// would repeat values.
func message(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	return err.Error()
}

func onlyDuplicates(handled []Handled) bool {
	for i := range handled {
		if handled[i].Outcome != Duplicate {
			return false
		}
	}
	return true
}

// commit refuses a transaction that is no longer sound: PostgreSQL answers
// COMMIT of a failed one with a ROLLBACK and no error.
//
// One that only moved the progress past duplicates does not wait for the disk:
// should the server crash and forget it, they are skipped once more.
func commit(ctx context.Context, s *session, lazy bool) error {
	if !s.inTransaction() {
		return errNoTransaction
	}
	sql := "COMMIT"
	if lazy {
		sql = "SET LOCAL synchronous_commit = off; COMMIT"
	}
	tag, err := s.conn.Exec(ctx, sql)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if tag.String() != "COMMIT" {
		return fmt.Errorf("%w: the server answered COMMIT with %s", errConnection, tag)
	}
	return nil
}
