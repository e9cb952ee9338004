package conform

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v3"

	"oncewatch/alerts"
	"oncewatch/collectors/config"
)

// Mapping says under which names and labels a team exports the metrics, by the
// name that the rules read.
type Mapping struct {
	Metrics map[string]Theirs `yaml:"metrics"`
}

// Theirs is one metric as a team exports it.
type Theirs struct {
	Name string `yaml:"name"` // empty: the same
	// Labels are their names of the labels, by ours.
	Labels map[string]string `yaml:"labels"`
	// Set are labels that they do not have, with the value these get.
	Set map[string]string `yaml:"set"`
	// Values are their values of a label, by our label and value.
	Values map[string]map[string]oneOrMore `yaml:"values"`
}

type oneOrMore []string

// UnmarshalYAML implements yaml.Unmarshaler.
func (o *oneOrMore) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*o = oneOrMore{n.Value}
		return nil
	}
	return n.Decode((*[]string)(o))
}

// LoadMapping reads a file of --metrics.map. The error names every entry that
// cannot be used.
func LoadMapping(path string) (*Mapping, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--metrics.map: %w", err)
	}
	var m Mapping
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("--metrics.map: %s: want metrics, and below each of our names name, labels, set or values: %w", path, err)
	}
	if len(m.Metrics) == 0 {
		return nil, fmt.Errorf("--metrics.map: %s maps nothing: want metrics, and below it our names", path)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("--metrics.map: %s: %w", path, err)
	}
	return &m, nil
}

