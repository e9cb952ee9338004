package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/reference-consumer/inbox"
)

// place is a group's partition: the key of its rows in the database.
type place struct {
	group, topic string
	id           int32
}

// crashGuard finds the event that kills the process before anything about it
// can be counted. Processes that died are counted in the database: each counts
// its beginning at an offset and takes it back when the batch is committed,
// fails with an error, or is given up in order (a revocation, a shutdown), so
// that what remains are the deaths. When too many died in one batch its events
// are tried one at a time, alone in the process, and counted around the handler
// itself; the one that kills again goes to the dead letters.
type crashGuard struct {
	place
	pool  *pgxpool.Pool
	log   *slog.Logger
	limit int   // deaths in a batch until its events are tried one at a time
	batch int64 // events of a batch

	begun   int64 // offset of the beginning that is counted; -1: none
	settled bool  // a batch of this assignment has been committed
	// single is the offset up to which events are tried one at a time.
	single int64
}

// singleLimit is how many processes may die in the handler of one event.
const singleLimit = 3

const beginSQL = `INSERT INTO consumer_progress AS p (consumer_group, topic, partition, topic_id, next_offset, start_offset, starts, first_offset)
VALUES ($1, $2, $3, $4, $5, $5, 1, $5)
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET starts = CASE WHEN p.start_offset = excluded.start_offset AND p.topic_id = excluded.topic_id THEN p.starts + 1 ELSE 1 END,
    start_offset = excluded.start_offset,
    first_offset = CASE WHEN p.topic_id <> excluded.topic_id THEN excluded.first_offset WHEN p.first_offset IS NOT NULL THEN least(p.first_offset, excluded.first_offset) END
RETURNING starts, coalesce(single_offset, -1)`

const overSQL = `UPDATE consumer_progress SET starts = greatest(starts - 1, 0)
WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND start_offset = $4`

const deathsSQL = `SELECT CASE WHEN single_offset = $4 THEN single_starts ELSE 0 END FROM consumer_progress
WHERE consumer_group = $1 AND topic = $2 AND partition = $3`

const trialSQL = `UPDATE consumer_progress
SET single_starts = CASE WHEN single_offset = $4 THEN single_starts + 1 ELSE 1 END, single_offset = $4
WHERE consumer_group = $1 AND topic = $2 AND partition = $3`

const trialOverSQL = `UPDATE consumer_progress SET single_starts = greatest(single_starts - 1, 0)
WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND single_offset = $4`

// begin counts a beginning at an offset, unless it is counted already or the
// assignment is past its first batch.
func (g *crashGuard) begin(ctx context.Context, offset int64, topicID [16]byte) error {
	if g.settled || g.begun >= 0 {
		return nil
	}
	var starts int
	var single int64
	if err := g.pool.QueryRow(ctx, beginSQL, g.group, g.topic, g.id, topicID, offset).Scan(&starts, &single); err != nil {
		return fmt.Errorf("count the beginning at %s/%d offset %d: %w", g.topic, g.id, offset, err)
	}
	g.begun = offset
	if starts > g.limit || single == offset {
		g.log.Warn("processes died in the batch at this offset: trying its events one at a time", "offset", offset, "starts", starts)
		g.single = max(g.single, offset+g.batch)
	}
	return nil
}

// over takes the beginning back: what it began has ended, and not with the
// process.
func (g *crashGuard) over() {
	if g.begun < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), overTimeout)
	defer cancel()
	if _, err := g.pool.Exec(ctx, overSQL, g.group, g.topic, g.id, g.begun); err != nil {
		g.log.Warn("could not take a beginning back: should this go on, events are tried one at a time", "offset", g.begun, "error", err)
		return
	}
	g.begun = -1
}

// overTimeout is short: it runs at the end of a worker, whose partition others
// wait for.
const overTimeout = 500 * time.Millisecond

// store takes the beginning back in the transaction that commits its batch.
func (g *crashGuard) store(pipe *pgx.Batch) {
	if g.begun >= 0 {
		pipe.Queue(overSQL, g.group, g.topic, g.id, g.begun)
	}
}

// stored notes that a batch has been committed, up to next.
func (g *crashGuard) stored(next int64) {
	g.begun, g.settled = -1, true
	if next >= g.single {
		g.single = 0
	}
}

// careful says that the event at an offset is to be tried alone.
func (g *crashGuard) careful(offset int64) bool { return offset < g.single }

// errCrash is why an event is dead-lettered untried.
var errCrash = errors.New("handling this event ended the process each time")

// verdict says whether the event at an offset has killed too often.
func (g *crashGuard) verdict(ctx context.Context, offset int64) (blame, err error) {
	var deaths int
	if err := g.pool.QueryRow(ctx, deathsSQL, g.group, g.topic, g.id, offset).Scan(&deaths); err != nil {
		return nil, fmt.Errorf("count the deaths at %s/%d offset %d: %w", g.topic, g.id, offset, err)
	}
	if deaths >= singleLimit {
		return &inbox.DataError{Reason: inbox.ReasonCrash, Err: errCrash}, nil
	}
	return nil, nil
}

// trial counts a call of an event's handler, and what it returns takes it back.
func (g *crashGuard) trial(offset int64) func(context.Context) (func(), error) {
	return func(ctx context.Context) (func(), error) {
		if _, err := g.pool.Exec(ctx, trialSQL, g.group, g.topic, g.id, offset); err != nil {
			return nil, fmt.Errorf("count the attempt at %s/%d offset %d: %w", g.topic, g.id, offset, err)
		}
		return func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
			defer cancel()
			if _, err := g.pool.Exec(ctx, trialOverSQL, g.group, g.topic, g.id, offset); err != nil {
				g.log.Warn("could not note that the handler returned", "offset", offset, "error", err)
			}
		}, nil
	}
}
