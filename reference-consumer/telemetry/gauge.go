package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Age is a time that passed, of one partition.
type Age struct {
	Topic     string
	Partition int32
	Age       time.Duration
}

// NewCommitLag registers consumer_offset_commit_lag_seconds.
func NewCommitLag(reg prometheus.Registerer, group string, lags func() []Age) (unregister func()) {
	return newAges(reg, group, lags, "consumer_offset_commit_lag_seconds",
		"Time between the newest database commit and the offset commit that covers it; grows while one waits.")
}

// NewHandlerAge registers event_handler_oldest_running_seconds.
func NewHandlerAge(reg prometheus.Registerer, group string, ages func() []Age) (unregister func()) {
	return newAges(reg, group, ages, "event_handler_oldest_running_seconds",
		"How long the handler that runs the longest has been running, one that was left behind among them; 0 when none runs.")
}

// ages are computed at each scrape: a value set when something happens would
// stand still, small, exactly when nothing happens any more.
type ages struct {
	desc *prometheus.Desc
	read func() []Age
}

func newAges(reg prometheus.Registerer, group string, read func() []Age, name, help string) (unregister func()) {
	c := &ages{prometheus.NewDesc(name, help, []string{"topic", "partition"}, prometheus.Labels{"consumer_group": group}), read}
	reg.MustRegister(c)
	return func() { reg.Unregister(c) }
}

func (c *ages) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *ages) Collect(ch chan<- prometheus.Metric) {
	for _, a := range c.read() {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, a.Age.Seconds(), a.Topic, strconv.Itoa(int(a.Partition)))
	}
}