func (m *Mapping) validate() error {
	known := map[string]alerts.Metric{}
	for _, metrics := range alerts.Metrics() {
		maps.Copy(known, metrics)
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	names := map[string]string{}
	for _, ours := range slices.Sorted(maps.Keys(m.Metrics)) {
		t := m.Metrics[ours]
		metric, ok := known[ours]
		if !ok {
			bad("%s is no metric that is read%s", ours, config.Nearest(ours, slices.Sorted(maps.Keys(known))))
			continue
		}
		theirs := t.name(ours)
		if !model.LegacyValidation.IsValidMetricName(theirs) {
			bad("%s: %q is no name of a metric", ours, theirs)
		}
		if other, ok := names[theirs]; ok {
			bad("%s is mapped to both %s and %s", theirs, other, ours)
		}
		names[theirs] = ours
		if u, want := unitOf(theirs), unitOf(ours); u != "" && u != want {
			bad("%s: %s is in another unit, and relabelling changes names, not values", ours, theirs)
		}
		if metric.Type == "counter" && !strings.HasSuffix(theirs, "_total") && strings.HasSuffix(theirs, "_count") {
			bad("%s: %s is a part of a histogram or summary: map a counter", ours, theirs)
		}
		for _, l := range slices.Sorted(maps.Keys(t.Labels)) {
			switch their := t.Labels[l]; {
			case !slices.Contains(metric.Labels, l):
				bad("%s: labels: %s is none of its labels: %s", ours, l, list(metric.Labels))
			case !model.LegacyValidation.IsValidLabelName(their) || strings.HasPrefix(their, "__") || their == "le":
				bad("%s: labels: %s: %q is no name of a label that can be mapped", ours, l, their)
			case their != l && slices.Contains(metric.Labels, their) && t.Labels[their] != "":
				bad("%s: labels: %s is mapped itself: rules in order cannot swap labels", ours, their)
			}
			if _, both := t.Set[l]; both {
				bad("%s: %s stands in labels and in set: want one", ours, l)
			}
		}
		for _, l := range slices.Sorted(maps.Keys(t.Set)) {
			if !slices.Contains(metric.Labels, l) || t.Set[l] == "" {
				bad("%s: set: want a value for one of its labels: %s", ours, list(metric.Labels))
			}
		}
		for _, l := range slices.Sorted(maps.Keys(t.Values)) {
			if !slices.Contains(metric.Labels, l) {
				bad("%s: values: %s is none of its labels: %s", ours, l, list(metric.Labels))
			}
			for _, v := range slices.Sorted(maps.Keys(t.Values[l])) {
				for _, their := range t.Values[l][v] {
					if other, mapped := t.Values[l][their]; mapped && !slices.Contains(other, their) {
						bad("%s: values: %s: %q is one of ours too: rules in order cannot swap values", ours, l, their)
					}
				}
				if of := metric.Values[l]; of != nil && !slices.Contains(of, v) {
					bad("%s: values: %s: %q is none of its values: %s", ours, l, v, list(of))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func (t Theirs) name(ours string) string {
	if t.Name == "" {
		return ours
	}
	return t.Name
}

// rule is one entry of metric_relabel_configs.
type rule struct {
	SourceLabels []string `yaml:"source_labels,flow"`
	Regex        string   `yaml:"regex"`
	TargetLabel  string   `yaml:"target_label"`
	Replacement  string   `yaml:"replacement"`
}

// YAML is the mapping as Prometheus does it at a scrape: what stands in a
// scrape_config.
func (m *Mapping) YAML() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# Generated by oncewatch rules --relabel: part of a scrape_config.\n")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err := e.Encode(map[string][]rule{"metric_relabel_configs": m.rules()})
	return b.Bytes(), errors.Join(err, e.Close())
}

func (m *Mapping) rules() []rule {
	var rules []rule
	histogram := map[string]bool{}
	for _, metrics := range alerts.Metrics() {
		for name, metric := range metrics {
			histogram[name] = metric.Type == "histogram"
		}
	}
	for _, ours := range slices.Sorted(maps.Keys(m.Metrics)) {
		t := m.Metrics[ours]
		name := regexp.QuoteMeta(t.name(ours))
		all := name
		if histogram[ours] {
			all += "(?:_bucket|_sum|_count)?"
		}
		// put writes a label where the name, and perhaps another label, match.
		put := func(label, source, pattern, value string) {
			r := rule{SourceLabels: []string{model.MetricNameLabel}, Regex: all, TargetLabel: label, Replacement: value}
			if source != "" {
				r.SourceLabels, r.Regex = append(r.SourceLabels, source), all+";"+pattern
			}
			rules = append(rules, r)
		}
		for _, l := range slices.Sorted(maps.Keys(t.Labels)) {
			if their := t.Labels[l]; their != l {
				put(l, their, "(.+)", "$1")
			}
		}
		for _, their := range slices.Compact(slices.Sorted(maps.Values(t.Labels))) {
			if _, ours := t.Labels[their]; !ours {
				put(their, "", "", "") // an empty label is none
			}
		}
		for _, l := range slices.Sorted(maps.Keys(t.Set)) {
			put(l, "", "", strings.ReplaceAll(t.Set[l], "$", "$$"))
		}
		for _, l := range slices.Sorted(maps.Keys(t.Values)) {
			for _, v := range slices.Sorted(maps.Keys(t.Values[l])) {
				var quoted []string
				for _, their := range t.Values[l][v] {
					quoted = append(quoted, regexp.QuoteMeta(their))
				}
				put(l, l, "(?:"+strings.Join(quoted, "|")+")", strings.ReplaceAll(v, "$", "$$"))
			}
		}
		if t.name(ours) == ours {
			continue
		}
		r := rule{SourceLabels: []string{model.MetricNameLabel}, Regex: name, TargetLabel: model.MetricNameLabel, Replacement: ours}
		if histogram[ours] {
			r.Regex, r.Replacement = name+"(_bucket|_sum|_count)?", ours+"${1}"
		}
		rules = append(rules, r)
	}
	return rules
}

// Relabelling is what YAML says, as Prometheus reads it.
func (m *Mapping) Relabelling() ([]*relabel.Config, error) {
	text, err := m.YAML()
	if err != nil {
		return nil, err
	}
	var c struct {
		Configs []*relabel.Config `yaml:"metric_relabel_configs"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("read the relabelling as Prometheus does: %w", err)
	}
	for _, r := range c.Configs {
		if err := r.Validate(model.UTF8Validation); err != nil {
			return nil, fmt.Errorf("read the relabelling as Prometheus does: %w", err)
		}
	}
	return c.Configs, nil
}
