package poll

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	successDesc = prometheus.NewDesc("oncewatch_collector_success",
		"1 where the newest poll of the collector succeeded.", []string{"collector"}, nil)
	durationDesc = prometheus.NewDesc("oncewatch_collector_duration_seconds",
		"How long the newest poll of the collector took. Absent until one has ended.", []string{"collector"}, nil)
	lastSuccessDesc = prometheus.NewDesc("oncewatch_collector_last_success_timestamp_seconds",
		"When the newest successful poll of the collector began; 0 where there was none.", []string{"collector"}, nil)
	intervalDesc = prometheus.NewDesc("oncewatch_collector_interval_seconds",
		"The collector's poll interval.", []string{"collector"}, nil)
	errorsDesc = prometheus.NewDesc("oncewatch_errors_total",
		"Entities that could not be read, by kind of error. Absent until there is one of the kind.", []string{"collector", "kind"}, nil)
)

// Set is the exporter's pollers as one Prometheus collector.
type Set []*Poller

// Run polls all of them until the context ends.
func (s Set) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range s {
		wg.Go(func() { p.Run(ctx) })
	}
	wg.Wait()
}

// Ready says whether every collector has succeeded once.
func (s Set) Ready() bool {
	for _, p := range s {
		select {
		case <-p.Succeeded():
		default:
			return false
		}
	}
	return true
}

// Wait returns once every collector has succeeded once, or with the context's
// error.
func (s Set) Wait(ctx context.Context) error {
	for _, p := range s {
		select {
		case <-p.Succeeded():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Own is the metrics of the pollers themselves.
type Own Set

// Describe implements prometheus.Collector.
func (s Own) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{successDesc, durationDesc, lastSuccessDesc, intervalDesc, errorsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s Own) Collect(ch chan<- prometheus.Metric) {
	for _, p := range s {
		p.collectOwn(ch)
	}
}

// Describe implements prometheus.Collector.
func (s Set) Describe(ch chan<- *prometheus.Desc) {
	Own(s).Describe(ch)
	// Two stores share their descriptions; the registry wants each once.
	once := map[*prometheus.Desc]bool{}
	for _, p := range s {
		for _, d := range p.descs() {
			if !once[d] {
				once[d] = true
				ch <- d
			}
		}
	}
}

// Collect implements prometheus.Collector. It only copies what is there.
func (s Set) Collect(ch chan<- prometheus.Metric) {
	Own(s).Collect(ch)
	for _, p := range s {
		now := p.o.Now()
		for _, snapshot := range (Unit{p}).Seen(now).Snapshots {
			snapshot.Collect(now, ch)
		}
	}
}

func (p *Poller) collectOwn(ch chan<- prometheus.Metric) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	success, last := 0.0, 0.0
	if !p.ended.IsZero() && p.lastErr == nil {
		success = 1
	}
	if !p.lastSuccess.IsZero() {
		last = float64(p.lastSuccess.UnixNano()) / 1e9
	}
	Gauge(ch, successDesc, success, p.name)
	Gauge(ch, lastSuccessDesc, last, p.name)
	Gauge(ch, intervalDesc, p.o.Interval.Seconds(), p.name)
	if !p.ended.IsZero() {
		Gauge(ch, durationDesc, p.ended.Sub(p.started).Seconds(), p.name)
	}
	for kind, n := range p.errors {
		Counter(ch, errorsDesc, n, p.name, kind)
	}
}
