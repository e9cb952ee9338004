// Package checklist judges what the exporter has seen: every line of the
// runbook's observability checklist and every row of its failure table that
// can be seen from outside, each with a verdict, its evidence and a remedy.
//
// It is pure: it reads snapshots and a time, and asks no source anything.
package checklist

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Verdict says whether a line holds. The zero value is Unknown: what was not
// looked at must not read as fine.
type Verdict int

// The verdicts, from best to worst as Severity orders them.
const (
	Unknown Verdict = iota
	OK
	Warning
	Violated
)

var verdictNames = [...]string{Unknown: "unknown", OK: "ok", Warning: "warning", Violated: "violated"}

func (v Verdict) String() string { return verdictNames[v] }

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Verdict) UnmarshalText(text []byte) error {
	i := slices.Index(verdictNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("verdict %q: want %s", text, strings.Join(verdictNames[:], ", "))
	}
	*v = Verdict(i)
	return nil
}

// Line is one judged line.
type Line struct {
	// Rule names the line for machines: lower case with dashes, stable.
	Rule string `json:"rule"`
	// Number is the line's place in the runbook's checklist, 1 to 6; 0 for
	// what is not on it.
	Number int `json:"checklist_line,omitempty"`
	// Title says in a few words what is asked.
	Title string `json:"title"`

	Database string `json:"database,omitempty"`
	Group    string `json:"consumer_group,omitempty"`
	Topic    string `json:"topic,omitempty"`

	Verdict Verdict `json:"verdict"`
	// Outside says that nobody can judge the line from outside: it is listed
	// so that it is not forgotten, and does not count for Worst.
	Outside bool `json:"cannot_be_seen,omitempty"`
	// Unasked says what lets the line be looked at, where nobody has asked for
	// it.
	Unasked string `json:"not_asked,omitempty"`
	// Value and Threshold are for a person: "8d 2h", "at least 1.1 × 7d".
	Value     string `json:"value,omitempty"`
	Threshold string `json:"threshold,omitempty"`
	// Meaning says in a sentence what the verdict means for the events.
	Meaning string `json:"meaning"`
	// Evidence names what was looked at: table, topic, partition, offsets.
	Evidence []string `json:"evidence,omitempty"`
	// Remedy is what to do; empty where nothing is.
	Remedy string `json:"remedy,omitempty"`
}

// rank orders the verdicts: what is not known comes before what is fine.
var rank = [...]int{Violated: 0, Warning: 1, Unknown: 2, OK: 3}

// WorstFirst orders lines for a reader with little time: the worst verdict
// first, then what is not known, and within a verdict the checklist's order.
func WorstFirst(lines []Line) []Line {
	sorted := slices.Clone(lines)
	slices.SortStableFunc(sorted, func(a, b Line) int {
		return cmp.Or(
			cmp.Compare(rank[a.Verdict], rank[b.Verdict]),
			cmp.Compare(listed(a), listed(b)),
			cmp.Compare(a.Group, b.Group),
			cmp.Compare(a.Topic, b.Topic),
			cmp.Compare(a.Rule, b.Rule),
		)
	})
	return sorted
}

// listed puts the six lines before the rest.
func listed(l Line) int {
	if l.Number == 0 {
		return 7
	}
	return l.Number
}

// Worst is the gravest verdict of the lines that can be seen; Unknown counts as
// less than a Warning and more than OK.
func Worst(lines []Line) Verdict {
	worst, found := Unknown, false
	for i := range lines {
		if l := &lines[i]; !l.Outside && (!found || rank[l.Verdict] < rank[worst]) {
			worst, found = l.Verdict, true
		}
	}
	return worst
}

// Count is the number of lines with a verdict.
func Count(lines []Line, v Verdict) int {
	n := 0
	for _, l := range lines {
		if l.Verdict == v {
			n++
		}
	}
	return n
}
