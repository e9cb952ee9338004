// Package conform says of metrics pages, of whichever program, what rules,
// dashboards and page would miss on them.
package conform

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"oncewatch/alerts"
)

// Finding is one thing that a page lacks or has otherwise.
type Finding struct {
	Metric string `json:"metric"`
	// Kind is what is wrong: missing, type, label, unit, value, born-late,
	// bucket, unbounded
	// or duplicate.
	Kind string `json:"kind"`
	// Wrong says that the page does not conform; else it is a note: something
	// that not everybody exports.
	Wrong  bool     `json:"wrong"`
	What   string   `json:"what"`
	Remedy string   `json:"remedy,omitempty"`
	Pages  []string `json:"pages"`
	// Uses are who reads what is missing.
	Uses
}

// The kinds of findings.
const (
	kindMissing   = "missing"
	kindType      = "type"
	kindLabel     = "label"
	kindUnit      = "unit"
	kindValue     = "value"
	kindBornLate  = "born-late"
	kindBucket    = "bucket"
	kindUnbounded = "unbounded"
	kindDuplicate = "duplicate"
)

// Wanted is what is read of metrics.
type Wanted struct {
	thresholds alerts.Thresholds
	needs      map[string]*need
	known      map[string]bool // every metric of the programs
}

// New finds what rules of these thresholds, dashboards and page read.
func New(t alerts.Thresholds) (*Wanted, error) {
	w := &Wanted{thresholds: t, known: map[string]bool{}}
	for _, metrics := range alerts.Metrics() {
		for name := range metrics {
			w.known[name] = true
		}
	}
	var err error
	w.needs, err = needs(t)
	return w, err
}

// Judge compares pages with what is read. A part of which a page has nothing (exporter, consumer, its outbox, its
// pruner) is not asked of it; a consumer is asked for where no page has anything.
// The exporter's may come from several pages together.
func (w *Wanted) Judge(pages []*Page) *Report {
	r := &Report{Version: 1}
	parts := map[part]bool{}
	for _, p := range pages {
		has := map[part]bool{}
		for name, n := range w.needs {
			if len(p.series[name]) > 0 || w.similar(p, name) != "" {
				has[n.part()] = true
				parts[n.part()] = true
			}
		}
		if len(pages) == 1 && len(has) == 0 {
			has[part{program: alerts.ProgramConsumer}] = true
		}
		r.Pages = append(r.Pages, PageSummary{Source: p.Source, Series: p.n})
		for _, name := range slices.Sorted(maps.Keys(w.needs)) {
			n := w.needs[name]
			elsewhere := n.program == alerts.ProgramExporter && len(p.series[name]) == 0 &&
				slices.ContainsFunc(pages, func(o *Page) bool { return len(o.series[name]) > 0 })
			if has[n.part()] && !elsewhere {
				w.judge(r, p, name, n)
			}
		}
	}
	if len(pages) > 1 && len(parts) == 0 {
		for _, name := range slices.Sorted(maps.Keys(w.needs)) {
			if n := w.needs[name]; n.part() == (part{program: alerts.ProgramConsumer}) {
				w.judge(r, pages[0], name, n)
			}
		}
	}
	for _, n := range w.needs {
		if n.Part == "" {
			parts[n.part()] = parts[n.part()] || false
		}
	}
	for p, seen := range parts {
		if !seen {
			r.Unseen = append(r.Unseen, p.program)
		}
	}
	slices.Sort(r.Unseen)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		if a.Wrong != b.Wrong {
			if a.Wrong {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Metric, b.Metric)
	})
	r.Conforms = !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Wrong })
	return r
}

// part is what is asked for as a whole.
type part struct{ program, name string }

func (n *need) part() part { return part{n.program, n.Part} }

func (r *Report) add(p *Page, f Finding) {
	for i := range r.Findings {
		if o := &r.Findings[i]; o.Metric == f.Metric && o.Kind == f.Kind && o.What == f.What {
			o.Pages = append(o.Pages, p.Source)
			return
		}
	}
	f.Pages = []string{p.Source}
	r.Findings = append(r.Findings, f)
}

func (w *Wanted) judge(r *Report, p *Page, name string, n *need) {
	found := func(kind string, wrong bool, uses Uses, remedy, what string, args ...any) {
		r.add(p, Finding{Metric: name, Kind: kind, Wrong: wrong, What: fmt.Sprintf(what, args...), Remedy: remedy, Uses: uses})
	}
	all := p.series[name]
	if len(all) == 0 {
		switch other := w.similar(p, name); {
		case other != "" && unitOf(other) != unitOf(name):
			found(kindUnit, true, n.uses, fmt.Sprintf("Export it as %s%s.", name, inUnit(name)), "there is %s, %s is wanted%s", other, name, inUnit(name))
		case other != "":
			found(kindMissing, n.Required, n.uses, fmt.Sprintf("Rename it to %s, or map it with --metrics.map.", name), "there is %s in its place", other)
		default:
			found(kindMissing, n.Required, n.uses, fmt.Sprintf("Export it: a %s%s with the labels %s.", n.Type, inUnit(name), list(n.Labels)), "it is not there")
		}
		return
	}
	if !judgeType(found, p, name, n) {
		return
	}
	judgeLabels(found, all, n)
	seen := map[uint64]bool{}
	for _, s := range all {
		if h := s.labels.Hash(); seen[h] {
			found(kindDuplicate, true, n.uses, "Sum up before exporting, or map to values that stay apart.", "several series have the same labels: Prometheus keeps one of them and drops the others")
			break
		} else {
			seen[h] = true
		}
	}
	judgeValues(found, all, n)
	if n.Type == "histogram" {
		judgeBounds(found, p, name, n)
	}
	judgeUnit(found, p, name, n)
}

