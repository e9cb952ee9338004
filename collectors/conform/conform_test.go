package conform

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"oncewatch/alerts"
)

// A sheet is a page that a test changes before it is written.
type sheet map[string]*family

type family struct {
	kind   string
	series []map[string]string
}

// good is a page of everything that is read, made from the catalogue.
func good(w *Wanted) sheet {
	s := sheet{}
	for name, n := range w.needs {
		f := &family{kind: n.Type}
		for _, topic := range []string{"payments", "refunds"} {
			labels := map[string]string{}
			for _, l := range n.Labels {
				labels[l] = "a"
				if l == "topic" {
					labels[l] = topic
				}
			}
			f.series = append(f.series, labels)
			if !slices.Contains(n.Labels, "topic") {
				break
			}
		}
		for l, values := range n.Values {
			var split []map[string]string
			for _, of := range f.series {
				for _, v := range values {
					split = append(split, with(of, l, v))
				}
			}
			f.series = split
		}
		if n.Type == "histogram" {
			var split []map[string]string
			for _, of := range f.series {
				for _, le := range []string{"0.1", "0.2", "1", "+Inf"} {
					split = append(split, with(of, "le", le))
				}
			}
			f.series = split
		}
		s[name] = f
	}
	return s
}

func with(labels map[string]string, name, value string) map[string]string {
	c := map[string]string{name: value}
	for k, v := range labels {
		if k != name {
			c[k] = v
		}
	}
	return c
}

func (s sheet) text() string {
	var b strings.Builder
	for name, f := range s {
		if f.kind != "" {
			fmt.Fprintf(&b, "# TYPE %s %s\n", name, f.kind)
		}
		for _, labels := range f.series {
			sample := name
			if _, ok := labels["le"]; ok {
				sample += "_bucket"
			}
			b.WriteString(sample + "{")
			for l, v := range labels {
				fmt.Fprintf(&b, "%s=%q,", l, v)
			}
			b.WriteString("} 1\n")
		}
	}
	return b.String()
}

