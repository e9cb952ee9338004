package checklist

import (
	"fmt"
	"strings"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/retention"
	"oncewatch/collectors/span"
)

// exposed is the question behind the whole table: what would a reset to the
// earliest offset apply twice?
func exposed(s subject) Line {
	l := Line{Rule: "replay-exposure", Title: "How many events would a reset to earliest apply twice?", Threshold: "none"}
	r := s.retention
	if r == nil {
		l.Verdict = Unknown
		l.Meaning = "Markers and broker could not be compared for this group: it has no commits on the topic, or one of the two could not be read."
		l.Remedy = s.facts.why(poll.ID{Subject: poll.Retention}, "")
		return l
	}
	var unseen int64
	reasons := map[string]bool{}
	for _, p := range r.Partitions {
		unseen += p.Unseen
		if p.Unprotected.OK && p.Unprotected.Value > 0 {
			where := fmt.Sprintf("partition %d: %s", p.Partition, Things(p.Unprotected.Value, "record"))
			if p.LogStart.OK && p.LogStart.Value >= 0 && p.Committed > p.LogStart.Value {
				where += fmt.Sprintf(" of offsets %d to %d", p.LogStart.Value, p.Committed-1)
			}
			if len(p.Gone) > 0 {
				ranges := make([]string, len(p.Gone))
				for i, g := range p.Gone {
					ranges[i] = fmt.Sprintf("%d–%d", g.First, g.Last)
				}
				where += ", in " + strings.Join(ranges, ", ")
			}
			l.Evidence = append(l.Evidence, where)
		}
		if p.Why != "" && !reasons[p.Why] {
			reasons[p.Why] = true
			l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: %s", p.Partition, p.Why))
		}
	}
	n := r.Unprotected()
	how := "compared by offset"
	if !r.Exact {
		how = "compared by time, within a margin for clocks: the table lacks topic, partition or offset"
	}
	l.Evidence = append(l.Evidence, how)
	switch {
	case n.OK && n.Value > 0:
		l.Value, l.Verdict = Things(n.Value, "event"), Violated
		if unseen > 0 {
			l.Value = "at least " + l.Value
		}
		l.Meaning = "These records are still on the broker, the group has handled them, and their markers are gone: a reset to earliest applies each of them a second time."
		l.Remedy = "Do not reset the group's offsets to before these. Lengthen the markers' retention, then wait until the broker has deleted the records."
	case n.OK:
		l.Value, l.Verdict = "none", OK
		l.Meaning = "Every record on the broker that the group has passed still has its marker: a replay changes nothing."
	default:
		l.Verdict = Unknown
		if unseen > 0 {
			l.Value = "at most " + Things(unseen, "event")
		}
		l.Meaning = "Of the oldest records no marker was ever seen: this group never handled them, or their markers were pruned before oncewatch looked."
		if unseen == 0 {
			l.Meaning = "It cannot be told yet; see the evidence."
		}
		l.Remedy = "Let the exporter watch across the pruner's next run; until then, do not reset the group's offsets."
	}
	return l
}

// margin names the smallest distance between what the markers keep and what
// the broker keeps, and the change that would mend it.
func margin(s subject) Line {
	r := s.retention
	if r == nil || len(r.Margins) == 0 {
		return Line{} // the ratio's line has said what is missing
	}
	least := r.Margins[0]
	l := Line{
		Rule: "retention-margin", Title: "How much longer do markers live than records, at the tightest?",
		Threshold: "a tenth of the topic's retention", Verdict: OK,
		Meaning: "Markers outlive records by every number that is known.",
	}
	for _, m := range r.Margins {
		l.Evidence = append(l.Evidence, m.String())
	}
	l.Value = span.Text(least.Value)
	if least.RecordAge == retention.Unlimited {
		l.Value = "records stay for ever"
	}
	if len(r.Changes) == 0 {
		return l
	}
	l.Verdict = Warning
	l.Meaning = fmt.Sprintf("The %s does not exceed the %s by enough.", least.Marker, least.Record)
	changes := make([]string, len(r.Changes))
	for i, c := range r.Changes {
		changes[i] = c.String()
	}
	l.Remedy = "Any one of: " + strings.Join(changes, "; ") + "."
	return l
}
