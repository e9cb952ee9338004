// Package metricdoc writes the reference of a program's metrics from the
// descriptors that the program registers. It is for tests.
package metricdoc

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Recorder is a registry that remembers every descriptor it was ever given, and
// what it gathered.
type Recorder struct {
	*prometheus.Registry
	mu    sync.Mutex
	descs map[string]desc   // by name
	types map[string]string // by name, of what has had samples
}

// desc is what a descriptor tells.
type desc struct {
	help   string
	labels []string
}

// NewRecorder makes an empty one.
func NewRecorder() *Recorder {
	return &Recorder{Registry: prometheus.NewRegistry(), descs: map[string]desc{}, types: map[string]string{}}
}

// Register implements prometheus.Registerer.
func (r *Recorder) Register(c prometheus.Collector) error {
	if err := r.Registry.Register(c); err != nil {
		return err
	}
	return r.Record(c)
}

// MustRegister implements prometheus.Registerer.
func (r *Recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// Record remembers a collector's descriptors without registering it.
func (r *Recorder) Record(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	var wrong error
	for d := range descs {
		if err := r.add(d, c); err != nil {
			wrong = err
		}
	}
	return wrong
}

// A descriptor tells its parts by its String only.
var descriptor = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

func (r *Recorder) add(d *prometheus.Desc, c prometheus.Collector) error {
	m := descriptor.FindStringSubmatch(d.String())
	if m == nil {
		return fmt.Errorf("a descriptor is written in another way than expected: %s", d)
	}
	name, err := strconv.Unquote(m[1])
	if err != nil {
		return err
	}
	help, err := strconv.Unquote(m[2])
	if err != nil {
		return err
	}
	var labels []string
	for _, pair := range strings.Split(m[3], ",") {
		if label, _, ok := strings.Cut(pair, "="); ok {
			labels = append(labels, label)
		}
	}
	for _, label := range strings.Split(m[4], ",") {
		if label != "" {
			labels = append(labels, label)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.descs[name]; !ok || len(labels) > len(old.labels) {
		r.descs[name] = desc{help: help, labels: labels}
	}
	if t := typeOf(name, c); t != "" {
		r.types[name] = t
	}
	return nil
}

// typeOf is the type of a collector's metrics where the collector tells it.
func typeOf(name string, c prometheus.Collector) string {
	switch c := c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.HistogramVec:
		return "histogram"
	case prometheus.Metric:
		var m dto.Metric
		if err := c.Write(&m); err == nil {
			switch {
			case m.Counter != nil:
				return "counter"
			case m.Histogram != nil:
				return "histogram"
			}
		}
	}
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

// Seen takes the types of what has samples, which win over what the names say.
func (r *Recorder) Seen(families []*dto.MetricFamily) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range families {
		if _, ok := r.descs[f.GetName()]; ok {
			r.types[f.GetName()] = strings.ToLower(f.GetType().String())
		}
	}
}

// Table is the reference: a row for each metric of the program's own, by name. What help says from
// the word "Absent" on is when the metric has no series.
func (r *Recorder) Table() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	b.WriteString("| metric | type, unit | labels | meaning | absent |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.descs)) {
		if runtime.MatchString(name) {
			continue
		}
		d := r.descs[name]
		meaning, absent, never := strings.Cut(d.help, "Absent ")
		absent = strings.TrimSuffix(absent, ".")
		if !never {
			absent = "–"
		}
		labels := make([]string, len(d.labels))
		for i, l := range d.labels {
			labels[i] = "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, r.types[name]+unit(name), strings.Join(labels, ", "), cell(meaning), cell(absent))
	}
	return b.String()
}

// runtime is the names that client_golang's own collectors give.
var runtime = regexp.MustCompile(`^(go|process|promhttp)_`)

func cell(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "|", "\\|") }

// unit is the one that a name ends in, by Prometheus' conventions.
func unit(name string) string {
	switch name := strings.TrimSuffix(name, "_total"); {
	case strings.HasSuffix(name, "_timestamp_seconds"), strings.HasSuffix(name, "start_time_seconds"):
		return ", Unix time in seconds"
	case strings.HasSuffix(name, "_seconds"):
		return ", seconds"
	case strings.HasSuffix(name, "_bytes"):
		return ", bytes"
	case strings.HasSuffix(name, "_ratio"):
		return ", ratio"
	}
	return ""
}

// Check compares a file with the text, or writes it where update is set.
func Check(t *testing.T, path, text string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(old) != text {
		t.Errorf("%s is not what the program registers: run go test with -update\n%s", path, firstDifference(string(old), text))
	}
}

func firstDifference(old, now string) string {
	a, b := strings.Split(old, "\n"), strings.Split(now, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "- " + a[i] + "\n+ " + b[i]
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}