type report func(kind string, wrong bool, uses Uses, remedy, what string, args ...any)

// judgeType says whether to look further.
func judgeType(found report, p *Page, name string, n *need) bool {
	got := p.types[name]
	switch {
	case got == n.Type:
		return true
	case got == "" && !p.typed():
		return true // nothing is known of types here
	case got == "" && n.Type != "histogram":
		found(kindType, false, n.uses, "Declare it: # TYPE "+name+" "+n.Type, "it has no type, a %s is wanted", n.Type)
		return true
	case got == "":
		found(kindType, true, n.uses, "Export it as a histogram with buckets.", "it has no type and no buckets, a histogram is wanted")
	case got == "summary":
		found(kindType, true, n.uses, "Publish a histogram with buckets: the quantiles of several consumers cannot be joined, buckets can.", "it is a summary, a %s is wanted", n.Type)
	default:
		found(kindType, true, n.uses, fmt.Sprintf("Export it as a %s.", n.Type), "it is a %s, a %s is wanted", got, n.Type)
	}
	return false
}

// free are labels whose values the installation gives.
var free = []string{"consumer_group", "topic", "partition", "database", "shard", "index", "cluster", "job", "instance", "le", "quantile", model.MetricNameLabel}

// perEvent are names of labels that have a value for each event.
var perEvent = []string{"event_id", "message_id", "trace_id", "span_id", "correlation_id", "offset", "key", "record_key", "user_id", "customer_id", "error_message", "exception_message"}

// manyValues is how many values of a label make it one without bounds.
const manyValues = 50

func judgeLabels(found report, all []series, n *need) {
	values := map[string]map[string]bool{}
	without := map[string]int{}
	for _, s := range all {
		for _, l := range n.Labels {
			if s.labels.Get(l) == "" {
				without[l]++
			}
		}
		s.labels.Range(func(l labels.Label) {
			if values[l.Name] == nil {
				values[l.Name] = map[string]bool{}
			}
			if len(values[l.Name]) <= manyValues {
				values[l.Name][l.Value] = true
			}
		})
	}
	for _, l := range slices.Sorted(maps.Keys(n.labels)) {
		if without[l] == 0 || n.Lacks(l) {
			continue
		}
		where := "no series has it"
		if without[l] < len(all) {
			where = fmt.Sprintf("%d of %d series are without", without[l], len(all))
		}
		var others []string
		for other := range values {
			if !slices.Contains(n.Labels, other) && !slices.Contains(free, other) && len(others) < 5 {
				others = append(others, other)
			}
		}
		remedy := "Set it on every series."
		if slices.Sort(others); len(others) > 0 {
			remedy = fmt.Sprintf("Set it on every series; if it is %s here, rename or map it with --metrics.map.", strings.Join(others, " or "))
		}
		found(kindLabel, true, n.labels[l], remedy, "the label %s is missing: %s", l, where)
	}
	for _, l := range slices.Sorted(maps.Keys(values)) {
		many := len(values[l]) > manyValues && !slices.Contains(free, l)
		if slices.Contains(n.Labels, l) && !many || n.Values[l] != nil {
			continue
		}
		if many || slices.Contains(perEvent, l) {
			found(kindUnbounded, true, n.uses, "Leave the label out: what is about one event belongs into log and trace.", "the label %s makes a series for each of its values, without bound", l)
		}
	}
}

