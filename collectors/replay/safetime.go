package replay

import (
	"context"
	"time"

	"oncewatch/collectors/kafka"
)

// Precision of a safe time, and how many questions may be put for it: enough
// for a century.
const (
	safePrecision = time.Second
	safeSteps     = 40
)

// SafeTimes sets the partitions' and topics' safe times. Kafka resets to the
// first record at or after a time, so the safe time of a partition is the
// earliest whose first record is at the safe offset or above: found by asking
// for all partitions at once, a step at a time, to a second. What the broker
// does not tell stays unknown.
func (a *Answer) SafeTimes(ctx context.Context, lister OffsetLister) error {
	type search struct {
		*Partition
		low, high time.Time // of a record that is not safe; safe
		at        int64     // where a reset to high leads to; -1: not asked
	}
	open := map[string]map[int32]*search{}
	ask := func(at func(*search) time.Time) map[string]map[int32]time.Time {
		out := map[string]map[int32]time.Time{}
		for topic, partitions := range open {
			for id, s := range partitions {
				if out[topic] == nil {
					out[topic] = map[int32]time.Time{}
				}
				out[topic][id] = at(s)
			}
		}
		return out
	}
	for i := range a.Topics {
		t := &a.Topics[i]
		open[t.Topic] = map[int32]*search{}
		for j := range t.Partitions {
			if p := &t.Partitions[j]; p.LogStart < p.Committed && p.SafeOffset < p.Committed {
				open[t.Topic][p.Partition] = &search{Partition: p, at: -1}
			}
		}
	}
	close := func(topic string, id int32, at time.Time) {
		s := open[topic][id]
		delete(open[topic], id)
		// A time that leads beyond the group's offset would skip records.
		if !at.IsZero() && s.at >= 0 && s.at <= s.Committed {
			at = at.UTC()
			s.SafeTime = &at
		}
	}
	// The first record: where it is safe already, its own time will do.
	first := ask(func(*search) time.Time { return time.UnixMilli(0) })
	answers, err := list(ctx, lister, first)
	if err != nil {
		return err
	}
	for topic, partitions := range first {
		for id := range partitions {
			s, got := open[topic][id], answers[topic][id]
			switch {
			case got.Err != nil || got.Offset < 0 || got.AtLeast:
				close(topic, id, time.Time{})
			case s.SafeOffset <= max(got.Offset, s.LogStart):
				s.at = got.Offset
				close(topic, id, got.Timestamp)
			default:
				s.low, s.high = got.Timestamp, a.At.Add(time.Minute)
			}
		}
	}
	for range safeSteps {
		questions := ask(func(s *search) time.Time { return s.low.Add(s.high.Sub(s.low) / 2).Truncate(time.Millisecond) })
		if len(questions) == 0 {
			break
		}
		if answers, err = list(ctx, lister, questions); err != nil {
			return err
		}
		for topic, partitions := range questions {
			for id, at := range partitions {
				s, got := open[topic][id], answers[topic][id]
				switch {
				case got.Err != nil || got.AtLeast:
					close(topic, id, time.Time{})
					continue
				case got.Offset < 0:
					s.high, s.at = at, s.LogEnd
				case got.Offset >= s.SafeOffset:
					s.high, s.at = at, got.Offset
				default:
					s.low = got.Timestamp // that record is not safe
				}
				if s.high.Sub(s.low) <= safePrecision {
					close(topic, id, s.high)
				}
			}
		}
	}
	a.conclude()
	return nil
}

func list(ctx context.Context, lister OffsetLister, at map[string]map[int32]time.Time) (map[string]map[int32]kafka.ListedOffset, error) {
	if len(at) == 0 {
		return nil, nil
	}
	return lister.ListOffsets(ctx, at)
}
