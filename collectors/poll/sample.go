package poll

import (
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge sends one gauge sample.
func Gauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	send(ch, desc, prometheus.GaugeValue, value, labels)
}

// Counter sends one counter sample.
func Counter(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	send(ch, desc, prometheus.CounterValue, value, labels)
}

// send drops NaN, which would poison every sum, and mends label values that
// are not UTF-8: names of groups and topics come from outside, and one bad one
// must not fail the page.
func send(ch chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels []string) {
	if math.IsNaN(value) {
		return
	}
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	ch <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
}
