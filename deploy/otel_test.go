package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/prometheus/otlptranslator"

	"oncewatch/deploy/testenv"
)

var documented = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+)")

// By the way of an OpenTelemetry Collector every metric comes back under its
// own name: by the library with which the Collector's exporters and Prometheus
// itself name metrics, with the strategies that the README gives. With the
// default one, which adds suffixes, it does so as long as no unit is told: the
// programs' pages tell none.
func TestNamesSurviveOpenTelemetry(t *testing.T) {
	t.Parallel()
	types := map[string]otlptranslator.MetricType{
		"gauge": otlptranslator.MetricTypeGauge, "counter": otlptranslator.MetricTypeMonotonicCounter, "histogram": otlptranslator.MetricTypeHistogram,
	}
	for _, file := range []string{"collectors/METRICS.md", "reference-consumer/METRICS.md"} {
		text, err := os.ReadFile(filepath.Join(testenv.Root(), file))
		if err != nil {
			t.Fatal(err)
		}
		metrics := documented.FindAllStringSubmatch(string(text), -1)
		if len(metrics) < 20 {
			t.Fatalf("%s: %d metrics are too few to be true", file, len(metrics))
		}
		for _, m := range metrics {
			kind, ok := types[m[2]]
			if !ok {
				t.Errorf("%s is a %s: what becomes of that?", m[1], m[2])
			}
			for _, strategy := range []otlptranslator.TranslationStrategyOption{
				otlptranslator.NoTranslation, otlptranslator.UnderscoreEscapingWithoutSuffixes, otlptranslator.UnderscoreEscapingWithSuffixes,
			} {
				namer := otlptranslator.NewMetricNamer("", strategy)
				if got, err := namer.Build(otlptranslator.Metric{Name: m[1], Type: kind}); err != nil || got != m[1] {
					t.Errorf("%s: %s becomes %s (%v)", strategy, m[1], got, err)
				}
			}
		}
	}
}
