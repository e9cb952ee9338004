package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	// ON CONFLICT, not catching the unique violation: a violation costs a
	// transaction id, a dead tuple and a line in the server's log each.
	markerSQL = `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset", payload_hash)
SELECT $1, m.id, $2, $3, m.off, m.hash FROM unnest($4::text[], $5::bigint[], $6::bigint[]) AS m(id, off, hash)
ON CONFLICT DO NOTHING RETURNING event_id`

	existingSQL = `SELECT event_id, topic = $3, partition, "offset", payload_hash FROM processed_events
WHERE consumer_group = $1 AND event_id = ANY ($2)`

	progressSQL = `INSERT INTO consumer_progress AS p (consumer_group, topic, partition, topic_id, next_offset, handled_offset)
VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET topic_id = excluded.topic_id, next_offset = excluded.next_offset, updated_at = now(),
    handled_offset = CASE WHEN p.topic_id = excluded.topic_id THEN greatest(p.handled_offset, excluded.next_offset) ELSE excluded.next_offset END`
)

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
	var markerErr error
	pipe := &pgx.Batch{}
	s.begin(pipe, milliseconds(in.cfg.StatementTimeout), milliseconds(in.cfg.IdleTimeout))
	if len(m.ids) > 0 {
		var q *pgx.QueuedQuery
		if b.Replay {
			q = pipe.Queue(existingSQL, in.cfg.Group, m.ids, b.Topic)
		} else {
			q = pipe.Queue(markerSQL, in.cfg.Group, b.Topic, b.Partition, m.ids, m.offsets, m.hashes)
		}
		q.Query(func(rows pgx.Rows) error { markerErr = a.read(rows, m, b.Replay); return markerErr })
	}
	if b.Trial == nil {
		in.move(pipe, b)
	}
	if err := s.conn.SendBatch(ctx, pipe).Close(); markerErr != nil {
		return nil, in.markerError(ctx, s, b, p, markerErr)
	} else if err != nil {
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

// move the progress, and what moves with it.
func (in *Inbox) move(pipe *pgx.Batch, b Batch) {
	if b.Next > 0 {
		pipe.Queue(progressSQL, in.cfg.Group, b.Topic, b.Partition, b.TopicID, b.Next)
	}
	if b.Also != nil {
		b.Also(pipe)
	}
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
	p.repeated = nil
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
			p.repeat(first)
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

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
