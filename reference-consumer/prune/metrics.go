package prune

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	now         func() time.Time
	deleted     prometheus.Counter
	duration    prometheus.Histogram
	lastSuccess prometheus.Gauge
	unregister  func()
}

func newMetrics(reg prometheus.Registerer, now func() time.Time) *metrics {
	m := &metrics{
		now:     now,
		deleted: prometheus.NewCounter(prometheus.CounterOpts{Name: "marker_prune_deleted_total", Help: "Markers deleted or dropped with their partition."}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "marker_prune_batch_duration_seconds", Help: "Duration of one delete of a bounded number of markers, or of the drop of one partition.",
			Buckets:                     []float64{.005, .01, .025, .05, .1, .2, .5, 1, 2.5, 5, 10, 60},
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{Name: "marker_prune_last_success_timestamp_seconds", Help: "Unix time of the last run that deleted all that was due; 0: never."}),
	}
	reg.MustRegister(m.deleted, m.duration, m.lastSuccess)
	m.unregister = func() {
		reg.Unregister(m.deleted)
		reg.Unregister(m.duration)
		reg.Unregister(m.lastSuccess)
	}
	return m
}

func (m *metrics) batch(n int64, took time.Duration) {
	m.deleted.Add(float64(n))
	m.duration.Observe(took.Seconds())
}

func (m *metrics) success() { m.lastSuccess.Set(float64(m.now().UnixMilli()) / 1000) }
