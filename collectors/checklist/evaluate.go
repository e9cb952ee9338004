package checklist

import (
	"fmt"
	"slices"

	"oncewatch/collectors/poll"
)

// The lines, in the order of the checklist. A new one is a function in a file
// of its own, named here; a line without a Rule is not shown.
var (
	// ofGroup are judged for each consumer group on each topic.
	ofGroup = []func(subject) Line{
		duplicates, rows, ratio, latency, commits, logFields,
		exposed, margin, divergence, commitOrder, committedOffsets,
		lost, deadLetters, orLeft(lag), orLeft(transactions),
	}
	// ofStore are judged once a marker table.
	ofStore = []func(Store, Facts) []Line{structure, ledger, health}
)

// Evaluate judges everything that is known, in the order of the checklist.
func Evaluate(f Facts) []Line {
	var lines []Line
	for _, s := range f.Stores {
		if s.Markers == nil {
			lines = append(lines, Line{
				Rule: "markers", Title: "Can the marker table be read?", Database: s.Name, Verdict: Unknown,
				Meaning: "The marker table could not be read, so nothing of it is judged.",
				Remedy:  f.why(s.of(poll.Markers), ""),
			})
			continue
		}
		for _, one := range f.subjects(s) {
			for _, judge := range ofGroup {
				for _, line := range safely(func() []Line { return []Line{judge(one)} }) {
					line.Database, line.Group, line.Topic = s.Markers.Database, one.group, one.topic
					lines = append(lines, line)
				}
			}
		}
		for _, judge := range ofStore {
			for _, line := range safely(func() []Line { return judge(s, f) }) {
				line.Database = s.Markers.Database
				lines = append(lines, line)
			}
		}
	}
	lines = append(lines, autoCommit(lines))
	return slices.DeleteFunc(lines, func(l Line) bool { return l.Rule == "" })
}

// safely lets a fault in one line cost that line only.
func safely(judge func() []Line) (lines []Line) {
	defer func() {
		if r := recover(); r != nil {
			lines = []Line{{
				Rule: "not-judged", Title: "Can every line be judged?", Verdict: Unknown,
				Meaning: fmt.Sprintf("A line could not be judged, by a fault in oncewatch: %v.", r),
				Remedy:  "Report it with this text; the other lines are not concerned.",
			}}
		}
	}()
	return judge()
}
