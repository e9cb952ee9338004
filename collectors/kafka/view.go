package kafka

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// view is a snapshot's samples, made once when it is polled: a scrape of a
// hundred thousand series only walks over them. Label pairs are shared, since
// the same few names make up all of them.
type view struct {
	samples []sample
	pairs   map[[2]string]*dto.LabelPair
}

// sample is a prometheus.Metric: a gauge with a value, or, with since, with the
// time that has passed since then.
type sample struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	value  float64
	since  time.Time
}

// Desc implements prometheus.Metric.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s *sample) Write(m *dto.Metric) error {
	m.Label = s.labels
	m.Gauge = &dto.Gauge{Value: &s.value}
	return nil
}

// labels makes a label set of name and value pairs, which must be in the
// order of the names.
func (v *view) labels(of ...string) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(of)/2)
	for i := 0; i < len(of); i += 2 {
		key := [2]string{of[i], of[i+1]}
		pair := v.pairs[key]
		if pair == nil {
			if v.pairs == nil {
				v.pairs = map[[2]string]*dto.LabelPair{}
			}
			// Names come from outside; one that is not UTF-8 must not fail the page.
			value := strings.ToValidUTF8(of[i+1], "\uFFFD")
			pair = &dto.LabelPair{Name: &key[0], Value: &value}
			v.pairs[key] = pair
		}
		out = append(out, pair)
	}
	return out
}

func (v *view) gauge(desc *prometheus.Desc, value float64, labels []*dto.LabelPair) {
	if !math.IsNaN(value) {
		v.samples = append(v.samples, sample{desc: desc, labels: labels, value: value})
	}
}

// age adds a gauge that is the age of a record; 0 for the zero time.
func (v *view) age(desc *prometheus.Desc, record time.Time, labels []*dto.LabelPair) {
	v.samples = append(v.samples, sample{desc: desc, labels: labels, since: record})
}

func (v *view) collect(now time.Time, ch chan<- prometheus.Metric) {
	for i := range v.samples {
		s := &v.samples[i]
		if s.since.IsZero() {
			ch <- s
			continue
		}
		if a := age(now, s.since); a.OK {
			ch <- &sample{desc: s.desc, labels: s.labels, value: a.Value}
		}
	}
}
