package stream

import (
	"context"
	"errors"
	"fmt"

	"oncewatch/reference-consumer/inbox"
)

// crashGuard finds the event that kills the process before anything about it
// can be counted. Beginnings are counted in the database: when batches began
// at one offset too often without being committed, their events are tried one
// at a time, and the one that kills again goes to the dead letters.
type crashGuard struct {
	// single is the offset up to which events are tried one at a time.
	single int64
	// counted is the offset whose attempt was counted last, plus one: trying
	// again within one process is no crash.
	counted int64
}

// singleLimit is how often an event on its own may kill the process.
const singleLimit = 2

const beginSQL = `INSERT INTO consumer_progress AS p (consumer_group, topic, partition, topic_id, next_offset, start_offset, starts)
VALUES ($1, $2, $3, $4, $5, $5, 1)
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET starts = CASE WHEN p.start_offset = excluded.start_offset AND p.topic_id = excluded.topic_id THEN p.starts + 1 ELSE 1 END,
    start_offset = excluded.start_offset
RETURNING starts, coalesce(single_offset, -1)`

const singleSQL = `UPDATE consumer_progress
SET single_starts = CASE WHEN single_offset = $4 THEN single_starts + 1 ELSE 1 END, single_offset = $4
WHERE consumer_group = $1 AND topic = $2 AND partition = $3 RETURNING single_starts`

// beginAt counts a beginning at an offset.
func beginAt(ctx context.Context, p *partition, offset int64, topicID [16]byte) (crashGuard, error) {
	var starts int
	var single int64
	err := p.c.cfg.Pool.QueryRow(ctx, beginSQL, p.c.cfg.Inbox.Group(), p.topic, p.id, topicID, offset).Scan(&starts, &single)
	if err != nil {
		return crashGuard{}, fmt.Errorf("count the beginning at %s/%d offset %d: %w", p.topic, p.id, offset, err)
	}
	if starts <= p.c.cfg.CrashLimit && single != offset {
		return crashGuard{}, nil
	}
	p.c.cfg.Log.Warn("earlier beginnings at this offset never ended: trying events one at a time",
		"consumer_group", p.c.cfg.Inbox.Group(), "topic", p.topic, "partition", p.id, "offset", offset, "starts", starts)
	return crashGuard{single: offset + int64(p.c.cfg.BatchSize)}, nil
}

// errCrash is the reason of a dead letter.
var errCrash = errors.New("handling this event ended the process each time")

// before says how many records the next batch may have (0: no limit) and
// whether its event is to be dead-lettered untried.
func (g *crashGuard) before(p *partition, offset int64) (int, error, error) {
	if offset >= g.single {
		return 0, nil, nil
	}
	if g.counted == offset+1 {
		return 1, nil, nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, commitTimeout)
	defer cancel()
	var tries int
	err := p.c.cfg.Pool.QueryRow(ctx, singleSQL, p.c.cfg.Inbox.Group(), p.topic, p.id, offset).Scan(&tries)
	if err != nil {
		return 0, nil, fmt.Errorf("count the attempt at %s/%d offset %d: %w", p.topic, p.id, offset, err)
	}
	g.counted = offset + 1
	if tries > singleLimit {
		return 1, &inbox.DataError{Reason: inbox.ReasonCrash, Err: errCrash}, nil
	}
	return 1, nil, nil
}

// passed ends the careful mode once the offset is behind us.
func (g *crashGuard) passed(next int64) {
	if next >= g.single {
		g.single = 0
	}
}
