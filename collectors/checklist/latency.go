package checklist

import (
	"math"
	"time"

	"oncewatch/collectors/span"
)

// latency is line 4: the 99th percentile of event_handle_duration_seconds.
func latency(s subject) Line {
	limit := span.Seconds(s.facts.Thresholds.LatencyP99)
	l := Line{
		Rule: "handle-latency", Number: 4, Title: "How long does the whole transaction of an event take (p99)?",
		Threshold: "at most " + span.Text(limit),
	}
	if s.consumed == nil {
		return s.untold(l, "only the consumer knows how long a transaction took")
	}
	p99 := s.consumed.Quantile(0.99)
	if math.IsNaN(p99) {
		l.Verdict, l.Value, l.Meaning = OK, "no events", "No event has been handled in the time looked at."
		return l
	}
	l.Value = span.Text(time.Duration(p99 * float64(time.Second)))
	l.Evidence = append(l.Evidence, "from the histogram's buckets, "+s.window())
	if p99 > limit.Seconds() {
		l.Verdict = Warning
		l.Meaning = "Events take long to handle. A bloated marker index is one suspect; locks, checkpoints and a snapshot that holds vacuum back are the others."
		l.Remedy = "Look at the table's lines below; if its indexes are bloated: REINDEX INDEX CONCURRENTLY."
		return l
	}
	l.Verdict, l.Meaning = OK, "Marker and effect commit quickly."
	return l
}
