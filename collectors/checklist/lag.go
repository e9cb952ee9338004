package checklist

import (
	"fmt"
	"time"

	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// lag is how far behind the group is, in records and in time.
func lag(s subject) Line {
	l := Line{Rule: "lag", Title: "How far behind is the group?"}
	if s.commits == nil {
		return Line{} // lost has said so
	}
	var records int64
	var oldest time.Time
	unread, timeless, beyond := 0, 0, 0
	for _, p := range s.commits.Partitions {
		if !p.Lag.OK || p.Lag.Value < 0 {
			unread++
			continue
		}
		records = add(records, p.Lag.Value)
		if p.Beyond() {
			beyond++
		}
		switch w := p.Waiting; {
		case p.Lag.Value == 0:
		case !w.OK || w.Value.IsZero():
			timeless++
		case oldest.IsZero() || w.Value.Before(oldest):
			oldest = w.Value
		}
	}
	if unread == len(s.commits.Partitions) {
		l.Verdict, l.Meaning = Unknown, "The log's ends could not be read."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Topics}, "topic "+s.topic)
		return l
	}
	l.Value = number.Of(records, "record")
	wait := time.Duration(0)
	if !oldest.IsZero() {
		wait = max(0, s.facts.Now.Sub(oldest))
		l.Value += ", " + span.Text(wait)
	}
	if unread > 0 {
		l.Value = "at least " + l.Value
	}
	keep := span.Unlimited
	l.Threshold = "not much"
	if known, _, _, ok := s.brokerKeeps(); ok && known > 0 && !s.log.Retention.Value.SizeLimited() {
		keep = known
		l.Threshold = fmt.Sprintf("below %g × %s", s.facts.Thresholds.ExpiringSoonShare, span.Text(keep))
	}
	waited := func(share float64) bool { return wait > span.Scale(keep, share) }
	t := s.facts.Thresholds
	switch {
	case waited(t.ExpiringShare):
		l.Verdict = Violated
		l.Meaning = "The oldest waiting record is about to be deleted unread."
		l.Remedy = "Start the consumer, give it more capacity, or raise retention.ms of " + s.topic + " now (and the markers' with it)."
	case waited(t.ExpiringSoonShare) || wait > time.Hour && float64(records) > t.LagMin:
		l.Verdict = Warning
		l.Meaning = "The group is far behind; nothing is lost yet."
		l.Remedy = "See that the consumer runs and what it waits for."
	case unread > 0:
		l.Verdict, l.Meaning = Unknown, fmt.Sprintf("%d of %d partitions could not be read.", unread, len(s.commits.Partitions))
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Topics}, "topic "+s.topic)
	case beyond > 0:
		l.Verdict, l.Meaning = Unknown, "The committed offset lies beyond the log's end, so what waits cannot be told by it."
		l.Remedy = "See to the offsets that are out of range first."
	case timeless > 0:
		l.Verdict, l.Meaning = Unknown, fmt.Sprintf("For how long records wait is not known in %s.", number.Of(int64(timeless), "partition"))
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Topics}, "topic "+s.topic)
	default:
		l.Verdict, l.Meaning = OK, "The group keeps up."
	}
	return l
}
