package checklist

import (
	"fmt"
	"slices"
	"time"

	"oncewatch/collectors/consumer"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// commits is line 5: how far does the offset commit trail the database's?
func commits(s subject) Line {
	limit := span.Seconds(s.facts.Thresholds.CommitLagCritical)
	l := Line{
		Rule: "commit-lag", Number: 5, Title: "How far does the offset commit trail the database commit?",
		Threshold: "at most " + span.Text(limit),
	}
	if s.consumed != nil && s.consumed.CommitLag.OK() && s.consumed.CommitLag.Value >= 0 {
		lag := span.Seconds(s.consumed.CommitLag.Value)
		l.Value, l.Evidence = span.Text(lag), []string{s.consumed.CommitLag.From}
		if lag > limit {
			l.Verdict = Violated
			l.Meaning = "What is in the database has not been acknowledged to the broker for long: a crash now redelivers all of it."
			l.Remedy = "See the consumer's log for refused offset commits and for a rebalance loop."
			return l
		}
		l.Verdict, l.Meaning = OK, "Offsets follow the database closely: a crash redelivers little."
		return s.whole(l)
	}
	ahead, evidence := s.markersAhead()
	if evidence == "" || s.markers.Newest.IsZero() {
		if _, ok := s.told(&l, "the time between the two commits is the consumer's to tell, and the table has no offsets to see it by", commitLag); ok {
			l.Meaning = "The consumers' commit lag is no number."
		}
		return l
	}
	l.Value, l.Threshold = number.Of(ahead, "record"), "few records"
	l.Evidence = append(l.Evidence, evidence)
	l.Verdict = OK
	l.Meaning = "Seen from outside: markers run ahead of the committed offset by what is between the two commits."
	// How old the newest marker was when the commits were read, whenever that
	// was: one that had stood for so long should have been committed past.
	stood := s.store.Markers.Age(s.markers.Newest, s.facts.Groups.At)
	l.Evidence = append(l.Evidence, fmt.Sprintf("the newest marker was %s old when the commits were read", span.Text(max(0, stood))))
	if float64(ahead) > s.facts.Thresholds.LagMin && stood > limit {
		l.Verdict = Warning
		l.Meaning = "Markers are far ahead of the committed offset and no longer moving: offset commits fail or have stopped, and a restart redelivers all of these."
		l.Remedy = "See the consumer's log for refused offset commits."
	}
	return l
}

func commitLag(v consumer.Values) consumer.Figure { return v.CommitLag }

// markersAhead is how far the newest markers are past the committed offsets,
// and where most.
func (s subject) markersAhead() (ahead int64, evidence string) {
	if s.commits == nil {
		return 0, ""
	}
	for _, p := range s.commits.Partitions {
		marked, ok := s.markers.Handled[int64(p.Partition)]
		if !ok || p.Committed < 0 || marked.To < 0 {
			continue
		}
		d := max(0, marked.To-p.Committed+1)
		if evidence == "" || d > ahead {
			evidence = fmt.Sprintf("partition %d: newest marker at offset %d, committed %d", p.Partition, marked.To, p.Committed)
			ahead = max(ahead, d)
		}
	}
	return ahead, evidence
}

// commitOrder is the failure row "offset committed before the transaction": an
// offset that is ahead of every marker. The commits it looks at were read
// before the markers were, so that a consumer that commits last has every
// marker of what it had committed by then.
func commitOrder(s subject) Line {
	l := Line{Rule: "commit-order", Title: "Was any offset committed before its transaction?", Threshold: "none"}
	if len(s.markers.Handled) == 0 {
		l.Verdict = Unknown
		l.Meaning = "Not looked at: the table has no partition and offset columns to compare with the committed offsets, or no markers yet."
		l.Remedy = "Assert enable.auto.commit=false in the consumer, and commit offsets only after the database."
		return l
	}
	var before *kafka.GroupTopic
	if s.store.Before != nil {
		if g := s.store.Before.Group(s.group); g != nil {
			before = g.Topic(s.topic)
		}
	}
	if before == nil {
		l.Verdict = Unknown
		l.Meaning = "The group's commits have not been read before the markers were, and only then can the two be compared."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Groups}, "group "+s.group)
		return l
	}
	if !s.markers.Counted || len(s.store.Markers.Inexact) > 0 {
		l.Verdict = Unknown
		l.Meaning = "The newest markers may not have been counted yet, so it cannot be told whether any is missing."
		l.Remedy = "See whether the marker counts are exact."
		return l
	}
	var worst, all int64
	compared := 0
	for _, p := range before.Partitions {
		marked, ok := s.markers.Handled[int64(p.Partition)]
		if !ok || p.Committed < 0 || marked.To < 0 {
			continue
		}
		compared++
		if d := p.Committed - 1 - marked.To; d > 0 {
			l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: committed %d, newest marker at offset %d: %s past the last marker", p.Partition, p.Committed, marked.To, number.Of(d, "record")))
			worst, all = max(worst, d), add(all, d)
		}
	}
	slices.Sort(l.Evidence)
	l.Evidence = append(l.Evidence, fmt.Sprintf("%d of %d partitions with a commit have markers to compare; commits read %s, markers %s",
		compared, len(before.Partitions), clock(s.store.Before.At), clock(s.store.Markers.ReadAt)))
	verify := fmt.Sprintf("oncewatch replay --verify --group=%s --topic=%s looks each record up.", shell(s.group), shell(s.topic))
	switch without, known := s.withoutMarkers(); {
	case compared == 0:
		l.Verdict, l.Meaning = Unknown, "No partition has both a commit and a marker."
		l.Remedy = verify
	case worst == 0:
		l.Value, l.Verdict = "none", OK
		l.Meaning = "No committed offset was ahead of the newest marker."
	case known && float64(all) <= without:
		l.Value, l.Verdict = number.Of(all, "record"), OK
		l.Meaning = fmt.Sprintf("The newest records left no marker, and the consumers have counted %s duplicates and dead letters, which leave none.", Whole(without))
	case !known && float64(worst) <= s.facts.Thresholds.LagMin:
		l.Value, l.Verdict = "up to "+number.Of(worst, "record")+" a partition", Unknown
		l.Meaning = "The group has committed past records that left no marker. Duplicates, dead letters, transaction markers and compacted records leave none either, and how many of these there were is not known."
		l.Remedy = verify
	default:
		l.Value, l.Verdict = "up to "+number.Of(worst, "record")+" a partition", Warning
		l.Meaning = "The group has committed past records that left no marker, more than its duplicates and dead letters explain. Unless they are transaction markers or were compacted, their events were lost or are being applied without a marker."
		l.Remedy = verify + " Make the consumer commit to the database first."
	}
	return l
}

// withoutMarkers is how many events the consumers have handled that leave no
// marker of their own.
func (s subject) withoutMarkers() (n float64, known bool) {
	if s.consumed == nil || !s.consumed.EverDuplicate.OK() || !s.consumed.DeadLettered.OK() || s.facts.Consumers.Unread > 0 {
		return 0, false
	}
	return s.consumed.EverDuplicate.Value + s.consumed.DeadLettered.Value, true
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
