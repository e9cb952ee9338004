package matrix

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"oncewatch/deploy/demo"
)

// blind are faults that are not in the matrix because nothing outside of the
// programs could tell them, whatever is exported.
var blind = []string{
	"A wrong effect, such as an amount booked twice by the handler itself: marker and effect agree.",
	"An effect outside of database and outbox, such as an email sent in the handler: a redelivery repeats it, and nothing counts it.",
	"An event that is lost before the producer numbers it, and the last events of a producer that never publishes again: no later number shows the gap.",
	"Two ids for one business event (a producer that makes a new id for each attempt): two events, as far as anybody can tell. Only the unusual absence of duplicates hints at it (ConsumerDuplicateRatioTooLow).",
	"A handful of reused ids among millions: below the share that redeliveries make. Each one is in the dead letters with both offsets, if its payload differs.",
}

const command = "go test ./deploy/matrix -run TestMatrix -matrix=all -matrix.write -timeout=30m"

// verdict is what the tables say of a fault.
func (r *result) verdict() (alert, after string) {
	switch {
	case r.unseen != "":
		return "cannot be seen", "–"
	case r.heals != "":
		return "none is needed", "–"
	case r.seenInTime():
		return r.want, span(r.took)
	}
	return r.want, "**not seen**"
}

// quiet drops what says nothing from what the other stacks saw, and returns it.
func quiet(results []*result) map[string]int {
	drop := noise(results)
	for _, r := range results {
		for stack, names := range r.seen {
			r.seen[stack] = slices.DeleteFunc(names, func(name string) bool { return drop[name] > 0 })
		}
	}
	return drop
}

// report writes the results as Markdown.
func report(results []*result, drop map[string]int, took time.Duration) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Fault matrix")
	line("")
	line("One fault at a time in the live stack (PostgreSQL, Kafka, the reference consumer, the exporter, a real Prometheus with the rules), and what fires. Generated; do not edit. To reproduce it:")
	line("")
	line("    %s", command)
	line("")
	line("To watch one fault by hand: `go run . demo --fault=NAME`.")
	line("")
	line("The rules ran %d times faster than as shipped: %s here are a minute of theirs. Times are from the fault to the alert, measured, and in brackets what they are on the rules' own clock. An alert counts as a page if its severity is critical or warning and no other alert inhibits it (deploy/alertmanager).", *speed, minutes(1))
	line("")
	summary(line, results)
	line("")
	line("Beside it, by the same Prometheus: the runbook's rules taken literally (`deploy/matrix/compare/runbook.rules.yml`, on oncewatch's metrics), and a lag exporter with a `count(*)` exporter and the rules people publish for them (`compare/glued.rules.yml`). For them any alert counts that began to fire after the fault, except those that also come and go when nothing is wrong: %s.", names(drop))
	line("")
	line("## Faults")
	line("")
	line("| fault | alert | after | also fired, rightly | false pages | the runbook's rules | lag exporter + `count(*)` |")
	line("|---|---|---|---|---|---|---|")
	for _, r := range results {
		if r.healthy() {
			continue
		}
		alert, after := r.verdict()
		also := slices.DeleteFunc(slices.Clone(r.fired), func(name string) bool { return name == r.want })
		line("| `%s` | %s | %s | %s | %s | %s | %s |", r.name, alert, after, list(also), list(r.pages), other(r, "runbook"), other(r, "glued"))
	}
	line("")
	line("What each fault does:")
	line("")
	for _, r := range results {
		if !r.healthy() {
			line("- `%s`: %s%s", r.name, story(r.name), reason(r))
		}
	}
	line("")
	line("Not injected, because nothing outside of the programs can tell:")
	line("")
	for _, text := range blind {
		line("- %s", text)
	}
	line("")
	line("## All is well")
	line("")
	line("| what happens | false pages | the runbook's rules | lag exporter + `count(*)` |")
	line("|---|---|---|---|")
	for _, r := range results {
		if r.healthy() {
			line("| `%s`: %s | %s | %s | %s |", r.name, r.story, list(r.pages), list(r.false["runbook"]), list(r.false["glued"]))
		}
	}
	line("")
	line("%d scenarios in %s, %d at the same time.", len(results), took.Round(time.Second), *parallel)
	return b.String()
}

func (r *result) seenInTime() bool { return r.want != "" && r.took >= 0 && r.took <= r.limit() }

func summary(line func(string, ...any), results []*result) {
	stacks := append([]string{""}, others...)
	var faults, unseen, quiet int
	seen, paged := map[string]int{}, map[string]int{}
	for _, r := range results {
		pages := func(stack string) []string {
			switch {
			case stack == "":
				return r.pages
			case r.healthy():
				return r.false[stack]
			}
			return slices.Concat(r.false[stack], r.seen[stack])
		}
		for _, stack := range stacks {
			if r.want == "" && r.unseen == "" && len(pages(stack)) > 0 {
				paged[stack]++
			}
			if r.want != "" && (stack == "" && r.seenInTime() || len(r.seen[stack]) > 0) {
				seen[stack]++
			}
		}
		switch {
		case r.want != "":
			faults++
		case r.unseen != "":
			unseen++
		default:
			quiet++
		}
	}
	line("| | oncewatch | the runbook's rules, literally | lag exporter + `count(*)` |")
	line("|---|---|---|---|")
	line("| faults seen, of %d | %d | %d | %d |", faults, seen[""], seen["runbook"], seen["glued"])
	line("| scenarios with a false page, of %d in which nothing is wrong or nothing stays wrong | %d | %d | %d |", quiet, paged[""], paged["runbook"], paged["glued"])
	line("")
	line("%d more faults cannot be seen from outside; they are listed with the reason.", unseen)
}

// noise are the other stacks' alerts that fire whatever happens, with in how
// many scenarios they did so before the fault: more than two.
func noise(results []*result) map[string]int {
	count := map[string]int{}
	for _, r := range results {
		if r.healthy() {
			continue
		}
		for _, names := range r.false {
			for _, name := range names {
				count[name]++
			}
		}
	}
	for name, n := range count {
		if n <= 2 {
			delete(count, name)
		}
	}
	return count
}

func names(counts map[string]int) string {
	var all []string
	for name, n := range counts {
		all = append(all, fmt.Sprintf("%s (before %d of the faults)", name, n))
	}
	slices.Sort(all)
	if len(all) == 0 {
		return "none did"
	}
	return strings.Join(all, ", ")
}

func story(name string) string {
	for _, f := range demo.Faults() {
		if f.Name == name {
			return f.Story
		}
	}
	return ""
}

func reason(r *result) string {
	switch {
	case r.unseen != "":
		return " **Cannot be seen:** " + r.unseen + "."
	case r.heals != "":
		return " **No alert is needed:** " + r.heals + "."
	}
	return ""
}

// span is a time, and what it is on the rules' clock.
func span(d time.Duration) string {
	return fmt.Sprintf("%.0f s (%s)", d.Seconds(), ruleMinutes(d))
}

func ruleMinutes(d time.Duration) string { return fmt.Sprintf("%.0f min", d.Minutes()*float64(*speed)) }

func list(names []string) string {
	if len(names) == 0 {
		return "–"
	}
	return strings.Join(names, ", ")
}

func other(r *result, stack string) string {
	if len(r.seen[stack]) == 0 {
		return "not seen"
	}
	return list(r.seen[stack])
}
