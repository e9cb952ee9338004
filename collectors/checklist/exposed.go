package checklist

import (
	"fmt"
	"math"
	"strings"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/number"
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
	reasons := map[string]bool{}
	for _, p := range r.Partitions {
		if p.Unprotected.OK && (p.Unprotected.Value > 0 || p.Unverified.Value > 0) {
			where := fmt.Sprintf("partition %d: %s", p.Partition, bounds(p.Unprotected.Value, p.Unverified.Value, "record"))
			if p.LogStart.OK && p.LogStart.Value >= 0 && p.Committed > p.LogStart.Value {
				where += fmt.Sprintf(" of offsets %d to %d", p.LogStart.Value, p.Committed-1)
			}
			if list := p.Ranges(maxRanges); len(list) > 0 {
				ranges := make([]string, len(list))
				for i, g := range list {
					ranges[i] = fmt.Sprintf("%d–%d", g.From, g.To-1)
				}
				where += ", in " + strings.Join(ranges, ", ")
			}
			if p.Safe.OK && p.Safe.Value >= 0 {
				where += fmt.Sprintf("; a reset to %d or later is safe", p.Safe.Value)
			}
			if p.CommitGone {
				where += "; the group has no committed offset there: its next start begins where its reset policy says"
			}
			l.Evidence = append(l.Evidence, where)
		}
		if p.Why != "" && !reasons[p.Why] {
			reasons[p.Why] = true
			l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: %s", p.Partition, p.Why))
		}
	}
	if at := r.SafeRewind; at.OK {
		l.Evidence = append(l.Evidence, "a reset by time is safe back to "+at.Value.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	how := "compared by offset"
	if !r.Exact {
		how = "compared by time, within a margin for clocks: the table lacks topic, partition or offset"
	}
	l.Evidence = append(l.Evidence, how)
	n, u := r.Unprotected(), r.Unverified()
	switch {
	case n.OK && n.Value > 0:
		l.Value, l.Verdict = bounds(n.Value, u.Value, "event"), Violated
		if !u.OK {
			l.Value = "at least " + number.Of(n.Value, "event")
		}
		l.Meaning = "These records are still on the broker, the group has handled them, and their markers are gone: a reset to earliest applies each of them a second time."
		l.Remedy = "Do not reset the group's offsets to before these. Lengthen the markers' retention, then wait until the broker has deleted the records."
	case u.OK && u.Value > 0:
		l.Value, l.Verdict = bounds(0, u.Value, "event"), Unknown
		l.Meaning = "Of some records nobody knows whether they ever had a marker: this group never handled them, or their markers vanished before oncewatch looked. A reset to earliest applies none of them twice, or all."
		l.Remedy = "Ask oncewatch replay --verify before a reset. With --state.path a restart forgets nothing; with a progress table (--postgres.progress.table) it is known where a group began."
		if lossLikely(r.Numbers) {
			l.Verdict = Warning
			l.Meaning += " Markers are kept for less time than records, so that loss is likely."
		}
	case n.OK && n.Value == 0 && u.OK && u.Value == 0:
		l.Value, l.Verdict = "none", OK
		l.Meaning = "Every record on the broker that the group has passed still has its marker: a replay changes nothing."
	default:
		l.Verdict = Unknown
		l.Meaning = "It cannot be told yet; see the evidence."
		l.Remedy = "Mend what the evidence names; until then, do not reset the group's offsets."
	}
	return l
}

// maxRanges is how many ranges of offsets a person is shown.
const maxRanges = 8

// bounds says how many things there are where so many are certain and so many
// more may be.
func bounds(least, more int64, thing string) string {
	switch {
	case more <= 0:
		return number.Of(least, thing)
	case least <= 0:
		return "at least 0, at most " + number.Of(more, thing)
	}
	most := least + min(more, math.MaxInt64-least)
	return fmt.Sprintf("at least %s, at most %s", number.Grouped(least), number.Of(most, thing))
}

// lossLikely says that markers are pruned, or are to be, before the records
// that are there.
func lossLikely(n retention.Numbers) bool {
	if !n.OldestRecord.OK {
		return false
	}
	for _, kept := range []kafka.Known[time.Duration]{n.Configured, n.Observed} {
		if kept.OK && kept.Value < n.OldestRecord.Value {
			return true
		}
	}
	return false
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
	if len(r.Changes) == 0 && least.Value >= 0 {
		return l
	}
	l.Verdict = Warning
	l.Meaning = fmt.Sprintf("The %s does not exceed the %s by enough.", least.Marker, least.Record)
	changes := make([]string, len(r.Changes))
	for i, c := range r.Changes {
		changes[i] = c.String()
	}
	l.Remedy = "Any one of: " + strings.Join(changes, "; ") + "."
	if len(changes) == 0 {
		l.Remedy = "Keep markers for longer than records can stay."
	}
	return l
}
