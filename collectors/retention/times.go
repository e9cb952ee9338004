package retention

import (
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// timesKey is a series of markers without offsets: topic is empty where the
// table has no such column.
type timesKey struct{ database, group, topic string }

// times is what is remembered of markers that carry no offset. Records older
// than the newest marker that was pruned are unprotected. It trusts the records'
// timestamps within a margin, and takes three precautions against counting what
// is protected or was never handled:
//
//   - only records that the group has handled since markers of it were seen;
//   - not those of a replay, until its own markers are pruned;
//   - no more than there are records without a surviving marker.
//
// What these leave out, and what the margin blurs, is unverified. That pruning
// goes by age is taken for granted: a deletion in the middle is not seen.
type times struct {
	// oldest is, by our clock, the oldest marker now; from that of the first
	// complete look.
	oldest, from time.Time
	// gone is, by our clock, the newest marker seen to be pruned; zero: none.
	gone  time.Time
	parts map[Log]*Seen
}

// Log is a partition of a topic.
type Log struct {
	Topic     string
	Partition int32
}

// Seen is what was seen of a group's commits on a partition.
type Seen struct {
	First, Last int64
	// Offsets from Replay on are handled again since ReplayAt.
	Replay   int64
	ReplayAt time.Time
}

func newTimes() *times { return &times{parts: map[Log]*Seen{}} }

// see learns from the newest snapshots, once a poll.
func (t *times) see(now time.Time, m *postgres.Markers, marked *postgres.Series, group *kafka.Group) {
	t.oldest = time.Time{}
	if !marked.Oldest.IsZero() {
		t.oldest = now.Add(-m.Age(marked.Oldest, now))
	}
	if m.Ready && t.from.IsZero() {
		t.from = t.oldest
	}
	if !marked.PrunedTo.IsZero() {
		if gone := now.Add(-m.Age(marked.PrunedTo, now)); gone.After(t.gone) {
			t.gone = gone
		}
	}
	for i := range group.Topics {
		topic := &group.Topics[i]
		for _, p := range topic.Partitions {
			key := Log{topic.Topic, p.Partition}
			seen := t.parts[key]
			if seen == nil {
				seen = &Seen{First: p.Committed, Last: p.Committed}
				t.parts[key] = seen
			}
			if p.Committed < seen.Last {
				seen.Replay, seen.ReplayAt = p.Committed, now
			}
			seen.Last = p.Committed
		}
	}
}

// byTime judges all subjects of a series together: a table without topics has
// one number of markers for all of them.
type byTime struct {
	*times
	margin   time.Duration
	perTopic bool
	marked   *postgres.Series
	watched  *Watched
	subjects []*subject
}

func (t *byTime) ask(q *questions) {
	t.each(func(s *subject, p *part) {
		topic, id := s.series.Topic, p.Partition.Partition
		if t.perTopic && !t.from.IsZero() {
			q.ask(topic, id, t.from.Add(t.margin))
		}
		if t.counts(p) {
			q.ask(topic, id, t.gone.Add(-t.margin))
		}
		if end := t.end(); !end.IsZero() {
			q.ask(topic, id, end)
		}
	})
}

// each calls f for every partition that is not settled.
func (t *byTime) each(f func(*subject, *part)) {
	for _, s := range t.subjects {
		for _, p := range s.parts {
			if !s.settled(p) {
				f(s, p)
			}
		}
	}
}

// counts says whether the first record is older than what was pruned.
func (t *byTime) counts(p *part) bool {
	return p.oldest.OK && !t.gone.IsZero() && p.oldest.Value.Before(t.gone.Add(-t.margin))
}

// end is the time from which on every record's marker is there: zero where
// there is no such.
func (t *byTime) end() time.Time {
	switch {
	case t.oldest.IsZero(): // there is no marker at all
	case !t.gone.IsZero():
		return t.gone.Add(t.margin)
	default:
		return t.oldest.Add(t.margin)
	}
	return time.Time{}
}

// verdict is what is known of a partition: of the offsets from low to cut so
// many are gone; from the log start to end nothing else is sure.
type verdict struct {
	*subject
	*part
	from, low, cut, end int64
	count               int64
	replayed            bool
}

func (t *byTime) judge(q *questions) {
	var verdicts []*verdict
	var records, total int64
	t.each(func(s *subject, p *part) {
		v, why := t.verdict(q, s, p)
		if v == nil {
			s.unknown(p, why)
			return
		}
		p.Why = why
		records += max(0, p.Committed-max(p.start.Value, v.from))
		total += v.count
		verdicts = append(verdicts, v)
	})
	left := records - t.marked.Rows // records that no marker can be left for
	for _, v := range verdicts {
		switch {
		case v.count > 0 && left <= 0:
			v.Why = "by time their markers are gone, but as many markers are left as there are records"
			v.count = 0
		case v.count > 0 && left < total:
			v.count = share(v.count, left, total)
		case t.gone.IsZero() && left > 0:
			// One old marker that was left behind proves nothing of the others.
			v.Why = "no pruning has been seen yet, and there are fewer markers than records"
			v.end = v.Committed
		}
		if v.replayed && left <= 0 {
			v.end = v.start.Value
		}
		if s := v.subject; s.missed() {
			v.Why, v.end = "markers have vanished that are still being looked for", v.Committed
		}
		t.conclude(v)
	}
}

// verdict is nil where the broker's answer is missing, and says why.
func (t *byTime) verdict(q *questions, s *subject, p *part) (*verdict, string) {
	topic, id := s.series.Topic, p.Partition.Partition
	seen := t.parts[Log{topic, id}]
	v := &verdict{subject: s, part: p, from: seen.First, end: p.Committed}
	if t.perTopic && !t.from.IsZero() {
		offset, _, ok := q.got(topic, id, t.from.Add(t.margin), p.end.Value)
		if !ok {
			return nil, "the broker did not tell which records are as young as the oldest marker"
		}
		v.from = min(v.from, offset)
	}
	v.low = max(p.start.Value, v.from)
	if !p.oldest.OK {
		return v, "the first record's time is not known"
	}
	if p.oldest.Value.After(s.series.at.Add(t.margin)) {
		return v, "the first record's timestamp lies in the future"
	}
	if t.counts(p) {
		cut, exact, ok := q.got(topic, id, t.gone.Add(-t.margin), p.end.Value)
		if !ok || !exact {
			return v, "the broker did not tell which records are older than the pruned markers"
		}
		if !seen.ReplayAt.IsZero() && t.gone.Before(seen.ReplayAt.Add(t.margin)) {
			cut, v.replayed = min(cut, seen.Replay), true
		}
		v.cut = min(cut, p.Committed)
		v.count = max(0, v.cut-v.low)
	}
	end := t.end()
	if end.IsZero() {
		if t.marked.Rows > 0 {
			return v, "the markers carry no time"
		}
		return v, "there is no marker"
	}
	offset, exact, ok := q.got(topic, id, end, p.end.Value)
	if !ok || !exact {
		return v, "the broker did not tell which records are younger than the pruned markers"
	}
	if v.end = min(max(offset, p.start.Value), p.Committed); v.end == p.start.Value {
		return v, ""
	}
	switch {
	case t.gone.IsZero():
		return v, "no pruning has been seen yet, and no marker is older than the first record"
	case !t.counts(p):
		return v, "the first record and the newest pruned marker are too close in time to tell"
	}
	return v, ""
}

// conclude sets the partition's ranges and numbers.
func (t *byTime) conclude(v *verdict) {
	p := v.part
	if v.count > 0 {
		p.Gone = []handled.Range{{First: v.low, Last: v.cut - 1, Least: v.count, Most: v.count}}
	}
	// Below from, what the group passed unseen; above, but for what is gone.
	id := Place{v.subject.series.Group, v.subject.series.Topic, p.Partition.Partition}
	low := p.start.Value
	if began, ok := v.subject.marked.Began[int64(id.Partition)]; ok {
		low = max(low, began)
	}
	if !t.watched.began(id) {
		p.Unseen = t.watched.unverified(id, nil, low, min(v.from, v.end))
	} else if !t.gone.IsZero() { // where it began is not known, but that nothing had vanished then
		p.Unseen = all(low, min(v.from, v.end))
	} else {
		v.end = min(v.end, v.from)
	}
	if from, to := max(low, v.from), v.end; from < to {
		if n := to - from - v.count; n > 0 {
			p.Unseen = append(p.Unseen, handled.Range{First: from, Last: to - 1, Most: n})
		}
	}
	p.conclude()
}

func share(n, part, whole int64) int64 {
	return int64(float64(n) * (float64(part) / float64(whole)))
}
