package kafka

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// labelSet is a sorted label set as Prometheus' library wants it.
type labelSet []*dto.LabelPair

// interner shares label pairs: the same few names make up a hundred thousand
// series.
type interner map[[2]string]*dto.LabelPair

// labels makes a label set of name and value pairs, which must be in the order
// of the names.
func (in interner) labels(of ...string) labelSet {
	out := make(labelSet, 0, len(of)/2)
	for i := 0; i < len(of); i += 2 {
		key := [2]string{of[i], of[i+1]}
		pair := in[key]
		if pair == nil {
			// Names come from outside; one that is not UTF-8 must not fail the page.
			value := strings.ToValidUTF8(of[i+1], "\uFFFD")
			pair = &dto.LabelPair{Name: &key[0], Value: &value}
			in[key] = pair
		}
		out = append(out, pair)
	}
	return out
}

// sample is a prometheus.Metric: a gauge whose labels are shared.
type sample struct {
	desc   *prometheus.Desc
	labels labelSet
	gauge  *dto.Gauge
	ages   bool
}

// Desc implements prometheus.Metric.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Ages implements poll.Aging.
func (s *sample) Ages() bool { return s.ages }

// Write implements prometheus.Metric.
func (s *sample) Write(m *dto.Metric) error {
	m.Label, m.Gauge = s.labels, s.gauge
	return nil
}

// sender sends a snapshot's samples as they are at now. Most values of a large
// cluster are the same few numbers, which share a gauge within one scrape.
type sender struct {
	now   time.Time
	ch    chan<- prometheus.Metric
	same  map[float64]*dto.Gauge
	spare []sample
}

func newSender(now time.Time, ch chan<- prometheus.Metric) *sender {
	return &sender{now: now, ch: ch, same: map[float64]*dto.Gauge{}}
}

// maxShared bounds the memory of the numbers that are remembered.
const maxShared = 1024

func (s *sender) gauge(desc *prometheus.Desc, value float64, labels labelSet) {
	s.send(desc, value, labels, false)
}

func (s *sender) send(desc *prometheus.Desc, value float64, labels labelSet, ages bool) {
	if math.IsNaN(value) {
		return
	}
	g := s.same[value]
	if g == nil {
		g = &dto.Gauge{Value: &value}
		if len(s.same) < maxShared {
			s.same[value] = g
		}
	}
	if len(s.spare) == 0 {
		s.spare = make([]sample, 256)
	}
	one := &s.spare[0]
	s.spare = s.spare[1:]
	*one = sample{desc, labels, g, ages}
	s.ch <- one
}

// flag sends 1 for true and 0 for false.
func (s *sender) flag(desc *prometheus.Desc, value bool, labels labelSet) {
	if value {
		s.gauge(desc, 1, labels)
	} else {
		s.gauge(desc, 0, labels)
	}
}

// age sends how long ago a record was written: 0 for the zero time, nothing
// where its timestamp cannot be right.
func (s *sender) age(desc *prometheus.Desc, record time.Time, labels labelSet) {
	if record.IsZero() {
		s.gauge(desc, 0, labels)
	} else if a := age(s.now, record); a.OK {
		s.send(desc, a.Value, labels, a.Value > 0)
	}
}
