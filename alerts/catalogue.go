package alerts

import (
	_ "embed"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

//go:embed metrics.yml
var catalogue []byte

// The programs whose metrics the rules read, as [Metrics] names them.
const (
	ProgramExporter = "oncewatch"
	ProgramConsumer = "reference-consumer"
)

// Metric is what the rules may rely on of a metric.
type Metric struct {
	Type   string   // counter, gauge or histogram
	Labels []string // without those that come with a scrape
	// Required says that lines of the checklist rest on it; others add to them.
	Required bool
	// Part is the part that exports it, where not every consumer has one.
	Part string
	// Values are all the values of a label, where these are few and fixed. Each
	// is there from the start.
	Values map[string][]string
	// MayLack are labels that some exporters rightly do not set.
	MayLack []string `yaml:"may_lack"`
}

// Lacks says whether a series may be without one of the labels.
func (m Metric) Lacks(label string) bool { return slices.Contains(m.MayLack, label) }

// Metrics are the metrics of the programs, by program and name.
func Metrics() map[string]map[string]Metric {
	var programs map[string]map[string]Metric
	if err := yaml.Unmarshal(catalogue, &programs); err != nil {
		panic(fmt.Sprintf("alerts: metrics.yml: %v", err)) // it is part of the program
	}
	return programs
}
