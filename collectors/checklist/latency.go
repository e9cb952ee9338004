package checklist

import (
	"fmt"

	"oncewatch/collectors/span"
)

// latency is line 4: the 99th percentile of event_handle_duration_seconds.
func latency(s subject) Line {
	t := s.facts.Thresholds
	limit := t.LatencyP99
	l := Line{
		Rule: "handle-latency", Number: 4, Title: "How long does the whole transaction of an event take (p99)?",
		Threshold: "at most " + span.Text(span.Seconds(limit)),
	}
	v, ok := s.told(&l, "only the consumer knows how long a transaction took", p99)
	if !ok {
		return l
	}
	l.Value = span.Text(span.Seconds(v.P99.Value))
	l.Evidence = []string{fmt.Sprintf("of %s events: %s", Whole(v.Timed.Value), v.P99.From)}
	if !s.enough(&l, v.Timed.Value, t.LatencyMinEvents) {
		return l
	}
	switch {
	case !(v.P99.Value >= 0):
		l.Verdict, l.Meaning = Unknown, "The percentile is no number."
	case v.P99Low < limit && limit < v.P99High:
		l.Verdict = Unknown
		l.Value = fmt.Sprintf("%s to %s", span.Text(span.Seconds(v.P99Low)), span.Text(span.Seconds(v.P99High)))
		l.Meaning = fmt.Sprintf("The histogram has no bucket bound at %s, and the percentile lies on either side of it.", span.Text(span.Seconds(limit)))
		l.Remedy = fmt.Sprintf("Give event_handle_duration_seconds a bucket with the bound %g.", limit)
	case v.P99.Value > limit:
		l.Verdict = Warning
		l.Meaning = "Events take long to handle. A bloated marker index is one suspect; locks, checkpoints and a snapshot that holds vacuum back are the others."
		l.Remedy = "Look at the table's lines: locks and old snapshots first, then bloated indexes."
	default:
		l.Verdict, l.Meaning = OK, "Marker and effect commit quickly."
	}
	return s.whole(l)
}
