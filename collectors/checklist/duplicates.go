package checklist

import (
	"fmt"
	"math"
	"strconv"
)

// duplicates is line 1: events_handled_total{outcome}.
func duplicates(s subject) Line {
	t := s.facts.Thresholds
	l := Line{
		Rule: "duplicate-ratio", Number: 1, Title: "How many deliveries are duplicates?",
		Threshold: "at most " + percent(t.DuplicateRatioMax),
	}
	v, ok := s.told(&l, "duplicates are counted by the consumer alone: the table does not change and the broker sees a read like any other", processed, duplicate)
	if !ok {
		return l
	}
	handled := v.Processed.Value + v.Duplicates.Value
	share := v.Duplicates.Value / handled
	if handled > 0 && !math.IsNaN(share) {
		l.Value = fmt.Sprintf("%s of %s", percent(share), Whole(handled))
	}
	l.Evidence = []string{fmt.Sprintf("%s processed, %s duplicates: %s", Whole(v.Processed.Value), Whole(v.Duplicates.Value), v.Processed.From)}
	if v.Elsewhere.OK() {
		l.Evidence = append(l.Evidence, fmt.Sprintf("%s duplicates came at another offset than their marker's: %s", Whole(v.Elsewhere.Value), v.Elsewhere.From))
	}
	long := v.LongHandled.Value
	many := v.LongHandled.OK() && v.LongDuplicates.OK() && v.LongDuplicates.Value >= 0 && long >= t.DuplicateLowMinEvents
	if many { // enough to miss redeliveries among them
		l.Threshold = fmt.Sprintf("%s to %s", percent(t.DuplicateRatioMin), percent(t.DuplicateRatioMax))
	}
	if many && v.LongDuplicates.Value/long < t.DuplicateRatioMin {
		l.Verdict = Warning
		l.Value = fmt.Sprintf("%s of %s", percent(v.LongDuplicates.Value/long), Whole(long))
		l.Evidence = append(l.Evidence, v.LongHandled.From)
		l.Meaning = "Hardly any duplicate among very many events: redeliveries do happen, so deduplication may not be looking."
		l.Remedy = "Publish one event twice and see that it is counted once as duplicate."
		return l
	}
	if !s.enough(&l, handled, t.DuplicateMinEvents) {
		return l
	}
	switch {
	case !(share >= 0):
		l.Verdict, l.Meaning = Unknown, "The consumers' counts are no numbers."
	case share > t.DuplicateRatioMax && v.Elsewhere.OK() && v.Elsewhere.Value > v.Duplicates.Value/2:
		l.Verdict = Violated
		l.Meaning = "Most duplicates carry an id that was first seen at another offset: the producer publishes events twice, or gives two different events one id, and then the second is lost as a duplicate."
		l.Remedy = "Have the producer assign a fresh UUIDv7 or ULID to every event, and look for lost ones in the dead letters (reason id_conflict)."
	case share > t.DuplicateRatioMax:
		l.Verdict = Warning
		l.Meaning = "More redeliveries than at-least-once delivery explains; nothing is applied twice, but something makes the broker deliver again."
		if !v.Elsewhere.OK() {
			l.Meaning += " Whether the producer uses ids again cannot be told: " + v.Elsewhere.Missing + "."
		}
		l.Remedy = "Look for a rebalance loop (consumer_rebalances_total) and for offset commits that fail."
	case v.Duplicates.Value == 0:
		l.Verdict, l.Meaning = OK, "No event was delivered twice."
	default:
		l.Verdict, l.Meaning = OK, "Redeliveries are absorbed by the markers."
	}
	return s.whole(l)
}

func percent(share float64) string {
	return strconv.FormatFloat(share*100, 'g', 2, 64) + " %"
}
