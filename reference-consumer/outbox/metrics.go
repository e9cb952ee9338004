package outbox

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the outbox. What is pending is asked from the database at the
// scrape: it is few rows, found by a partial index.
type metrics struct {
	cfg        Config
	deliveries *prometheus.CounterVec
	pending    *prometheus.Desc
	oldest     *prometheus.Desc
}

func newMetrics(cfg Config) *metrics {
	labels := prometheus.Labels{"consumer_group": cfg.Group}
	m := &metrics{
		cfg:        cfg,
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outbox_deliveries_total", Help: "Deliveries of intents by outcome: delivered, retry, dead.", ConstLabels: labels}, []string{"outcome"}),
		pending:    prometheus.NewDesc("outbox_pending", "Intents not delivered yet. Absent while the database does not answer.", nil, labels),
		oldest:     prometheus.NewDesc("outbox_oldest_pending_age_seconds", "Age of the oldest intent not delivered yet; 0 without one. Absent while the database does not answer.", nil, labels),
	}
	for _, outcome := range []string{"delivered", "retry", "dead"} {
		m.deliveries.WithLabelValues(outcome)
	}
	cfg.Registerer.MustRegister(m.deliveries, m)
	return m
}

func (m *metrics) unregister() {
	m.cfg.Registerer.Unregister(m.deliveries)
	m.cfg.Registerer.Unregister(m)
}

func (m *metrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.pending; ch <- m.oldest }

// Collect leaves the series out when the database does not answer in time: an
// unknown is no number.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var n int64
	var age float64
	err := m.cfg.Pool.QueryRow(ctx, `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
FROM outbox WHERE consumer_group = $1 AND status = 'pending'`, m.cfg.Group).Scan(&n, &age)
	if err != nil {
		m.cfg.Log.Warn("outbox: could not count what is pending", "consumer_group", m.cfg.Group, "error", err)
		return
	}
	ch <- prometheus.MustNewConstMetric(m.pending, prometheus.GaugeValue, float64(n))
	ch <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, age)
}
