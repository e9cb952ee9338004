package poll

import (
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge sends one gauge sample.
func Gauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	if m := sample(desc, prometheus.GaugeValue, value, labels); m != nil {
		ch <- m
	}
}

// Counter sends one counter sample.
func Counter(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	if m := sample(desc, prometheus.CounterValue, value, labels); m != nil {
		ch <- m
	}
}

// Age sends a gauge of seconds that grows by one each second after the moment
// of Collect, until the next poll.
func Age(ch chan<- prometheus.Metric, desc *prometheus.Desc, seconds float64, labels ...string) {
	if m := sample(desc, prometheus.GaugeValue, seconds, labels); m != nil {
		ch <- aging{m}
	}
}

// Aging is a sample that may be an age: it then grows by one each second until
// the next poll, and nobody has to collect it again to know it.
type Aging interface {
	prometheus.Metric
	Ages() bool
}

type aging struct{ prometheus.Metric }

// Ages implements Aging.
func (aging) Ages() bool { return true }

// sample is nil for NaN, which would poison every sum, and mends label values
// that are not UTF-8: names of groups and topics come from outside, and one bad
// one must not fail the page.
func sample(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels []string) prometheus.Metric {
	if math.IsNaN(value) {
		return nil
	}
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	return prometheus.MustNewConstMetric(desc, kind, value, labels...)
}
