package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/retry"
)

// progress is what the database knows of a partition.
type progress struct {
	topicID [16]byte
	next    int64
	// handled is the highest next there ever was.
	handled int64
}

// extent of a partition's log on the broker.
type extent struct{ start, end int64 }

// reconcile decides where each assigned partition begins, from the offset in
// the database, which moved in the same transaction as the effects, and the
// one the group committed.
func (c *consumer) reconcile(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	for attempt := 1; ; attempt++ {
		err := c.reconcileOnce(ctx, offsets)
		if err == nil {
			return offsets, nil
		}
		c.cfg.Log.Warn("could not compare offsets with the database", "consumer_group", c.group, "error", err)
		if retry.Wait(ctx, retry.Backoff(200*time.Millisecond, 3*time.Second, attempt)) != nil {
			return nil, err
		}
	}
}

func (c *consumer) reconcileOnce(ctx context.Context, offsets map[string]map[int32]kgo.Offset) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	names := make([]string, 0, len(offsets))
	for topic := range offsets {
		names = append(names, topic)
	}
	if len(names) == 0 {
		return nil
	}
	topics, err := c.admin.ListTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("read the topics' ids: %w", err)
	}
	starts, err := c.admin.ListStartOffsets(ctx, names...)
	if err != nil {
		return fmt.Errorf("read the logs' starts: %w", err)
	}
	ends, err := c.admin.ListEndOffsets(ctx, names...)
	if err != nil {
		return fmt.Errorf("read the logs' ends: %w", err)
	}
	known, err := c.progress(ctx, names)
	if err != nil {
		return err
	}
	for topic, parts := range offsets {
		if err := topics[topic].Err; err != nil {
			return fmt.Errorf("read the id of topic %s: %w", topic, err)
		}
		for id, offset := range parts {
			start, ok := starts.Lookup(topic, id)
			if !ok || start.Err != nil {
				return fmt.Errorf("read the start of %s/%d: %w", topic, id, start.Err)
			}
			end, ok := ends.Lookup(topic, id)
			if !ok || end.Err != nil {
				return fmt.Errorf("read the end of %s/%d: %w", topic, id, end.Err)
			}
			committed := int64(-1)
			if at := offset.EpochOffset().Offset; at >= 0 {
				committed = at
			}
			d := decide(committed, known[topic][id], topics[topic].ID, extent{start.Offset, end.Offset})
			var handled int64
			if db := known[topic][id]; db != nil && db.topicID == topics[topic].ID {
				handled = db.handled
			}
			c.apply(topic, id, topics[topic].ID, d, start.Offset, handled)
			if d.offset >= 0 && d.offset != committed {
				parts[id] = kgo.NewOffset().At(d.offset).WithEpoch(-1)
			}
		}
	}
	return nil
}

// decision where a partition begins.
type decision struct {
	offset int64 // -1: leave it to the group's start offset
	lost   int64 // records below the log's start that were never handled
	why    string
}

// decide compares the committed offset (-1: none) with the database's. Begin
// too early and the markers absorb it; begin too late and events are lost. So
// the smaller one wins, as far as it lies in the log.
func decide(committed int64, db *progress, topicID [16]byte, log extent) decision {
	if db != nil && db.topicID != topicID {
		return decision{offset: log.start, why: "the topic was created anew: starting over, the markers stay"}
	}
	kafkaValid := committed >= log.start && committed <= log.end
	switch {
	case db == nil && committed < 0:
		return decision{offset: -1}
	case db == nil && committed < log.start:
		return decision{offset: log.start, lost: log.start - committed, why: "the broker deleted records before they were handled"}
	case db == nil && !kafkaValid:
		return decision{offset: log.start, why: "the committed offset lies beyond the log: starting over, the markers absorb what is known"}
	case db == nil:
		return decision{offset: committed}
	case db.next < log.start && db.handled < log.start:
		return decision{offset: log.start, lost: log.start - max(db.next, db.handled), why: "the broker deleted records before they were handled"}
	case db.next < log.start:
		return decision{offset: log.start, why: "the broker deleted records of a replay that had been handled before"}
	case db.next > log.end:
		if kafkaValid && committed < db.next {
			return decision{offset: committed, why: "the database is beyond the log's end"}
		}
		return decision{offset: log.start, why: "the log ends before the database's offset: starting over, the markers absorb what is known"}
	case !kafkaValid:
		return decision{offset: db.next, why: "the group's offset is missing or outside the log: going on from the database's"}
	case db.next < committed:
		return decision{offset: db.next, why: "the group's offset was committed ahead of the database: going back"}
	case committed < db.next:
		return decision{offset: committed, why: "the group's offset is behind the database: replaying, the markers absorb it"}
	}
	return decision{offset: committed}
}

// apply tells the worker and the operator what was decided.
func (c *consumer) apply(topic string, id int32, topicID [16]byte, d decision, logStart, handled int64) {
	if p := c.partition(topic, id); p != nil {
		p.setTopicID(topicID)
		at := d.offset
		if at < 0 {
			at = logStart
		}
		p.position.set(at, handled)
		p.countLost(d.offset-d.lost, d.offset)
	}
	if d.why != "" {
		c.cfg.Log.Warn("offset reconciled: "+d.why, "consumer_group", c.group, "topic", topic, "partition", id, "offset", d.offset, "lost", d.lost)
	}
}

func (c *consumer) progress(ctx context.Context, topics []string) (map[string]map[int32]*progress, error) {
	rows, err := c.cfg.Pool.Query(ctx, `SELECT topic, partition, topic_id, next_offset, coalesce(handled_offset, next_offset) FROM consumer_progress
WHERE consumer_group = $1 AND topic = ANY ($2)`, c.group, topics)
	if err != nil {
		return nil, fmt.Errorf("read the progress: %w", err)
	}
	known := map[string]map[int32]*progress{}
	var topic string
	var id int32
	var pr progress
	_, err = pgx.ForEachRow(rows, []any{&topic, &id, &pr.topicID, &pr.next, &pr.handled}, func() error {
		if known[topic] == nil {
			known[topic] = map[int32]*progress{}
		}
		row := pr
		known[topic][id] = &row
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the progress: %w", err)
	}
	return known, nil
}
