package checklist

import (
	"fmt"

	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
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
	var n, unverified int64
	unread, outside := 0, false
	for _, p := range s.commits.Partitions {
		if p.Committed < 0 || !p.Expired.OK || p.Expired.Value < 0 || !p.OutOfRange.OK {
			unread++
			continue
		}
		n = add(n, p.Expired.Value)
		unverified = add(unverified, max(0, p.Unverified))
		switch {
		case p.Expired.Value > 0:
			l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: committed %d, %s after it were deleted unread", p.Partition, p.Committed, number.Of(p.Expired.Value, "record")))
		case p.Beyond():
			outside = true
			l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: committed %d lies beyond the log's end", p.Partition, p.Committed))
		}
	}
	gaps, told := int64(0), false
	if s.consumed != nil && s.consumed.Lost.OK() {
		gaps, told = whole(s.consumed.Lost.Value)
		l.Evidence = append(l.Evidence, fmt.Sprintf("%s found missing by the consumers: %s", number.Of(gaps, "event"), s.consumed.Lost.From))
	}
	l.Value = number.Of(add(n, gaps), "record")
	switch {
	case outside:
		l.Verdict = Violated
		l.Meaning = "The committed offset lies beyond the log: the topic was made anew, and the next fetch resets the group."
		l.Remedy = "Decide where the group goes on before the consumer starts: the markers absorb a replay from the earliest offset."
	case n > 0 && n <= unverified && gaps == 0:
		l.Verdict, l.Value = Warning, "at most "+number.Of(n, "record")
		l.Meaning = "Offsets behind the committed one were deleted, and nobody saw what they held: all of them may have been transactions' own markers or records of aborted ones, which no consumer is given."
		l.Remedy = "Grant READ on the topic: oncewatch then looks at the headers of what waits, and can tell. Meanwhile compare with the producer whether an event is missing."
	case n > 0:
		if unverified > 0 {
			l.Evidence = append(l.Evidence, fmt.Sprintf("at most %s of these may have been transactions' own markers or records of aborted ones", number.Grouped(unverified)))
		}
		l.Verdict = Violated
		l.Meaning = "The broker deleted records before the group handled them."
		l.Remedy = "Find the events at their source and publish them again; then give the consumer more capacity or the topic a longer retention."
	case gaps > 0:
		l.Verdict = Violated
		l.Meaning = "The producers numbered events that never arrived, or the log no longer had them when the consumer came to them."
		l.Remedy = "Find the missing sequence numbers at the producer and publish them again."
	case unread > 0 || len(s.commits.Partitions) == 0:
		l.Value, l.Verdict = "", Unknown
		l.Meaning = fmt.Sprintf("%d of %d partitions could not be read.", unread, len(s.commits.Partitions))
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Topics}, "topic "+s.topic)
	case told:
		l.Verdict, l.Meaning = OK, "The group has lost nothing that the broker or the producers can tell."
	default:
		l.Verdict, l.Meaning = OK, "The group has lost nothing that the broker can tell."
	}
	l = s.whole(l)
	if gaps > 0 { // the consumers have missed these while they consumed the topic
		return l
	}
	return s.unlessLeft(l)
}
