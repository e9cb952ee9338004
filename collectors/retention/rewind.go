package retention

import (
	"context"
	"fmt"
	"slices"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
)

// rewind finds the time that belongs to an offset: the earliest to which a
// reset by time begins at that offset or later. It asks the broker for the first
// record at or after a time, and halves: a few rounds at each poll, only where
// something is exposed.
type rewind map[Log]*times2offsets

// times2offsets is what the broker has answered of one log, by time.
type times2offsets struct {
	id    kafka.TopicID
	known []answered
}

// answered says that the first record at or after a time (milliseconds) was at
// this offset, or that there was none below it.
type answered struct{ at, offset int64 }

const (
	rewindRounds = 4  // at each poll
	rewindKept   = 32 // answers of a log
)

// bracket is the latest time known to lie before an offset and the earliest
// known not to; 0 where there is none.
func (t *times2offsets) bracket(offset int64) (before, from int64) {
	for _, a := range t.known {
		if a.offset >= offset {
			return before, a.at
		}
		before = a.at
	}
	return before, 0
}

func (t *times2offsets) add(a answered) {
	i, found := slices.BinarySearchFunc(t.known, a.at, func(x answered, at int64) int { return int(min(max(x.at-at, -1), 1)) })
	if found {
		t.known[i] = a
		return
	}
	t.known = slices.Insert(t.known, i, a)
}

// question is the next time to ask for, or false where enough is known: to a
// second, or 1 % of the age.
func (t *times2offsets) question(offset int64, oldest kafka.Known[time.Time], now int64) (at int64, more bool) {
	before, from := t.bracket(offset)
	if from == 0 {
		return now, true
	}
	if before == 0 && oldest.OK {
		before = oldest.Value.UnixMilli()
	}
	if from-before <= max(1000, (now-from)/100) {
		return 0, false
	}
	return before + (from-before)/2, true
}

// find sets the series' SafeRewind.
func (r rewind) find(ctx context.Context, now time.Time, lister OffsetLister, topics *kafka.Topics, series []*Series) (problems []poll.Problem) {
	wanted := map[Log][]int64{}
	for _, s := range series {
		for _, p := range s.Partitions {
			if p.Safe.OK && p.Safe.Value > p.LogStart.Value {
				l := Log{s.Topic, p.Partition}
				if !slices.Contains(wanted[l], p.Safe.Value) {
					wanted[l] = append(wanted[l], p.Safe.Value)
				}
			}
		}
	}
	log := func(l Log) (one kafka.Partition, id kafka.TopicID) {
		if t := topics.Topics[l.Topic]; t != nil && int(l.Partition) < len(t.Partitions) {
			return t.Partitions[l.Partition], t.ID
		}
		return one, id
	}
	for l := range r {
		if _, ok := wanted[l]; !ok {
			delete(r, l)
		}
	}
	for l := range wanted {
		if _, id := log(l); r[l] == nil || r[l].id != id {
			r[l] = &times2offsets{id: id}
		}
	}
	for range rewindRounds {
		ask := map[string]map[int32]time.Time{}
		for l, offsets := range wanted {
			part, _ := log(l)
			for _, offset := range offsets {
				if at, more := r[l].question(offset, part.Oldest, now.UnixMilli()); more {
					if ask[l.Topic] == nil {
						ask[l.Topic] = map[int32]time.Time{}
					}
					ask[l.Topic][l.Partition] = time.UnixMilli(at)
					break
				}
			}
		}
		if len(ask) == 0 {
			break
		}
		answers, err := lister.ListOffsets(ctx, ask)
		if err != nil {
			return append(problems, poll.Problem{Kind: poll.Kind(err), Entity: "safe rewind", Err: err})
		}
		for topic, partitions := range ask {
			for id, at := range partitions {
				l := Log{topic, id}
				a, ok := answers[topic][id]
				switch part, _ := log(l); {
				case !ok || a.Err != nil || a.AtLeast:
					if a.Err != nil {
						problems = append(problems, poll.Problem{Kind: poll.Kind(a.Err), Entity: fmt.Sprintf("safe rewind, topic %s", topic), Err: a.Err})
					}
					delete(wanted, l)
				case a.Offset >= 0:
					r[l].add(answered{at.UnixMilli(), a.Offset})
				case part.End.OK:
					r[l].add(answered{at.UnixMilli(), part.End.Value})
				}
			}
		}
	}
	for l, offsets := range wanted {
		r[l].forget(offsets)
	}
	for _, s := range series {
		s.SafeRewind = r.safe(now, s)
	}
	return problems
}

// forget drops what no bracket needs, where that is much.
func (t *times2offsets) forget(offsets []int64) {
	if len(t.known) <= rewindKept {
		return
	}
	keep := map[int64]bool{}
	for _, o := range offsets {
		before, from := t.bracket(o)
		keep[before], keep[from] = true, true
	}
	t.known = slices.DeleteFunc(t.known, func(a answered) bool { return !keep[a.at] })
}

// safe is the latest of the partitions' times; where none limits it, that of
// the oldest record.
func (r rewind) safe(now time.Time, s *Series) kafka.Known[time.Time] {
	if !s.Complete() {
		return kafka.Known[time.Time]{}
	}
	var latest int64
	for _, p := range s.Partitions {
		if p.Safe.Value <= p.LogStart.Value {
			continue
		}
		t := r[Log{s.Topic, p.Partition}]
		if t == nil {
			return kafka.Known[time.Time]{}
		}
		_, from := t.bracket(p.Safe.Value)
		if from == 0 {
			return kafka.Known[time.Time]{}
		}
		latest = max(latest, from)
	}
	if latest > 0 {
		return known(time.UnixMilli(latest))
	}
	if age := s.Numbers.OldestRecord; age.OK {
		return known(now.Add(-age.Value))
	}
	return kafka.Known[time.Time]{}
}
