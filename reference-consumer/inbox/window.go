package inbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"oncewatch/reference-consumer/schema"
)

// futureTolerance is how far an event id's time may be ahead of its record's
// before the producer's clock, and not a missing partition, is to blame.
const futureTolerance = 24 * time.Hour

// errNoPartition says that a marker cannot be stored yet.
var errNoPartition = errors.New("no partition of processed_events holds the event id: run `reference-consumer prune`, which creates partitions ahead")

// markerError explains a failed marker insert. On a partitioned table an event
// outside every partition is refused; older than all of them means that its
// marker may have been dropped, so applying it could double it.
func (in *Inbox) markerError(ctx context.Context, s *session, b Batch, p *plan, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "23514" {
		return fmt.Errorf("write markers: %w", err)
	}
	if _, err := s.conn.Exec(ctx, "ROLLBACK"); err != nil {
		return fmt.Errorf("%w: %w", errConnection, err)
	}
	w, err := loadWindow(ctx, s.conn)
	if err != nil {
		return err
	}
	progress := false
	for i, ev := range b.Events {
		if _, dead := p.dead[i]; dead || w.holds(ev.ID) {
			continue
		}
		why := w.refuse(ev)
		if Classify(why) != ClassData {
			return &EventError{Index: i, Event: ev, Err: why}
		}
		p.deadLetter(i, why, 1)
		progress = true
	}
	if !progress {
		// A partition went or came between the insert and the look: try again.
		return fmt.Errorf("%w: %w", errConnection, errNoPartition)
	}
	return errReplan
}

// errReplan: the plan has changed, do the attempt again at once.
var errReplan = errors.New("the plan has changed")

// window is the range of event ids the partitions cover.
type window struct{ parts [][2]string }

var boundExpr = regexp.MustCompile(`FROM \('([^']*)'\) TO \('([^']*)'\)`)

func loadWindow(ctx context.Context, conn *pgx.Conn) (window, error) {
	rows, err := conn.Query(ctx, `SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'processed_events'::regclass AND NOT i.inhdetachpending`)
	if err != nil {
		return window{}, fmt.Errorf("read the partitions: %w", err)
	}
	exprs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return window{}, fmt.Errorf("read the partitions: %w", err)
	}
	var w window
	for _, e := range exprs {
		if m := boundExpr.FindStringSubmatch(e); m != nil {
			w.parts = append(w.parts, [2]string{m[1], m[2]})
		}
	}
	return w, nil
}

func (w window) holds(id string) bool {
	for _, p := range w.parts {
		if p[0] <= id && id < p[1] {
			return true
		}
	}
	return false
}

// refuse says why an event without a partition cannot be handled.
func (w window) refuse(ev Event) error {
	u, err := uuid.Parse(ev.ID)
	if err != nil || u.Version() != 7 {
		return Invalid(fmt.Errorf("event id %q is not a UUIDv7: a table partitioned by event id needs ids that begin with their time", ev.ID))
	}
	older := true
	for _, p := range w.parts {
		older = older && ev.ID < p[0]
	}
	if older && len(w.parts) > 0 {
		return &DataError{ReasonTooOld, fmt.Errorf("event id %s is older than the oldest partition of processed_events: its marker may be gone, applying it could double it", ev.ID)}
	}
	if t, _ := schema.BoundTime(ev.ID); t.After(ev.Time.Add(futureTolerance)) {
		return Invalid(fmt.Errorf("event id %s lies more than %s after its record's own time: the producer's clock is wrong", ev.ID, futureTolerance))
	}
	return fmt.Errorf("%w: %w", errConnection, errNoPartition)
}
