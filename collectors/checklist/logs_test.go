package checklist_test

import (
	"testing"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/logsample"
)

// Line 6 is judged by what a sample of the log has of the group and topic; lines
// that name no group may be of any.
func TestLogFields(t *testing.T) {
	ours := logsample.Key{Group: "g", Topic: "payments"}
	for name, c := range map[string]struct {
		events map[logsample.Key]logsample.Count
		want   checklist.Verdict
	}{
		"all there":             {map[logsample.Key]logsample.Count{ours: {Lines: 10}}, checklist.OK},
		"no id in one":          {map[logsample.Key]logsample.Count{ours: {Lines: 10, NoEventID: 1}}, checklist.Violated},
		"no group in some":      {map[logsample.Key]logsample.Count{ours: {Lines: 10}, {Topic: "payments"}: {Lines: 2}}, checklist.Violated},
		"no position in some":   {map[logsample.Key]logsample.Count{ours: {Lines: 10, NoPosition: 4}}, checklist.Warning},
		"no topic in some":      {map[logsample.Key]logsample.Count{ours: {Lines: 1}, {Group: "g"}: {Lines: 4, NoPosition: 4}}, checklist.Warning},
		"another group's fault": {map[logsample.Key]logsample.Count{ours: {Lines: 10}, {Group: "h", Topic: "payments"}: {Lines: 5, NoEventID: 5}}, checklist.OK},
		"another topic's only":  {map[logsample.Key]logsample.Count{{Group: "g", Topic: "other"}: {Lines: 5}}, checklist.Unknown},
		"nothing about events":  {nil, checklist.Unknown},
	} {
		w := healthy()
		w.Logs = &logsample.Sample{Lines: 20, Structured: 20, Events: c.events}
		if l := w.lines()["log-fields"]; l.Verdict != c.want || l.Outside || l.Meaning == "" {
			t.Errorf("%s: %+v, want %s", name, l, c.want)
		}
	}
	if l := healthy().lines()["log-fields"]; l.Verdict != checklist.Unknown || !l.Outside || l.Unasked == "" {
		t.Errorf("without a sample: %+v", l)
	}
}

// Automatic commit is suspected where a group commits ahead of its markers, and
// cannot be seen where none does.
func TestAutoCommit(t *testing.T) {
	w := healthy()
	if l := w.lines()["auto-commit"]; l.Verdict != checklist.Unknown || !l.Outside {
		t.Errorf("a healthy group: %+v", l)
	}
	w.partition.Committed += 500
	lines := w.lines()
	if order := lines["commit-order"].Verdict; order != checklist.Warning && order != checklist.Violated {
		t.Fatalf("commits ahead of the markers: %s", order)
	}
	if l := lines["auto-commit"]; l.Verdict != checklist.Warning || l.Outside || len(l.Evidence) != 1 {
		t.Errorf("a group that commits ahead: %+v", l)
	}
}
