package matrix

import (
	"fmt"
	"strings"
	"time"
)

// report writes the results as Markdown.
func report(results []*result, took time.Duration) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	type tally struct{ seen, faults, false, well int }
	sums := map[string]*tally{"": {}, "runbook": {}, "glued": {}}
	for _, r := range results {
		for stack, s := range sums {
			pages := r.pages
			if stack != "" {
				pages = r.false[stack]
			}
			if r.healthy() {
				s.well++
				if len(pages) > 0 {
					s.false++
				}
				continue
			}
			s.faults++
			if stack == "" && r.took >= 0 && r.took <= r.limit() || len(r.seen[stack]) > 0 {
				s.seen++
			}
		}
	}
	line("| | oncewatch | the runbook's rules, literally | lag exporter + `count(*)` |")
	line("|---|---|---|---|")
	line("| faults seen | %d of %d | %d of %d | %d of %d |", sums[""].seen, sums[""].faults, sums["runbook"].seen, sums["runbook"].faults, sums["glued"].seen, sums["glued"].faults)
	line("| healthy scenarios with a false page | %d of %d | %d of %d | %d of %d |", sums[""].false, sums[""].well, sums["runbook"].false, sums["runbook"].well, sums["glued"].false, sums["glued"].well)
	line("")
	line("| fault | alert | after | also fired, rightly | false pages | the runbook's rules | lag exporter + `count(*)` |")
	line("|---|---|---|---|---|---|---|")
	for _, r := range results {
		if r.healthy() {
			continue
		}
		after := "**not seen**"
		if r.took >= 0 {
			after = fmt.Sprintf("%.0f s", r.took.Seconds())
		}
		var also []string
		for _, name := range r.fired {
			if name != r.want {
				also = append(also, name)
			}
		}
		line("| %s | %s | %s | %s | %s | %s | %s |", r.name, r.want, after, list(also), list(r.pages), other(r, "runbook"), other(r, "glued"))
	}
	line("")
	line("| all is well | false pages | the runbook's rules | lag exporter + `count(*)` |")
	line("|---|---|---|---|")
	for _, r := range results {
		if r.healthy() {
			line("| %s: %s | %s | %s | %s |", r.name, r.story, list(r.pages), list(r.false["runbook"]), list(r.false["glued"]))
		}
	}
	line("")
	line("%d scenarios in %s.", len(results), took.Round(time.Second))
	return b.String()
}

func list(names []string) string {
	if len(names) == 0 {
		return "–"
	}
	return strings.Join(names, ", ")
}

func other(r *result, stack string) string {
	text := "not seen"
	if names := r.seen[stack]; len(names) > 0 {
		text = fmt.Sprintf("%.0f s: %s", r.first[stack].Seconds(), list(names))
	}
	if names := r.false[stack]; len(names) > 0 {
		text += "; before: " + list(names)
	}
	return text
}
