// Package replay tells, before a consumer group's offsets are reset, what the
// group would apply twice, how far back it may be reset without that, and the
// offsets to reset it to.
//
//	replay.go   the answer: its parts, its verdict, its one sentence
//	target.go   what --to may say, as offsets
//	known.go    the answer from what an exporter knows, with its bounds
//	verify.go   the answer from the records themselves, with no history
//	eventid.go  where a record carries its event id
//	repeats.go  the ids seen lately, in bounded memory
//	text.go     the answer for a person
//	plan.go     the offsets for Kafka's own tool
//
// It asks nobody by itself: records and markers come through interfaces.
package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncewatch/collectors/number"
)

// InputError is about what was asked for: a flag of the command, a parameter of
// the address.
type InputError struct {
	Parameter, Text string
}

func (e *InputError) Error() string { return "--" + e.Parameter + ": " + e.Text }

func bad(parameter, format string, args ...any) error {
	return &InputError{parameter, fmt.Sprintf(format, args...)}
}

// Verdict is what a reset would do.
type Verdict string

// The verdicts.
const (
	// Safe: nothing would be applied twice.
	Safe Verdict = "safe"
	// Twice: something would.
	Twice Verdict = "twice"
	// Unknown: nothing is known to be, but not everything is known.
	Unknown Verdict = "unknown"
)

