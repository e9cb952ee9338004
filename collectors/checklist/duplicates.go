package checklist

import (
	"fmt"
	"strconv"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// duplicates is line 1: events_handled_total{outcome}.
func duplicates(s subject) Line {
	t := s.facts.Thresholds
	l := Line{
		Rule: "duplicate-ratio", Number: 1, Title: "How many deliveries are duplicates?",
		Threshold: fmt.Sprintf("%s to %s", percent(t.DuplicateRatioMin), percent(t.DuplicateRatioMax)),
	}
	if s.consumed == nil {
		return s.untold(l, "duplicates are counted by the consumer alone: the table does not change and the broker sees a read like any other")
	}
	v := *s.consumed
	if v.Handled() == 0 {
		l.Value, l.Meaning = "no events", "No event has been handled in the time looked at."
		l.Verdict = OK
		return l
	}
	share := v.Duplicates / v.Handled()
	if !(share >= 0) {
		l.Verdict, l.Meaning = Unknown, "The consumers' counts are no numbers."
		return l
	}
	l.Value = fmt.Sprintf("%s of %s", percent(share), Whole(v.Handled()))
	l.Evidence = append(l.Evidence, fmt.Sprintf("%s processed, %s duplicates, of these %s at another offset than their marker's, %s",
		Whole(v.Processed), Whole(v.Duplicates), Whole(v.Elsewhere), s.window()))
	switch {
	case share > t.DuplicateRatioMax && v.Handled() >= t.DuplicateMinEvents && v.Elsewhere > v.Duplicates/2:
		l.Verdict = Violated
		l.Meaning = "Most duplicates carry an id that was first seen at another offset: the producer publishes events twice, or gives two different events one id, and then the second is lost as a duplicate."
		l.Remedy = "Have the producer assign a fresh UUIDv7 or ULID to every event, and look for lost ones in the dead letters (reason id_conflict)."
	case share > t.DuplicateRatioMax && v.Handled() >= t.DuplicateMinEvents:
		l.Verdict = Warning
		l.Meaning = "More redeliveries than at-least-once delivery explains; nothing is applied twice, but something makes the broker deliver again."
		l.Remedy = "Look for a rebalance loop (consumer_rebalances_total) and for offset commits that fail."
	case share < t.DuplicateRatioMin && v.Handled() >= t.DuplicateLowMinEvents:
		l.Verdict = Warning
		l.Meaning = "Hardly any duplicate among very many events: redeliveries do happen, so deduplication may not be looking."
		l.Remedy = "Publish one event twice and see that it is counted once as duplicate."
	default:
		l.Verdict = OK
		l.Meaning = "Redeliveries are absorbed by the markers."
	}
	return l
}

// untold marks a line that only the consumers themselves can answer.
func (s subject) untold(l Line, because string) Line {
	l.Verdict = Unknown
	switch {
	case !s.facts.ConsumersNamed:
		l.Meaning = "Not looked at: " + because + "."
		l.Remedy = "Name the consumers' own metrics with --consumer.metrics-url, or rely on the alert rules."
	case s.facts.Consumers == nil:
		l.Meaning = "None of the consumers' metrics could be read."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Consumers}, "")
	default:
		l.Meaning = "The consumers that were read export nothing for this group and topic."
		l.Remedy = "Check --consumer.metrics-url, and that the consumer exports the metrics of the checklist."
	}
	return l
}

// span says what the consumers' counts cover.
func (s subject) window() string {
	if s.facts.Consumers.Span == 0 {
		return "since the consumers started"
	}
	return "in the last " + span.Text(s.facts.Consumers.Span)
}

func percent(share float64) string {
	return strconv.FormatFloat(share*100, 'g', 2, 64) + " %"
}