func judgeValues(found report, all []series, n *need) {
	for _, l := range slices.Sorted(maps.Keys(n.Values)) {
		wanted := n.Values[l]
		others := map[string]bool{}
		seen := map[string]map[string]bool{} // by the other labels that count
		for _, s := range all {
			v := s.labels.Get(l)
			if v == "" {
				continue
			}
			if !slices.Contains(wanted, v) {
				others[v] = true
			}
			key := make([]string, 0, len(n.Labels))
			for _, of := range slices.Concat(n.Labels, []string{"job", "instance", "cluster"}) {
				if of != l {
					key = append(key, s.labels.Get(of))
				}
			}
			k := strings.Join(key, "\x00")
			if seen[k] == nil {
				seen[k] = map[string]bool{}
			}
			seen[k][v] = true
		}
		if len(others) > 0 {
			some := slices.Sorted(maps.Keys(others))
			quoted := make([]string, 0, 3)
			for _, v := range some[:min(3, len(some))] {
				quoted = append(quoted, fmt.Sprintf("%.40q", v))
			}
			uses := Uses{}
			for _, u := range n.values[l] {
				uses = uses.with(u)
			}
			found(kindValue, true, uses, fmt.Sprintf("Use %s only, or map them with --metrics.map.", list(wanted)), "%s is %s, %s are wanted", l, strings.Join(quoted, ", "), list(wanted))
			continue
		}
		late := map[string]int{}
		for _, has := range seen {
			for _, v := range wanted {
				if !has[v] {
					late[v]++
				}
			}
		}
		for _, v := range slices.Sorted(maps.Keys(late)) {
			uses, ok := n.values[l][v]
			if !ok {
				uses = n.labels[l]
			}
			found(kindBornLate, true, uses, fmt.Sprintf("Make the series of %s=%q at start, at 0: the first event of a series that is born above 0 is not counted.", l, v),
				"%s=%q is missing for %d of %d sets of labels", l, v, late[v], len(seen))
		}
	}
}

func judgeBounds(found report, p *Page, name string, n *need) {
	if p.native[name] {
		return // any bound can be asked of them
	}
	bounds := map[float64]int{}
	total := map[string]bool{}
	for _, s := range p.series[name] {
		le := s.labels.Get(labels.BucketLabel)
		if le == "" {
			continue
		}
		lb := labels.NewBuilder(s.labels)
		total[lb.Del(labels.BucketLabel).Labels().String()] = true
		if v, err := strconv.ParseFloat(le, 64); err == nil {
			bounds[v]++
		}
	}
	if len(total) == 0 {
		found(kindBucket, true, n.uses, "Publish buckets.", "it has no buckets")
		return
	}
	sorted := slices.Sorted(maps.Keys(bounds))
	for _, want := range slices.Sorted(maps.Keys(n.bounds)) {
		if bounds[want] >= len(total) {
			continue
		}
		if bounds[want] == 0 && bounds[want*1000] > 0 {
			found(kindUnit, true, n.uses, "Observe seconds.", "its bounds are milliseconds: there is one at %g, and %g is wanted", want*1000, want)
			continue
		}
		near := ""
		if i, _ := slices.BinarySearch(sorted, want); bounds[want] == 0 && i > 0 && i < len(sorted) {
			near = fmt.Sprintf(" (it has %g and %g)", sorted[i-1], sorted[i])
		}
		found(kindBucket, true, n.bounds[want], fmt.Sprintf("Add a bucket with the upper bound %g, in seconds.", want), "there is no bucket with the upper bound %g%s", want, near)
	}
	if bounds[math.Inf(1)] < len(total) {
		found(kindBucket, true, n.uses, `Export the bucket le="+Inf".`, `there is no bucket le="+Inf"`)
	}
}

// A time that is longer than this many seconds is in milliseconds: ten years for
// a duration, the year 5138 for a time.
const (
	longDuration = 10 * 365 * 86400
	lateTime     = 1e11
	noDuration   = 1e13 // "for ever", as some write it
)

func judgeUnit(found report, p *Page, name string, n *need) {
	if u, want := p.units[name], unitOf(name); u != "" && want != "" && u != want {
		found(kindUnit, true, n.uses, "Export "+want+".", "its unit is declared as %.20q, %s are wanted", u, want)
		return
	}
	if n.Type != "gauge" || unitOf(name) != "seconds" {
		return
	}
	for _, s := range p.series[name] {
		v := math.Abs(s.value)
		instant := strings.HasSuffix(name, "_timestamp_seconds") || strings.HasSuffix(name, "start_time_seconds")
		if instant && v > lateTime || !instant && v > longDuration && v < noDuration {
			found(kindUnit, true, n.uses, "Export seconds.", "its values look like milliseconds: seconds are wanted")
			return
		}
	}
}

// unitOf is the unit that a name ends in; empty where it has none.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	for _, u := range unitNames {
		if strings.HasSuffix(name, "_"+u) {
			return u
		}
	}
	return ""
}

var unitNames = []string{"seconds", "milliseconds", "microseconds", "nanoseconds", "minutes", "ms", "millis", "s", "us", "ns", "bytes", "kilobytes", "megabytes", "kb", "mb"}

func inUnit(name string) string {
	if u := unitOf(name); u != "" {
		return ", in " + u
	}
	return ""
}

func stem(name string) string {
	name = strings.TrimSuffix(name, "_total")
	if u := unitOf(name); u != "" {
		return strings.TrimSuffix(name, "_"+u)
	}
	return name
}

// similar is a family of the page that is the metric but for unit and suffix.
func (w *Wanted) similar(p *Page, name string) string {
	var found string
	for other := range p.series {
		if !w.known[other] && stem(other) == stem(name) && (found == "" || other < found) {
			found = other
		}
	}
	return found
}

func (p *Page) typed() bool { return len(p.types) > 0 }

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
