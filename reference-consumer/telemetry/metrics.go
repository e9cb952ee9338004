// Package telemetry holds what the consumer shows of itself: metrics, traces
// and log fields.
package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/reference-consumer/inbox"
)

// Consumer holds the metrics of one consumer group.
type Consumer struct {
	group        string
	handled      *prometheus.CounterVec
	origin       *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	retries      *prometheus.CounterVec
	deadLettered *prometheus.CounterVec
	lost         *prometheus.CounterVec
	rebalances   prometheus.Counter
	waived       *prometheus.GaugeVec
	holds        *prometheus.GaugeVec
	stopped      *prometheus.GaugeVec
	unregister   func()
}

// NewConsumer registers the metrics of a consumer group. start is the time the
// process began to consume.
func NewConsumer(reg prometheus.Registerer, group string, start time.Time) *Consumer {
	labels := prometheus.Labels{"consumer_group": group}
	counter := func(name, help string, vars ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, vars)
	}
	gauge := func(name, help string, vars ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, vars)
	}
	c := &Consumer{
		group:   group,
		handled: counter("events_handled_total", "Events handled, by outcome: processed or duplicate. Absent until a partition of the topic is assigned.", "topic", "outcome"),
		origin:  counter("events_duplicate_origin_total", "Duplicates by where they came from: redelivered from the marker's own offset, or published again at another.", "topic", "origin"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "event_handle_duration_seconds", Help: "Duration of the whole transaction that handled the event.", ConstLabels: labels,
			Buckets:                        []float64{.001, .0025, .005, .01, .025, .05, .1, .2, .5, 1, 2.5, 5, 10},
			NativeHistogramBucketFactor:    1.1,
			NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}, []string{"topic"}),
		retries:      counter("event_retries_total", "Failed attempts that were repeated. Absent until a partition of the topic is assigned.", "topic"),
		deadLettered: counter("events_dead_lettered_total", "Events put into the dead-letter table, by reason. Absent until a partition of the topic is assigned.", "topic", "reason"),
		lost:         counter("events_lost_total", "Events known to be lost: gaps in a producer's sequence, and records deleted by the broker before they were handled.", "topic", "partition"),
		waived:       gauge("consumer_assertion_waived", "1 for each startup assertion waived by --allow. Absent for the others.", "assertion"),
		holds:        gauge("consumer_assertion_holds", "Whether a startup assertion held when it was last checked.", "assertion"),
		stopped:      gauge("consumer_partition_stopped", "1 while a partition waits because an event can neither be handled nor passed. Absent while it does not wait.", "topic", "partition"),
	}
	c.rebalances = prometheus.NewCounter(prometheus.CounterOpts{Name: "consumer_rebalances_total", Help: "Times the group's assignment changed for this member.", ConstLabels: labels})
	started := prometheus.NewGauge(prometheus.GaugeOpts{Name: "consumer_start_time_seconds", Help: "Unix time at which consuming began.", ConstLabels: labels})
	started.Set(float64(start.UnixMilli()) / 1000)
	all := []prometheus.Collector{c.handled, c.origin, c.duration, c.retries, c.deadLettered, c.lost, c.waived, c.holds, c.stopped, c.rebalances, started}
	reg.MustRegister(all...)
	c.unregister = func() {
		for _, m := range all {
			reg.Unregister(m)
		}
	}
	return c
}

// Unregister takes the metrics out of the registry, for a consumer that ends
// before its process does.
func (c *Consumer) Unregister() { c.unregister() }

// Topic holds the metrics of one topic.
type Topic struct {
	Processed, Duplicate    prometheus.Counter
	SameOffset, OtherOffset prometheus.Counter
	Retries                 prometheus.Counter

	c        *Consumer
	name     string
	duration prometheus.Observer
}

// Topic returns the topic's metrics; outcomes, origins and reasons exist from
// here on, at 0.
func (c *Consumer) Topic(name string) *Topic {
	for _, reason := range []string{inbox.ReasonData, inbox.ReasonDecode, inbox.ReasonTooOld, inbox.ReasonIDConflict, inbox.ReasonRetries, inbox.ReasonCrash, inbox.ReasonPanic, inbox.ReasonParked} {
		c.deadLettered.WithLabelValues(name, reason)
	}
	return &Topic{
		Processed:   c.handled.WithLabelValues(name, "processed"),
		Duplicate:   c.handled.WithLabelValues(name, "duplicate"),
		SameOffset:  c.origin.WithLabelValues(name, "same_offset"),
		OtherOffset: c.origin.WithLabelValues(name, "other_offset"),
		Retries:     c.retries.WithLabelValues(name),
		c:           c, name: name, duration: c.duration.WithLabelValues(name),
	}
}

// Observe records an event's transaction, with its trace where there is one.
func (t *Topic) Observe(d time.Duration, traceID string) {
	if traceID != "" {
		if o, ok := t.duration.(prometheus.ExemplarObserver); ok {
			o.ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": traceID})
			return
		}
	}
	t.duration.Observe(d.Seconds())
}

// DeadLettered counts an event that went to the dead letters.
func (t *Topic) DeadLettered(reason string) {
	t.c.deadLettered.WithLabelValues(t.name, reason).Inc()
}

// Partition creates the partition's loss counter at 0.
func (c *Consumer) Partition(topic, partition string) {
	c.lost.WithLabelValues(topic, partition)
}

// Lost counts lost events.
func (c *Consumer) Lost(topic, partition string, n float64) {
	c.lost.WithLabelValues(topic, partition).Add(n)
}

// Stopped tells whether a partition waits.
func (c *Consumer) Stopped(topic, partition string, stopped bool) {
	if stopped {
		c.stopped.WithLabelValues(topic, partition).Set(1)
		return
	}
	c.stopped.DeleteLabelValues(topic, partition)
}

// Rebalanced counts a change of the assignment.
func (c *Consumer) Rebalanced() { c.rebalances.Inc() }

// Assertion exports the state of a startup assertion.
func (c *Consumer) Assertion(name string, holds, waived bool) {
	c.holds.WithLabelValues(name).Set(boolean(holds))
	if waived {
		c.waived.WithLabelValues(name).Set(1)
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
