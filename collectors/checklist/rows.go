package checklist

import (
	"fmt"
	"time"
)

// rows is line 2: does the table grow faster than it is pruned?
func rows(s subject) Line {
	m, db := s.markers, s.store.Markers
	l := Line{Rule: "row-count", Number: 2, Title: "Does pruning keep up with the table's growth?"}
	if !m.Counted {
		l.Verdict, l.Value = Unknown, fmt.Sprintf("counting, %.0f %%", db.Progress*100)
		l.Meaning = "The markers are still being counted for the first time."
		return l
	}
	l.Value = Things(m.Rows, "marker")
	l.Evidence = append(l.Evidence, fmt.Sprintf("table %s: %s markers appeared and %s vanished since the exporter started", db.Table, Number(m.Inserted), Number(m.Pruned)))
	if limit := db.RowLimit(); limit > 0 {
		l.Threshold = "below " + Number(limit)
		if m.Rows >= limit {
			l.Verdict = Violated
			l.Meaning = "The table holds more markers than the configured limit."
			l.Remedy = "Check that the pruner runs and keeps up; never run one unbounded DELETE on this table."
			return l
		}
	}
	keep := db.ConfiguredRetention(m.Group)
	if keep == 0 {
		if l.Threshold == "" {
			l.Threshold = "not configured"
			l.Verdict = Unknown
			l.Meaning = "Without the pruner's retention or a limit, growth cannot be told from a table that is still young."
			l.Remedy = "Set --postgres.retention to what the pruner keeps, and --postgres.row-limit if there is a limit."
			return l
		}
		l.Verdict, l.Meaning = OK, "The table is within its limit."
		return l
	}
	if l.Threshold == "" {
		l.Threshold = "nothing older than " + Span(keep)
	}
	if m.Oldest.IsZero() {
		l.Verdict, l.Meaning = OK, "There is no marker to prune."
		return l
	}
	// A daily pruner leaves up to a day more than it keeps.
	behind := db.Age(m.Oldest, s.facts.Now) - keep
	if allowed := time.Duration(s.facts.Thresholds.PruneCycle) + keep/10; behind > allowed {
		l.Verdict = Warning
		l.Meaning = fmt.Sprintf("The oldest marker should have been pruned %s ago: the pruner has stopped or does not keep up, and the table grows.", Span(behind))
		l.Remedy = "Start the pruner again, or let it run longer: bounded batches (reference-consumer prune), never one unbounded DELETE."
		return l
	}
	l.Verdict, l.Meaning = OK, "Old markers are pruned about when they should be."
	return l
}