func wanted(t *testing.T) *Wanted {
	t.Helper()
	w, err := New(alerts.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func judge(t *testing.T, w *Wanted, page string) *Report {
	t.Helper()
	p, err := Read("page", strings.NewReader(page), "", nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, page)
	}
	return w.Judge([]*Page{p})
}

// A page of everything that is read has nothing to find.
func TestGoodPage(t *testing.T) {
	w := wanted(t)
	if r := judge(t, w, good(w).text()); len(r.Findings) > 0 || !r.Conforms || len(r.Unseen) > 0 {
		t.Errorf("a good page: %+v", r)
	}
}

// One thing that is changed on a good page is named, and nothing else.
func TestOneChangeIsNamed(t *testing.T) {
	const seed = 23
	random := rand.New(rand.NewPCG(seed, seed))
	w := wanted(t)
	names := slices.Sorted(maps.Keys(w.needs))
	counts := map[string]int{}
	for range 400 {
		page := good(w)
		name := names[random.IntN(len(names))]
		kind := []string{kindMissing, kindType, "no type", kindLabel, kindUnit, kindValue, kindBornLate, kindBucket, kindUnbounded}[random.IntN(9)]
		if kind == kindBucket {
			name = "event_handle_duration_seconds" // the only one of which one bound is read
		}
		n, f := w.needs[name], page[name]
		wrong := true
		switch kind {
		case kindMissing:
			delete(page, name)
			wrong = n.Required
		case kindType:
			f.kind = map[string]string{"counter": "gauge", "gauge": "counter", "histogram": "summary"}[n.Type]
			for _, s := range f.series {
				delete(s, "le")
			}
			f.series = f.series[:1] // which would be twice the same
		case "no type":
			if n.Type == "histogram" {
				continue // its buckets tell it
			}
			f.kind, wrong, kind = "", false, kindType
		case kindLabel:
			var read []string
			for l := range n.labels {
				if !n.Lacks(l) && n.Values[l] == nil {
					read = append(read, l)
				}
			}
			if len(read) == 0 {
				continue
			}
			slices.Sort(read)
			l := read[random.IntN(len(read))]
			for _, s := range f.series {
				delete(s, l)
				s["other"] = "a"
			}
			slices.SortFunc(f.series, func(a, b map[string]string) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			f.series = slices.CompactFunc(f.series, func(a, b map[string]string) bool { return fmt.Sprint(a) == fmt.Sprint(b) })
		case kindUnit:
			if unitOf(name) != "seconds" {
				continue
			}
			delete(page, name)
			page[strings.Replace(name, "_seconds", "_milliseconds", 1)] = f
		case kindValue, kindBornLate:
			if n.Values == nil {
				continue
			}
			for l, values := range n.Values {
				if kind == kindBornLate {
					f.series = slices.DeleteFunc(f.series, func(s map[string]string) bool { return s[l] == values[1] })
				} else {
					for _, s := range f.series {
						s[l] = strings.ToUpper(s[l])
					}
				}
			}
		case kindBucket:
			if len(n.bounds) == 0 {
				continue
			}
			f.series = slices.DeleteFunc(f.series, func(s map[string]string) bool { return s["le"] == "0.2" })
		case kindUnbounded:
			for _, s := range f.series {
				s["event_id"] = "of " + s["topic"]
			}
		}
		r := judge(t, w, page.text())
		if len(r.Findings) != 1 || r.Findings[0].Metric != name || r.Findings[0].Kind != kind || r.Findings[0].Wrong != wrong || r.Conforms == wrong {
			t.Fatalf("seed %d: %s of %s is found as %+v", seed, kind, name, r.Findings)
		}
		if f := r.Findings[0]; len(f.Alerts)+len(f.Panels)+len(f.Lines) == 0 {
			t.Errorf("%s of %s: nobody is named who reads it", kind, name)
		}
		counts[kind]++
	}
	for _, kind := range []string{kindMissing, kindType, kindLabel, kindUnit, kindValue, kindBornLate, kindBucket, kindUnbounded} {
		if counts[kind] == 0 {
			t.Errorf("no page with %s was tried", kind)
		}
	}
}

// What Micrometer makes of a timer without buckets, which has the right name and
// is still of no use, is told by who would miss it.
func TestMicrometerTimer(t *testing.T) {
	r := judge(t, wanted(t), `# HELP event_handle_duration_seconds
# TYPE event_handle_duration_seconds summary
event_handle_duration_seconds_count{consumer_group="g",topic="t"} 3
event_handle_duration_seconds_sum{consumer_group="g",topic="t"} 0.2
# TYPE event_handle_duration_seconds_max gauge
event_handle_duration_seconds_max{consumer_group="g",topic="t"} 0.1
# TYPE events_handled_total counter
events_handled_total{group="g",topic="t",outcome="processed"} 3.0
events_handled_total{group="g",topic="t",outcome="duplicate"} 0.0
# TYPE consumer_offset_commit_lag_seconds gauge
consumer_offset_commit_lag_seconds{consumer_group="g",topic="t",partition="0"} 0.0
`)
	var got []string
	for _, f := range r.Findings {
		if f.Wrong {
			got = append(got, f.Metric+" "+f.Kind)
		}
	}
	if want := []string{"event_handle_duration_seconds type", "events_handled_total label"}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if !slices.Contains(r.Findings[0].Alerts, "ConsumerHandleLatencyP99High") {
		t.Errorf("the alert that needs the histogram is not named: %+v", r.Findings[0])
	}
	if !strings.Contains(r.Findings[1].Remedy, "group") {
		t.Errorf("the label that is there in its place is not named: %q", r.Findings[1].Remedy)
	}
}

// Formats of a scrape, and what is none of them. No error repeats the page.
func TestFormats(t *testing.T) {
	openMetrics := "# TYPE events_handled counter\n# UNIT event_handle_duration_seconds seconds\nevents_handled_total{consumer_group=\"g\",topic=\"t\",outcome=\"processed\"} 1.0 # {trace_id=\"a\"} 1.0\n# EOF\n"
	p, err := Read("page", strings.NewReader(openMetrics), "", nil)
	if err != nil || p.types["events_handled_total"] != "counter" {
		t.Errorf("OpenMetrics: %v, %v", p, err)
	}
	for _, page := range []string{"", "  \n", "<html>secret</html>", "up 1\nsecret is {", "secret 1 2 3 4"} {
		if _, err := Read("page", strings.NewReader(page), "", nil); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", page, err)
		}
	}
}

// Units that are told by a unit line, by values and by bounds.
func TestUnits(t *testing.T) {
	const labels = `{consumer_group="g",topic="t",partition="0"}`
	for page, want := range map[string]string{
		"# TYPE consumer_offset_commit_lag_seconds gauge\n# UNIT consumer_offset_commit_lag_seconds seconds\nconsumer_offset_commit_lag_seconds" + labels + " 1\n# EOF\n":                                                             "",
		"# TYPE consumer_start_time_seconds gauge\nconsumer_start_time_seconds{consumer_group=\"g\"} 1.8e12\n":                                                                                                                        "consumer_start_time_seconds",
		"# TYPE consumer_start_time_seconds gauge\nconsumer_start_time_seconds{consumer_group=\"g\"} 1.8e9\n":                                                                                                                         "",
		"# TYPE kafka_topic_retention_seconds gauge\nkafka_topic_retention_seconds{topic=\"t\"} 604800000\n":                                                                                                                          "kafka_topic_retention_seconds",
		"# TYPE kafka_topic_retention_seconds gauge\nkafka_topic_retention_seconds{topic=\"t\"} +Inf\n":                                                                                                                               "",
		"# TYPE kafka_topic_retention_seconds gauge\nkafka_topic_retention_seconds{topic=\"t\"} 9.2e15\n":                                                                                                                             "",
		"# TYPE event_handle_duration_seconds histogram\nevent_handle_duration_seconds_bucket{consumer_group=\"g\",topic=\"t\",le=\"200\"} 1\nevent_handle_duration_seconds_bucket{consumer_group=\"g\",topic=\"t\",le=\"+Inf\"} 1\n": "event_handle_duration_seconds",
	} {
		var got string
		for _, f := range judge(t, wanted(t), page).Findings {
			if f.Kind == kindUnit {
				got += f.Metric
			}
		}
		if got != want {
			t.Errorf("%s: another unit is found of %q, want %q", page, got, want)
		}
	}
}

// The catalogue and the references that the programs write of themselves agree.
func TestCatalogueAndReference(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+)[^|]*\\|([^|]*)\\|")
	for program, path := range map[string]string{alerts.ProgramExporter: "../METRICS.md", alerts.ProgramConsumer: "../../reference-consumer/METRICS.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		types, labels := map[string]string{}, map[string]string{}
		for _, m := range row.FindAllStringSubmatch(string(text), -1) {
			types[m[1]], labels[m[1]] = m[2], m[3]
		}
		for name, m := range alerts.Metrics()[program] {
			if types[name] != m.Type {
				t.Errorf("%s is a %q in %s, and a %s in the catalogue", name, types[name], path, m.Type)
			}
			for _, l := range m.Labels {
				if !strings.Contains(labels[name], "`"+l+"`") {
					t.Errorf("%s has the label %s in the catalogue, and not in %s", name, l, path)
				}
			}
		}
	}
}

// Markers and lag may come from two exporters; of two consumers each has all.
func TestSeveralPages(t *testing.T) {
	w := wanted(t)
	lag, markers, whole, half := good(w), good(w), good(w), good(w)
	for name, n := range w.needs {
		if n.program == alerts.ProgramConsumer {
			delete(lag, name)
			delete(markers, name)
			continue
		}
		delete(whole, name)
		delete(half, name)
		if strings.HasPrefix(name, "processed_events_") {
			delete(lag, name)
		} else {
			delete(markers, name)
		}
	}
	delete(half, "events_handled_total")
	var pages []*Page
	for i, s := range []sheet{lag, markers, whole, half} {
		p, err := Read(fmt.Sprint(i), strings.NewReader(s.text()), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, p)
	}
	r := w.Judge(pages)
	if len(r.Findings) != 1 || r.Findings[0].Metric != "events_handled_total" || !slices.Equal(r.Findings[0].Pages, []string{"3"}) {
		t.Errorf("found %+v", r.Findings)
	}
}
