package testenv

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Page is a scrape: samples by name{labels}, in Prometheus' notation with the
// labels sorted. A histogram has its _count and _sum.
type Page map[string]float64

// Gather scrapes a registry. NaN, which would poison every sum, fails the test.
func Gather(t testing.TB, from prometheus.Gatherer) Page {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	p := Page{}
	for _, f := range families {
		p.add(t, f)
	}
	return p
}

// ReadPage reads a page in the text format.
func ReadPage(t testing.TB, text string) Page {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	p := Page{}
	for _, f := range families {
		p.add(t, f)
	}
	return p
}

func (p Page) add(t testing.TB, f *dto.MetricFamily) {
	t.Helper()
	put := func(suffix string, m *dto.Metric, v float64) {
		series := f.GetName() + suffix + labels(m)
		if math.IsNaN(v) {
			t.Errorf("%s is NaN", series)
		}
		p[series] = v
	}
	for _, m := range f.Metric {
		switch {
		case m.Histogram != nil:
			put("_count", m, float64(m.Histogram.GetSampleCount()))
			put("_sum", m, m.Histogram.GetSampleSum())
		case m.Counter != nil:
			put("", m, m.Counter.GetValue())
		case m.Untyped != nil:
			put("", m, m.Untyped.GetValue())
		case m.Gauge != nil:
			put("", m, m.Gauge.GetValue())
		}
	}
}

func labels(m *dto.Metric) string {
	if len(m.Label) == 0 {
		return ""
	}
	pairs := make([]string, len(m.Label))
	for i, l := range m.Label {
		pairs[i] = l.GetName() + "=" + strconv.Quote(l.GetValue())
	}
	slices.Sort(pairs)
	return "{" + strings.Join(pairs, ",") + "}"
}

// Sum adds a metric's samples that have all the labels, given as name, value,
// name, value, and counts them. A histogram's value is its count.
func (p Page) Sum(name string, labels ...string) (sum float64, samples int) {
next:
	for series, v := range p {
		rest, ok := strings.CutPrefix(series, name)
		rest = strings.TrimPrefix(rest, "_count")
		if !ok || rest != "" && rest[0] != '{' {
			continue
		}
		for i := 0; i < len(labels); i += 2 {
			pair := labels[i] + "=" + strconv.Quote(labels[i+1])
			if !strings.Contains(rest, "{"+pair) && !strings.Contains(rest, ","+pair) {
				continue next
			}
		}
		sum, samples = sum+v, samples+1
	}
	return sum, samples
}
