package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CommitLag is the gap between a partition's database and offset commits.
type CommitLag struct {
	Topic     string
	Partition int32
	Lag       time.Duration
}

// NewCommitLag registers consumer_offset_commit_lag_seconds, computed at each
// scrape: a value set at commits would stand still, small, exactly when
// commits stop.
func NewCommitLag(reg prometheus.Registerer, group string, lags func() []CommitLag) (unregister func()) {
	c := &commitLag{
		desc: prometheus.NewDesc("consumer_offset_commit_lag_seconds",
			"Time between the newest database commit and the offset commit that covers it; grows while one waits.",
			[]string{"topic", "partition"}, prometheus.Labels{"consumer_group": group}),
		lags: lags,
	}
	reg.MustRegister(c)
	return func() { reg.Unregister(c) }
}

type commitLag struct {
	desc *prometheus.Desc
	lags func() []CommitLag
}

func (c *commitLag) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *commitLag) Collect(ch chan<- prometheus.Metric) {
	for _, l := range c.lags() {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, l.Lag.Seconds(), l.Topic, strconv.Itoa(int(l.Partition)))
	}
}
