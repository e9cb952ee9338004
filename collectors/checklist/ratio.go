package checklist

import (
	"fmt"
	"time"

	"oncewatch/collectors/number"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/span"
)

// ratio is line 3: do markers outlive the records they guard against?
func ratio(s subject) Line {
	t, db, m := s.facts.Thresholds, s.store.Markers, s.markers
	l := Line{Rule: "retention-ratio", Number: 3, Title: "Do markers outlive the records on the broker?"}
	keep, worst, what, ok := s.brokerKeeps()
	if !ok {
		l.Verdict = Unknown
		l.Meaning = "The topic's retention is not known, so there is nothing to compare the markers' age with."
		l.Remedy = "Grant DESCRIBE_CONFIGS on the topic. " + s.facts.why(poll.ID{Subject: poll.Topics}, "topic "+s.topic)
		if s.log == nil && s.topic != "" && s.facts.Topics != nil {
			l.Meaning = "The topic is not watched: --kafka.topic or --kafka.topic-exclude leaves it out, or it does not exist."
			l.Remedy = "Check these expressions; they are anchored at both ends."
		}
		if s.log != nil && s.log.Retention.Value.SizeLimited() {
			l.Meaning = "The topic deletes by size alone, and the age of its oldest record is not known."
			l.Remedy = s.facts.why(poll.ID{Subject: poll.Topics}, "topic "+s.topic)
		}
		if s.topic == "" {
			l.Meaning = "The table has no topic column and the group has no commits, so it is not known whose retention to compare with."
			l.Remedy = "Commit offsets under the same group name as the markers', or map a topic column."
		}
		return l
	}
	configured := db.ConfiguredRetention(m.Group)
	l.Threshold = fmt.Sprintf("at least %g × %s", t.RetentionRatioWarning, span.Text(keep))
	l.Evidence = append(l.Evidence, "topic "+s.topic+": "+what)
	if configured > 0 {
		l.Evidence = append(l.Evidence, "the pruner is configured to keep "+span.Text(configured))
	}
	if m.Pruning {
		l.Evidence = append(l.Evidence, "markers were seen to be pruned at an age of "+span.Text(m.ObservedRetention))
	}
	// over is an age as the line's value: as a share of the topic's retention.
	over := func(what string, age time.Duration) string {
		if keep > 0 && keep < span.Unlimited && age >= 0 {
			return fmt.Sprintf("%.2f (%s %s)", age.Seconds()/keep.Seconds(), what, span.Text(age))
		}
		return what + " " + span.Text(age)
	}
	age := time.Duration(0)
	l.Value = "no markers"
	timeless := m.Counted && m.Rows > 0 && m.Oldest.IsZero()
	if timeless {
		l.Value = "unknown age"
	}
	if !m.Oldest.IsZero() {
		age = db.Age(m.Oldest, s.facts.Now)
		l.Value = over("oldest", age)
	}
	below := func(d time.Duration, factor float64) bool {
		return keep == span.Unlimited || d.Seconds() < factor*keep.Seconds()
	}
	short := "A consumer that is reset to the earliest offset applies the events again whose markers are gone."
	remedy := fmt.Sprintf("Keep markers for at least %s; until then, do not reset the group's offsets.", span.Text(span.Scale(max(keep, min(worst, 2*keep)), t.RetentionRatioWarning)))
	if keep == span.Unlimited {
		remedy = "Keep markers for ever, or give the topic a finite retention; until then, do not reset the group's offsets."
	}
	if s.retention != nil && len(s.retention.Changes) > 0 {
		// The comparison knows every number, and what would mend the tightest.
		remedy = "Change " + s.retention.Changes[0].String() + "; until then, do not reset the group's offsets."
	}
	switch {
	case configured > 0 && below(configured, t.RetentionRatioWarning):
		l.Verdict, l.Value = Violated, over("configured", configured)
		l.Meaning = "The pruner is configured to keep markers for less than the records they guard against. " + short
		l.Remedy = remedy
	case m.Pruning && below(m.ObservedRetention, t.RetentionRatioCritical):
		l.Verdict, l.Value = Violated, over("pruned at", m.ObservedRetention)
		l.Meaning = "Markers really vanish before their records do, whatever is configured. " + short
		l.Remedy = "Find who deletes them (a second pruning job, a manual DELETE). " + remedy
	case m.Pruning && below(m.ObservedRetention, t.RetentionRatioWarning):
		l.Verdict, l.Value = Warning, over("pruned at", m.ObservedRetention)
		l.Meaning = "Markers vanish hardly later than their records."
		l.Remedy = remedy
	case !m.Oldest.IsZero() && !below(age, t.RetentionRatioWarning):
		l.Verdict, l.Meaning = OK, "The oldest marker is older than anything the broker still has."
	case timeless:
		l.Verdict = Unknown
		l.Meaning = "The markers carry no time: whether they outlive the topic's records cannot be told."
		l.Remedy = "Add the time: see \"Can markers be found by age?\""
	case configured > 0:
		l.Verdict, l.Meaning = OK, "The table is young or was idle: what the pruner is configured to keep is enough, and nothing younger was seen to vanish."
	case m.Pruning:
		l.Verdict, l.Meaning = OK, "Markers are pruned at a safe age."
	default:
		l.Verdict = Unknown
		l.Meaning = "The oldest marker is younger than the topic's retention, and no pruning has been seen yet: the table may be young, or the pruner too quick."
		l.Remedy = "Set --postgres.retention to what the pruner keeps, or look again after its next run."
	}
	if l.Verdict == OK && s.retention != nil {
		if gone := s.retention.Unprotected(); gone.OK && gone.Value > 0 { // the ages say nothing of holes
			l.Verdict = Warning
			l.Meaning = fmt.Sprintf("By their age they do, but the markers of %s on the broker are gone.", number.Of(gone.Value, "record"))
			l.Remedy = "Find who deletes them (a second pruning job, a manual DELETE); until then, do not reset the group's offsets."
		}
	}
	return l
}
