package collectors_test

import (
	"flag"
	"fmt"
	"log/slog"
	"testing"

	"oncewatch/collectors"
	"oncewatch/deploy/metricdoc"
	"oncewatch/deploy/testenv"
)

var update = flag.Bool("update", false, "write METRICS.md")

// METRICS.md is what the exporter registers, with everything switched on.
func TestMetricsReference(t *testing.T) {
	dsn := testenv.Postgres(t)
	markerTable(t, dsn, "processed_events")
	c := defaults(t)
	c.Stores = stores(t, fmt.Sprintf("stores: [{dsn: %q, effect.table: processed_events, retention: 8d, row-limit: 10}]", dsn))
	c.State.Path = t.TempDir()
	c.Consumer.MetricsURL = []string{"http://127.0.0.1:1/metrics"}
	e, err := collectors.New(c, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.Once(t.Context())
	registry, err := e.Registry()
	if err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	r := metricdoc.NewRecorder()
	if err := r.Record(registry); err != nil {
		t.Fatal(err)
	}
	r.Seen(families)
	metricdoc.Check(t, "METRICS.md", `# Metrics of the exporter

Written from what the exporter registers by `+"`go test ./collectors -run TestMetricsReference -update`"+`. A series whose poll has not succeeded for three intervals is absent too: nothing is frozen. The Go runtime's and the process's own metrics (`+"`go_…`, `process_…`, `promhttp_…`"+`) are not listed. With `+"`--kafka.granularity=topic`"+` there is no label `+"`partition`"+`.

`+r.Table(), *update)
}
