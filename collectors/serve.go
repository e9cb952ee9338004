package collectors

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/common/version"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/exposition"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/retention"
	"oncewatch/collectors/web"
)

// grace is how long requests under way may take after the signal to end; the
// contract gives the whole exit 5 seconds.
const grace = 3 * time.Second

// Started is what Serve tells once it listens.
type Started struct {
	// URL of the page on this machine.
	URL string
	// Polled waits until every collector has succeeded once.
	Polled func(context.Context) error
}

// Serve runs the exporter until the context ends. started may be nil.
func Serve(ctx context.Context, c Config, w web.Config, log *slog.Logger, started func(Started)) error {
	e, err := New(c, log, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	server, err := web.Listen(ctx, w, log)
	if err != nil {
		return err
	}
	metrics, err := e.metrics(log)
	if err != nil {
		return err
	}
	page, err := web.Page(func() web.View { return e.view(w) })
	if err != nil {
		return err
	}
	resets, err := web.Replay(e.Replay)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version.Version, "stores", len(e.stores), "brokers", c.Kafka.Brokers)

	ctx, cancel := context.WithCancel(ctx)
	polling := make(chan struct{})
	go func() {
		defer close(polling)
		e.Pollers.Run(ctx)
	}()
	if started != nil {
		started(Started{URL: server.URL(), Polled: e.Pollers.Wait})
	}
	err = server.Serve(ctx, web.Handler(w, metrics, page, resets), web.Probes(e.Pollers.Ready), grace)
	cancel()
	<-polling
	if e.keeping != nil {
		for _, p := range e.keeping.saveAll().problems {
			log.Error("cannot save", "entity", p.Entity, "err", p.Err)
		}
	}
	return err
}

// metrics serves the sources' metrics and those of the exporter itself.
func (e *Exporter) metrics(log *slog.Logger) (http.Handler, error) {
	own, err := registry(poll.Own(e.Pollers))
	if err != nil {
		return nil, err
	}
	return exposition.New(e.Pollers, own, log, e.now)
}

// Registry has the sources' metrics and those of the exporter itself.
func (e *Exporter) Registry() (*prometheus.Registry, error) { return registry(e.Pollers) }

func registry(pollers prometheus.Collector) (*prometheus.Registry, error) {
	reg := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		pollers,
		versioncollector.NewCollector("oncewatch"),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return reg, nil
}

func (e *Exporter) view(w web.Config) web.View {
	f := e.Facts()
	return web.View{
		Now: f.Now, Refresh: e.config.Poll.Interval, Version: version.Version,
		Metrics: strings.TrimPrefix(w.TelemetryPath, "/"), Dashboards: w.DashboardsURL,
		Sources: f.Sources, Lines: checklist.Evaluate(f), Notes: checklist.LeftOut(f),
		Resets: resetsOf(f.Retention),
	}
}

func resetsOf(seen *retention.Snapshot) (out []web.Reset) {
	if seen == nil {
		return nil
	}
	for _, one := range seen.Series {
		out = append(out, web.Reset{Database: one.Database, Group: one.Group, Topic: one.Topic, SafeBackTo: one.SafeRewind.Value})
	}
	return out
}
