package checklist

import (
	"fmt"
	"math"
	"time"

	"oncewatch/collectors/number"
	"oncewatch/collectors/span"
)

const day = 24 * time.Hour

// rows is line 2: does the table grow faster than it is pruned?
func rows(s subject) Line {
	m, db := s.markers, s.store.Markers
	l := Line{Rule: "row-count", Number: 2, Title: "Does pruning keep up with the table's growth?"}
	if !m.Counted || m.Rows < 0 {
		l.Verdict, l.Value = Unknown, "counting, "+share(db.Progress)
		l.Meaning = "The markers are still being counted for the first time."
		return l
	}
	l.Value = number.Of(m.Rows, "marker")
	l.Evidence = append(l.Evidence, fmt.Sprintf("table %s: %s markers appeared and %s vanished since oncewatch began to look", db.Table, number.Grouped(max(0, m.Inserted)), number.Grouped(max(0, m.Pruned))))
	limit, keep := db.RowLimit(), db.ConfiguredRetention(m.Group)
	perDay := db.PerDay(m, s.facts.Now)
	if perDay > 0 {
		l.Evidence = append(l.Evidence, fmt.Sprintf("%s markers a day at the last day's rate", Whole(perDay)))
	}
	if limit > 0 {
		l.Threshold = "below " + number.Grouped(limit)
		if m.Rows >= limit {
			l.Verdict = Violated
			l.Meaning = "The table holds more markers than the configured limit."
			l.Remedy = "Check that the pruner runs and keeps up; never run one unbounded DELETE on this table."
			return l
		}
	}
	if keep == 0 && limit == 0 {
		l.Threshold = "not configured"
		l.Verdict = Unknown
		l.Meaning = "Without the pruner's retention or a limit, growth cannot be told from a table that is still young."
		l.Remedy = "Set --postgres.retention to what the pruner keeps, and --postgres.row-limit if there is a limit."
		return l
	}
	if l.Threshold == "" {
		l.Threshold = "nothing older than " + span.Text(keep)
	}
	if m.Oldest.IsZero() && m.Rows > 0 {
		l.Verdict, l.Meaning = Unknown, "The markers carry no time, so it cannot be told whether the pruner has left any behind."
		if limit > 0 {
			l.Meaning = "The table is within its limit, but the markers carry no time: when it is reached cannot be told."
		}
		return l
	}
	if m.Oldest.IsZero() {
		l.Verdict, l.Meaning = OK, "There is no marker to prune."
		return l
	}
	age := db.Age(m.Oldest, s.facts.Now)
	// A daily pruner leaves up to a day more than it keeps.
	if allowed := time.Duration(s.facts.Thresholds.PruneCycle) + keep/10; keep > 0 && age-keep > allowed {
		l.Verdict = Warning
		l.Meaning = fmt.Sprintf("The oldest marker should have been pruned %s ago: the pruner has stopped or does not keep up, and the table grows.", span.Text(age-keep))
		l.Remedy = "Start the pruner again, or let it run longer: bounded batches (reference-consumer prune), never one unbounded DELETE."
		return l
	}
	if left := untilLimit(float64(m.Rows), float64(limit), perDay, age, keep); left < time.Duration(s.facts.Thresholds.LimitHorizon) {
		l.Verdict = Warning
		l.Meaning = fmt.Sprintf("At this rate the table passes its limit in %s.", span.Text(left))
		if keep > 0 {
			l.Meaning += fmt.Sprintf(" Keeping markers for %s takes room for about %s of them.", span.Text(keep), Whole(perDay*keep.Hours()/24))
		}
		l.Remedy = "Make room, raise --postgres.row-limit, or find out why more events come than were planned for. Do not keep markers for a shorter time than the topic keeps its records."
		return l
	}
	l.Verdict, l.Meaning = OK, "Nothing is left that should have been pruned long ago."
	if keep == 0 {
		l.Meaning = "The table is within its limit."
	}
	if keep > 0 && m.Pruning && m.ObservedRetention < keep-keep/10 {
		// Whether that is too soon is the retention's line to say.
		l.Meaning = fmt.Sprintf("Nothing is left that should have been pruned; markers even go at an age of %s, sooner than the pruner is configured to keep them.", span.Text(m.ObservedRetention))
	}
	return l
}

// untilLimit is when the limit is reached at the last day's rate; never, where
// pruning will level the count off before that. keep 0: it is not known when
// markers are pruned, so they are taken to stay.
func untilLimit(rows, limit, perDay float64, age, keep time.Duration) time.Duration {
	const never = math.MaxInt64
	growth := perDay
	switch {
	case limit == 0 || perDay == 0:
		return never
	case keep > 0 && age < keep && perDay*keep.Hours()/24 <= limit:
		return never
	case keep > 0 && age >= keep:
		growth -= rows / (age.Hours() / 24) // as many go as came a retention ago
	}
	left := (limit - rows) / growth * float64(day)
	if growth <= 0 || left > never/2 {
		return never
	}
	return time.Duration(left)
}
