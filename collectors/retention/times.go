package retention

import (
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// timesKey is a series of markers without offsets: topic is empty where the
// table has no such column.
type timesKey struct{ database, group, topic string }

// times compares by time where markers carry no offset: records older than the
// newest marker that was pruned are unprotected. It trusts the records'
// timestamps within a margin, and takes three precautions against counting what
// is protected or was never handled:
//
//   - only records that the group has handled since markers of it were seen;
//   - not those of a replay, until its own markers are pruned;
//   - no more than there are records without a surviving marker.
type times struct {
	margin   time.Duration
	perTopic bool
	subjects []*subject // of this poll

	// oldest is, by our clock, the oldest marker now; from that of the first
	// complete look.
	oldest, from time.Time
	// gone is, by our clock, the newest marker seen to be pruned; zero: none.
	gone     time.Time
	observed time.Duration // as it was when gone was computed
	parts    map[timesPart]*timesSeen
}

type timesPart struct {
	topic     string
	partition int32
}

// timesSeen is what was seen of a partition's commits.
type timesSeen struct {
	first, last int64
	// Offsets from replay on are handled again since replayAt.
	replay   int64
	replayAt time.Time
}

func newTimes(margin time.Duration, perTopic bool) *times {
	return &times{margin: margin, perTopic: perTopic, parts: map[timesPart]*timesSeen{}}
}

// see learns from the newest snapshots, once a poll.
func (t *times) see(now time.Time, m *postgres.Markers, marked *postgres.Series, group *kafka.Group) {
	t.subjects = nil
	t.oldest = time.Time{}
	if !marked.Oldest.IsZero() {
		t.oldest = now.Add(-m.Age(marked.Oldest, now))
	}
	if m.Ready && t.from.IsZero() {
		t.from = t.oldest
	}
	if marked.Pruning && marked.ObservedRetention != t.observed {
		// Its age when it was found to be gone, in this snapshot.
		t.observed = marked.ObservedRetention
		if gone := m.ReadAt.Add(-t.observed); gone.After(t.gone) {
			t.gone = gone
		}
	}
	for i := range group.Topics {
		topic := &group.Topics[i]
		for _, p := range topic.Partitions {
			key := timesPart{topic.Topic, p.Partition}
			seen := t.parts[key]
			if seen == nil {
				seen = &timesSeen{first: p.Committed, last: p.Committed}
				t.parts[key] = seen
			}
			if p.Committed < seen.last {
				seen.replay, seen.replayAt = p.Committed, now
			}
			seen.last = p.Committed
		}
	}
}

func (t *times) ask(s *subject, q *questions) {
	for _, p := range s.parts {
		if s.settled(p) {
			continue
		}
		if t.perTopic && !t.from.IsZero() {
			q.ask(s.series.Topic, p.Partition.Partition, t.from.Add(t.margin))
		}
		if t.counts(p) {
			q.ask(s.series.Topic, p.Partition.Partition, t.gone.Add(-t.margin))
		}
	}
}

// counts says whether the first record is older than what was pruned.
func (t *times) counts(p *part) bool {
	return p.oldest.OK && !t.gone.IsZero() && p.oldest.Value.Before(t.gone.Add(-t.margin))
}

// judge judges all subjects together, when it comes to the last: a table
// without topics has one number of markers for all of them.
func (t *times) judge(s *subject, q *questions) {
	if s != t.subjects[len(t.subjects)-1] {
		return
	}
	type verdict struct {
		subject *subject
		*part
		count int64
	}
	var verdicts []verdict
	var records, total int64
	for _, s := range t.subjects {
		for _, p := range s.parts {
			if s.settled(p) {
				continue
			}
			id := p.Partition.Partition
			seen := t.parts[timesPart{s.series.Topic, id}]
			from := seen.first
			if t.perTopic && !t.from.IsZero() {
				offset, _, ok := q.got(s.series.Topic, id, t.from.Add(t.margin), p.end.Value)
				if !ok {
					p.Why = "the broker did not tell which records are as young as the oldest marker"
					continue
				}
				from = min(from, offset)
			}
			low := max(p.start.Value, from)
			records += max(0, p.Committed-low)
			v := verdict{subject: s, part: p}
			switch {
			case !p.oldest.OK:
				p.Why = "the first record's time is not known"
			case t.counts(p):
				cut, exact, ok := q.got(s.series.Topic, id, t.gone.Add(-t.margin), p.end.Value)
				if !ok || !exact {
					p.Why = "the broker did not tell which records are older than the pruned markers"
					break
				}
				if !seen.replayAt.IsZero() && t.gone.Before(seen.replayAt.Add(t.margin)) {
					cut = min(cut, seen.replay)
				}
				cut = min(cut, p.Committed)
				v.count = max(0, cut-low)
				p.Unseen = max(0, min(from, cut)-p.start.Value)
				total += v.count
			case p.oldest.Value.After(s.series.at.Add(t.margin)):
				p.Why = "the first record's timestamp lies in the future"
			case t.gone.IsZero() && (t.oldest.IsZero() || p.oldest.Value.Before(t.oldest.Add(t.margin))):
				p.Why = "no pruning has been seen yet, and no marker is older than the first record"
			case p.oldest.Value.Before(t.gone.Add(t.margin)):
				p.Why = "the first record and the newest pruned marker are too close in time to tell"
			}
			if p.Why == "" {
				verdicts = append(verdicts, v)
			}
		}
	}
	left := records - s.marked.Rows // records that no marker can be left for
	for _, v := range verdicts {
		switch {
		case v.count > 0 && left <= 0:
			v.Why = "by time their markers are gone, but as many markers are left as there are records"
			continue
		case v.count > 0 && left < total:
			v.count = share(v.count, left, total)
		case t.gone.IsZero() && left > 0:
			// One old marker that was left behind proves nothing of the others.
			v.Why = "no pruning has been seen yet, and there are fewer markers than records"
			continue
		}
		v.subject.conclude(v.part, v.count)
	}
}

func share(n, part, whole int64) int64 {
	return int64(float64(n) * (float64(part) / float64(whole)))
}

var _ method = (*times)(nil)
