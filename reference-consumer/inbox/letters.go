package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"oncewatch/reference-consumer/deadletter"
)

// An event that turned out bad after its marker was written has none: once its
// cause is mended it is sent again and must not be taken for a duplicate.
const unmarkSQL = `DELETE FROM processed_events WHERE consumer_group = $1 AND event_id = ANY ($2)`

// letters writes the dead letters of the batch, and after a trial the progress:
// what counts the trial is in the same row, which would be locked before.
func (in *Inbox) letters(ctx context.Context, s *session, b Batch, handled []Handled) error {
	pipe := &pgx.Batch{}
	if len(s.unmark) > 0 {
		pipe.Queue(unmarkSQL, in.cfg.Group, s.unmark)
	}
	written := 0
	var dead []int // the event of each letter
	for i, h := range handled {
		if h.Outcome != DeadLettered {
			continue
		}
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
		q, err := l.Queue(pipe)
		if err != nil {
			return fmt.Errorf("write the dead letter of event %q: %w", ev.ID, err)
		}
		dead = append(dead, i)
		q.Exec(func(pgconn.CommandTag) error { written++; return nil })
	}
	if b.Trial != nil {
		in.move(pipe, b)
	}
	if pipe.Len() == 0 {
		return nil
	}
	in.cfg.Failpoint("dead_letter")
	if err := s.conn.SendBatch(ctx, pipe).Close(); err != nil {
		// Not a data error of the event: nothing may pass until it is stored.
		if len(dead) == 0 {
			return fmt.Errorf("write the progress: %w", err)
		}
		first := b.Events[dead[min(written, len(dead)-1)]]
		return fmt.Errorf("%w: write the dead letter of event %q (%s/%d offset %d): %w", errConnection, first.ID, b.Topic, b.Partition, first.Offset, opaque{err})
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
