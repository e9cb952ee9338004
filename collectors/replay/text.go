package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"oncewatch/collectors/number"
)

// JSON writes the answer for a program.
func (a *Answer) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(a)
}

// mostRows is how many partitions of a topic a person is shown: those where
// something is wrong first.
const mostRows = 50

// Text writes the answer for a person.
func (a *Answer) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", a.Sentence)
	fmt.Fprintf(&b, "Group %s, markers in %s, to %s; by %s, %s.\n\n", shown(a.Group), shown(a.Database), a.To, a.Source, clock(a.At))
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...string) { _, _ = fmt.Fprintln(table, strings.Join(cells, "\t")+"\t") }
	row("topic", "partition", "committed", "target", "again", "protected", "twice", "unknown", "safe offset", "safe back to")
	line := func(name, partition, committed, target string, c Counts, offset, at string) {
		row(name, partition, committed, target, number.Grouped(c.Again), number.Grouped(c.Protected), number.Grouped(c.Twice), number.Grouped(c.Unknown), offset, at)
	}
	for _, t := range a.Topics {
		left := 0
		for _, p := range t.worst() {
			if left++; left > mostRows {
				continue
			}
			line(shown(t.Topic), fmt.Sprint(p.Partition), fmt.Sprint(p.Committed), fmt.Sprint(p.Target), p.Counts, fmt.Sprint(p.SafeOffset), timeOr(p.SafeTime, "-"))
		}
		if left > mostRows {
			row(shown(t.Topic), fmt.Sprintf("%d more", left-mostRows), "", "", "", "", "", "", "", "")
		}
		if len(t.Partitions) > 1 {
			line(shown(t.Topic), "all", "", "", t.Counts, "", timeOr(t.SafeBackTo, "-"))
		}
	}
	if len(a.Topics) > 1 {
		line("all", "", "", "", a.Totals, "", timeOr(a.safeBackTo(), "-"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if a.Partial != "" {
		fmt.Fprintf(&b, "\nPartial: %s. What was not read is counted as unknown.\n", strings.TrimSuffix(a.Partial, "."))
	}
	for _, t := range a.Topics {
		told := 0
		for _, p := range t.Partitions {
			if p.Why == "" {
				continue
			}
			if told++; told > examples {
				fmt.Fprintf(&b, "\nand so of more partitions of %s.", shown(t.Topic))
				break
			}
			fmt.Fprintf(&b, "\nNot known of %s, partition %d: %s.", shown(t.Topic), p.Partition, p.Why)
		}
		if told > 0 {
			b.WriteByte('\n')
		}
	}
	for _, warning := range a.Warnings {
		fmt.Fprintf(&b, "\nWarning: %s\n", warning)
	}
	if a.Verified != nil {
		a.Verified.text(&b)
	}
	_, err := io.WriteString(w, strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD' // a name from outside must not write to the terminal what it likes
	}, b.String()))
	return err
}

func (v *Verified) text(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s read in %s and looked up in %s statements, the longest of %.2fs.\n",
		number.Of(v.Records, "record"), time.Duration(v.Seconds*float64(time.Second)).Round(100*time.Millisecond), number.Grouped(int64(v.Statements)), v.LongestStatement)
	if v.WithoutID > 0 {
		fmt.Fprintf(b, "\n%s without an event id.\n", number.Of(v.WithoutID, "record"))
	}
	twins := func(n int64, what string, some []Twin) {
		if n == 0 {
			return
		}
		fmt.Fprintf(b, "\n%s %s:\n", number.Of(n, "record"), what)
		for _, t := range some {
			fmt.Fprintf(b, "  %s at %s", shown(t.EventID), shown(t.At))
			if t.Other != "" {
				fmt.Fprintf(b, ", its marker is of %s", shown(t.Other))
			}
			b.WriteByte('\n')
		}
		if n > int64(len(some)) {
			fmt.Fprintf(b, "  and %s more\n", number.Grouped(n-int64(len(some))))
		}
	}
	twins(v.Twins, "with the event id of another record, published twice", v.SomeTwins)
	twins(v.Conflicts, "with an event id whose marker is of another payload", v.SomeConflicts)
	if v.Unmarked > 0 {
		fmt.Fprintf(b, "\n%s above the lowest marker without one: handled so, dead-lettered, lost, or pruned out of order:\n", number.Of(v.Unmarked, "record"))
		for _, u := range v.SomeUnmarked {
			fmt.Fprintf(b, "  %s, partition %d, offsets %d to %d\n", shown(u.Topic), u.Partition, u.First, u.Last)
		}
	}
	for _, n := range v.Notes {
		fmt.Fprintf(b, "\n%s\n", n)
	}
}

// worst are the partitions, those of which more is wrong first where not all
// can be shown.
func (t *Topic) worst() []Partition {
	if len(t.Partitions) <= mostRows {
		return t.Partitions
	}
	var bad, good []Partition
	for _, p := range t.Partitions {
		if p.Twice > 0 || p.Unknown > 0 || p.Skipped > 0 {
			bad = append(bad, p)
		} else {
			good = append(good, p)
		}
	}
	return append(bad, good...)
}

func timeOr(t *time.Time, none string) string {
	if t == nil {
		return none
	}
	return NotBefore(*t)
}

// shown is a text from outside, within bounds.
func shown(name string) string {
	const most = 300
	if len(name) > most {
		name = name[:most] + "…"
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}
