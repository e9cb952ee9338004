package checklist

import (
	"fmt"
	"time"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// lost is the records that the broker deleted before the group handled them,
// and the events the consumers found missing.
func lost(s subject) Line {
	l := Line{Rule: "records-lost", Title: "Has any event been lost?", Threshold: "none"}
	if s.commits == nil {
		l.Verdict, l.Meaning = Unknown, "The group's commits on this topic could not be read, or there are none."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Groups}, "group "+s.group)
		return l
	}
	var n int64
	known, outside := false, false
	for _, p := range s.commits.Partitions {
		if p.Committed < 0 {
			continue
		}
		if p.Expired.OK {
			known = true
			n = add(n, p.Expired.Value)
			if p.Expired.Value > 0 {
				l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: committed %d, %s records after it were deleted unread", p.Partition, p.Committed, Number(p.Expired.Value)))
			}
		}
		if p.OutOfRange.OK && p.OutOfRange.Value && p.Expired.Value == 0 {
			outside = true
			l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: committed %d lies beyond the log's end", p.Partition, p.Committed))
		}
	}
	gaps := 0.0
	if s.consumed != nil {
		gaps = s.consumed.Lost
		if gaps > 0 {
			l.Evidence = append(l.Evidence, fmt.Sprintf("%s sequence numbers of the producers are missing, %s", Whole(gaps), s.window()))
		}
	}
	l.Value = Things(add(n, int64(min(gaps, 1e18))), "record")
	switch {
	case outside:
		l.Verdict = Violated
		l.Meaning = "The committed offset lies beyond the log: the topic was made anew, and the next fetch resets the group."
		l.Remedy = "Decide where the group goes on before the consumer starts: the markers absorb a replay from the earliest offset."
	case n > 0:
		l.Verdict = Violated
		l.Meaning = "The broker deleted records before the group handled them."
		l.Remedy = "Find the events at their source and publish them again; then give the consumer more capacity or the topic a longer retention."
	case gaps > 0:
		l.Verdict = Violated
		l.Meaning = "The producers numbered events that never arrived."
		l.Remedy = "Find the missing sequence numbers at the producer and publish them again."
	case !known:
		l.Verdict, l.Meaning = Unknown, "The topic's log could not be read."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Topics}, "topic "+s.topic)
	default:
		l.Verdict, l.Meaning = OK, "The group has lost nothing that the broker or the producers can tell."
		if s.consumed == nil {
			l.Meaning = "The group has lost nothing that the broker can tell."
		}
	}
	return l
}

// lag is how far behind the group is, in records and in time.
func lag(s subject) Line {
	l := Line{Rule: "lag", Title: "How far behind is the group?"}
	if s.commits == nil {
		return Line{} // lost has said so
	}
	var records int64
	var oldest time.Time
	for _, p := range s.commits.Partitions {
		if !p.Lag.OK {
			continue
		}
		records = add(records, p.Lag.Value)
		if w := p.Waiting; w.OK && !w.Value.IsZero() && (oldest.IsZero() || w.Value.Before(oldest)) {
			oldest = w.Value
		}
	}
	l.Value = Things(records, "record")
	wait := time.Duration(0)
	if !oldest.IsZero() && records > 0 {
		wait = max(0, s.facts.Now.Sub(oldest))
		l.Value += ", " + span.Text(wait)
	}
	l.Verdict, l.Meaning = OK, "The group keeps up."
	if s.log == nil || !s.log.Retention.OK {
		return l
	}
	keep := span.Seconds(s.log.Retention.Value.Seconds)
	l.Threshold = "far less than " + span.Text(keep)
	switch {
	case wait > keep/10*8:
		l.Verdict = Violated
		l.Meaning = "The oldest waiting record is about to be deleted unread."
		l.Remedy = "Start the consumer, give it more capacity, or raise retention.ms of " + s.topic + " now (and the markers' with it)."
	case wait > keep/10 || wait > time.Hour && float64(records) > s.facts.Thresholds.LagMin:
		l.Verdict = Warning
		l.Meaning = "The group is far behind; nothing is lost yet."
		l.Remedy = "See that the consumer runs and what it waits for."
	}
	return l
}
