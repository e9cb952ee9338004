package checklist

import (
	"slices"

	"oncewatch/collectors/number"
)

// autoCommit is a row of the failure table that shows in its consequence alone:
// an offset that was committed before its marker.
func autoCommit(lines []Line) Line {
	l := Line{
		Rule: "auto-commit", Title: "Is automatic offset commit off in every consumer?",
		Remedy: "Assert enable.auto.commit=false at start and refuse to run otherwise, as the reference consumer does; reference-consumer/README.md names the setting of each client.",
	}
	var groups []string
	for _, of := range lines {
		if of.Rule == "commit-order" && (of.Verdict == Warning || of.Verdict == Violated) && !slices.Contains(groups, of.Group) {
			groups = append(groups, of.Group)
		}
	}
	if len(groups) == 0 {
		l.Verdict, l.Outside = Unknown, true
		l.Meaning = "Cannot be seen from here: it is a setting inside the consumer. No commit ahead of its marker was seen, which is how it would show."
		return l
	}
	l.Verdict, l.Value = Warning, number.Of(int64(len(groups)), "group")+" with commits ahead of their markers"
	l.Meaning = "Offsets were committed before their markers, as automatic commit does: it commits what was fetched every few seconds, whether it was handled or not."
	for _, g := range groups[:min(len(groups), 10)] {
		l.Evidence = append(l.Evidence, "commits ahead of markers: "+g)
	}
	return l
}

// What lets lines be looked at that nobody has asked for.
const (
	askConsumers = "name the consumers' own metrics with --consumer.metrics-url, or with --prometheus.url the Prometheus that has them"
	askEffects   = "name the table that the handler writes with --postgres.effect.table"
)