// Answer is what a reset of one group would do.
type Answer struct {
	Group    string    `json:"group"`
	Database string    `json:"database"`
	To       string    `json:"to"`
	At       time.Time `json:"at"`
	// Source says where the answer comes from, for a person.
	Source  string  `json:"source"`
	Verdict Verdict `json:"verdict"`
	// Sentence is the answer in one.
	Sentence string `json:"sentence"`
	Totals   Counts `json:"totals"`
	// Partial says why the answer is not about everything that was asked for.
	Partial  string   `json:"partial,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Topics   []Topic  `json:"topics"`
	// Verified is what reading the records told besides; nil without.
	Verified *Verified `json:"verified,omitempty"`
}

// Counts are numbers of records. Twice is exact where Unknown is 0; else what
// would be applied twice lies between it and the sum of the two.
type Counts struct {
	// Again is how many would be read again: of offsets, where the records
	// themselves were not counted.
	Again     int64 `json:"read_again"`
	Protected int64 `json:"protected"`
	Twice     int64 `json:"applied_twice"`
	Unknown   int64 `json:"unknown"`
	// Skipped is how many would never be handled: the target lies after the
	// group's own offset.
	Skipped int64 `json:"skipped"`
}

func (c *Counts) add(o Counts) {
	c.Again += o.Again
	c.Protected += o.Protected
	c.Twice += o.Twice
	c.Unknown += o.Unknown
	c.Skipped += o.Skipped
}

// Topic is a topic of an Answer.
type Topic struct {
	Topic string `json:"topic"`
	Counts
	// SafeBackTo is the earliest time to which a reset of all partitions
	// applies nothing twice; nil where it is not known, or where not even
	// now is.
	SafeBackTo *time.Time  `json:"safe_back_to,omitempty"`
	Partitions []Partition `json:"partitions"`
}

// Partition is one of a Topic.
type Partition struct {
	Partition int32 `json:"partition"`
	LogStart  int64 `json:"log_start"`
	LogEnd    int64 `json:"log_end"`
	// Committed is where the group stands, Target where it would be set.
	Committed int64 `json:"committed"`
	// CommitGone says that Kafka keeps no offset of the group: Committed is then
	// past the highest record that it is known to have handled.
	CommitGone bool  `json:"commit_gone,omitempty"`
	Target     int64 `json:"target"`
	Counts
	// SafeOffset is the lowest offset to which a reset applies nothing twice;
	// never above Committed. SafeTime is the earliest time to which one does;
	// nil where that is not known.
	SafeOffset int64      `json:"safe_offset"`
	SafeTime   *time.Time `json:"safe_time,omitempty"`
	// Gone are the offsets whose markers are known to be gone, Unverified those
	// of which nobody knows; both above Target, in a few ranges.
	Gone       []Range `json:"gone,omitempty"`
	Unverified []Range `json:"unverified,omitempty"`
	// Why says why something is not known.
	Why string `json:"why,omitempty"`

	lost bool // nobody knows where the group stands: no offset is sure
}

// Range is the offsets First to Last.
type Range struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// ExitCode is 0 where nothing would be applied twice, 1 where something would,
// 2 where it cannot be told.
func (a *Answer) ExitCode() int {
	switch {
	case a.Partial != "":
		return 2
	case a.Verdict == Twice:
		return 1
	case a.Verdict == Safe:
		return 0
	}
	return 2
}

// conclude fills in what follows from the partitions.
func (a *Answer) conclude() {
	a.Totals = Counts{}
	for i := range a.Topics {
		t := &a.Topics[i]
		t.Counts = Counts{}
		slices.SortFunc(t.Partitions, func(a, b Partition) int { return cmp.Compare(a.Partition, b.Partition) })
		for _, p := range t.Partitions {
			t.add(p.Counts)
		}
		t.SafeBackTo = t.safeBackTo()
		a.Totals.add(t.Counts)
	}
	slices.SortFunc(a.Topics, func(a, b Topic) int { return cmp.Compare(a.Topic, b.Topic) })
	switch {
	case a.Totals.Twice > 0:
		a.Verdict = Twice
	case a.Totals.Unknown > 0 || a.Partial != "":
		a.Verdict = Unknown
	default:
		a.Verdict = Safe
	}
	a.Sentence = a.sentence()
}

// safeBackTo is the latest of the partitions' safe times. A partition with
// nothing to read again has none, and does not matter.
func (t *Topic) safeBackTo() *time.Time {
	var latest *time.Time
	for _, p := range t.Partitions {
		switch {
		case p.SafeOffset >= p.Committed && p.LogStart < p.Committed:
			return nil
		case p.LogStart >= p.Committed:
		case p.SafeTime == nil:
			return nil
		case latest == nil || p.SafeTime.After(*latest):
			latest = p.SafeTime
		}
	}
	return latest
}

// sentence says it in one.
func (a *Answer) sentence() string {
	n, from := a.Totals, a.from()
	var parts []string
	if safe := a.safeBackTo(); safe != nil {
		parts = append(parts, "Safe back to "+NotBefore(*safe))
	} else if n.Twice > 0 || n.Unknown > 0 {
		parts = append(parts, "No time is known back to which a reset is safe")
	}
	switch {
	case n.Twice > 0 && n.Unknown > 0:
		parts = append(parts, fmt.Sprintf("from %s %s to %s events would be applied twice", from, number.Grouped(n.Twice), number.Grouped(n.Twice+n.Unknown)))
	case n.Twice > 0:
		parts = append(parts, fmt.Sprintf("from %s %s would be applied twice", from, number.Of(n.Twice, "event")))
	case n.Unknown > 0:
		parts = append(parts, fmt.Sprintf("from %s up to %s events would be applied twice, or none: it is not known", from, number.Grouped(n.Unknown)))
	case n.Again == 0:
		parts = append(parts, "from "+from+" nothing would be read again")
	default:
		parts = append(parts, fmt.Sprintf("from %s nothing would be applied twice: the markers of all %s records are there", from, number.Grouped(n.Protected)))
	}
	s := strings.Join(parts, "; ") + "."
	if n.Skipped > 0 {
		s += fmt.Sprintf(" %s records would be skipped and never handled.", number.Grouped(n.Skipped))
	}
	if a.Partial != "" {
		s = "Partial: " + s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func (a *Answer) from() string {
	if strings.HasPrefix(a.To, "-") {
		return a.To[1:] + " back"
	}
	return strings.Replace(a.To, "offset:", "offset ", 1)
}

func (a *Answer) safeBackTo() *time.Time {
	var latest *time.Time
	for _, t := range a.Topics {
		if t.SafeBackTo == nil {
			if t.Again > 0 || t.anything() {
				return nil
			}
			continue
		}
		if latest == nil || t.SafeBackTo.After(*latest) {
			latest = t.SafeBackTo
		}
	}
	return latest
}

// anything says whether any record could be read again.
func (t *Topic) anything() bool {
	return slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.LogStart < p.Committed })
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// NotBefore is a time as a person may type it where nothing before it will do:
// the next full second.
func NotBefore(t time.Time) string { return clock(t.Add(time.Second - 1).Truncate(time.Second)) }
