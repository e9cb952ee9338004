package checklist

import (
	"fmt"
	"math"
	"slices"
	"time"

	"oncewatch/collectors/span"
)

// commits is line 5: how far does the offset commit trail the database's?
func commits(s subject) Line {
	t := s.facts.Thresholds
	l := Line{
		Rule: "commit-lag", Number: 5, Title: "How far does the offset commit trail the database commit?",
		Threshold: "at most " + span.Text(span.Seconds(t.CommitLagCritical)),
	}
	if s.consumed != nil && !math.IsNaN(s.consumed.CommitLag) {
		lag := span.Seconds(s.consumed.CommitLag)
		l.Value = span.Text(lag)
		switch {
		case s.consumed.CommitLag > t.CommitLagCritical:
			l.Verdict = Violated
			l.Meaning = "What is in the database has not been acknowledged to the broker for long: a crash now redelivers all of it."
			l.Remedy = "See the consumer's log for refused offset commits and for a rebalance loop."
		default:
			l.Verdict, l.Meaning = OK, "Offsets follow the database closely: a crash redelivers little."
		}
		return l
	}
	ahead, evidence := s.markersAhead()
	if evidence == "" {
		return s.untold(l, "the time between the two commits is the consumer's to tell, and the table has no offsets to see it by")
	}
	l.Value = Things(ahead, "record")
	l.Threshold = "few records"
	l.Evidence = append(l.Evidence, evidence)
	l.Verdict = OK
	l.Meaning = "Seen from outside: markers run ahead of the committed offset by what is between the two commits."
	if float64(ahead) > t.LagMin && s.newestAge() > span.Seconds(t.CommitLagCritical) {
		l.Verdict = Warning
		l.Meaning = "Markers are far ahead of the committed offset and no longer moving: offset commits fail or have stopped, and a restart redelivers all of these."
		l.Remedy = "See the consumer's log for refused offset commits."
	}
	return l
}

// markersAhead is how far the newest markers are past the committed offsets,
// and where most.
func (s subject) markersAhead() (ahead int64, evidence string) {
	if s.commits == nil || len(s.markers.Handled) == 0 {
		return 0, ""
	}
	var where string
	for _, p := range s.commits.Partitions {
		marked, ok := s.markers.Handled[int64(p.Partition)]
		if !ok || p.Committed < 0 || marked.To < 0 {
			continue
		}
		d := max(0, marked.To+1-p.Committed)
		if where == "" || d > ahead {
			where = fmt.Sprintf("partition %d: newest marker at offset %d, committed %d", p.Partition, marked.To, p.Committed)
			ahead = max(ahead, d)
		}
	}
	return ahead, where
}

func (s subject) newestAge() time.Duration {
	if s.markers.Newest.IsZero() {
		return math.MaxInt64
	}
	return s.store.Markers.Age(s.markers.Newest, s.facts.Now)
}

// commitOrder is the failure row "offset committed before the transaction":
// an offset that is ahead of every marker.
func commitOrder(s subject) Line {
	l := Line{
		Rule: "commit-order", Title: "Was any offset committed before its transaction?",
		Threshold: "none",
	}
	if s.commits == nil || len(s.markers.Handled) == 0 {
		l.Verdict = Unknown
		l.Meaning = "Not looked at: the table has no partition and offset columns to compare with the committed offsets, or the commits could not be read."
		l.Remedy = "Assert enable.auto.commit=false in the consumer, and commit offsets only after the database."
		return l
	}
	var worst int64
	for _, p := range s.commits.Partitions {
		marked, ok := s.markers.Handled[int64(p.Partition)]
		if d := p.Committed - 1 - marked.To; ok && p.Committed >= 0 && marked.To >= 0 && d > 0 {
			l.Evidence = append(l.Evidence, fmt.Sprintf("partition %d: committed %d, newest marker at offset %d: %s records past the last marker", p.Partition, p.Committed, marked.To, Number(d)))
			worst = max(worst, d)
		}
	}
	l.Value = Things(worst, "record")
	if worst == 0 {
		l.Verdict, l.Meaning = OK, "No committed offset is ahead of the newest marker."
		return l
	}
	slices.Sort(l.Evidence)
	if s.facts.Groups.At.After(s.store.Markers.ReadAt) && s.newestAge() < time.Minute {
		l.Verdict = OK
		l.Meaning = "The group is at work, and its offsets were read after the markers: what lies between was handled meanwhile."
		return l
	}
	l.Value = "up to " + l.Value + " a partition"
	l.Verdict = Warning
	l.Meaning = "The group has committed past records that left no marker. Dead letters, duplicates, transaction markers and compacted records do so too; if these are none of them, their events were lost or are being applied without a marker."
	l.Remedy = "Compare the records named in the evidence with the dead letters; make the consumer commit to the database first."
	return l
}

// logFields is line 6.
func logFields(subject) Line {
	return Line{
		Rule: "log-fields", Number: 6, Title: "Does every log line of an event carry event_id and consumer_group?",
		Verdict: Unknown, Outside: true, Meaning: "Cannot be seen from here: logs are not read.",
		Remedy: "Look at one line of the consumer's log of a handled event: event_id, consumer_group, topic, partition, offset.",
	}
}
