package alerts

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the *.rules.yml files")

// The checked-in rule files are what the templates give with the defaults.
func TestFilesAreGenerated(t *testing.T) {
	files, err := Files(Defaults(), "")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		for name, text := range files {
			if err := os.WriteFile(name, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	onDisk, err := filepath.Glob("*.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if len(onDisk) != len(files) {
		t.Errorf("%d rule files, %d templates", len(onDisk), len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its template gives: run go generate ./alerts", name)
		}
	}
}

func render(t *testing.T, o Options) string {
	t.Helper()
	var out bytes.Buffer
	if err := Render(&out, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Both formats hold the same groups, which load.
func TestFormats(t *testing.T) {
	plain := render(t, Options{})
	want := parse(t, []byte(plain))
	var object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   struct {
			Name string `yaml:"name"`
		} `yaml:"metadata"`
		Spec yaml.Node `yaml:"spec"`
	}
	if err := yaml.Unmarshal([]byte(render(t, Options{Format: FormatOperator})), &object); err != nil {
		t.Fatal(err)
	}
	if object.APIVersion != "monitoring.coreos.com/v1" || object.Kind != "PrometheusRule" || object.Metadata.Name == "" {
		t.Errorf("not a PrometheusRule: %+v", object)
	}
	spec, err := yaml.Marshal(&object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	got := parse(t, spec)
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%d groups for the operator, %d for Prometheus", len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i].Rules, want[i].Rules) || got[i].Name != want[i].Name {
			t.Errorf("group %s differs", want[i].Name)
		}
	}
	n := 0
	for _, group := range want {
		n += len(group.Rules)
	}
	if n != len(rules(t)) {
		t.Errorf("%d rules in one document, %d in the files", n, len(rules(t)))
	}
}

// A threshold that is set reaches the expression and the text; --set wins over the
// file; the runbooks' base over the default.
func TestSet(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yml")
	if err := os.WriteFile(values, []byte("retention_ratio_warning: 1.5 # more margin\nlatency_p99: 0.5\nduplicate_window: 1h\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := render(t, Options{ValuesFile: values, Set: map[string]string{"latency_p99": "0.1", "mass_deleted_min": "1000000"}, RunbookBase: "https://wiki.example/x/"})
	for _, want := range []string{"retention:ratio < 1.5\n", "less than 1.5 times", "> 0.1\n", `le="0.1"`, "> 1000000\n", "[1h]))", "[20m]", "https://wiki.example/x/EventsLost.md"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the rules", want)
		}
	}
	for _, not := range []string{"1.1", `le="0.2"`, "1e+06", DefaultRunbookBase} {
		if strings.Contains(out, not) {
			t.Errorf("%q is still in the rules", not)
		}
	}
}

// Every threshold changes something, and is described.
func TestEveryValueIsUsed(t *testing.T) {
	defaults := render(t, Options{})
	for _, v := range Values() {
		if v.Key == "" || v.Default == "" || v.Unit == "" || len(v.Doc) < 20 {
			t.Errorf("%+v is not described", v)
		}
		other := map[string]string{"duration": "17m"}[v.Unit]
		if other == "" {
			other = "0.97"
		}
		switch v.Key {
		case "scrape_interval": // only validated
			continue
		case "bridge":
			other = "7m"
		case "duplicate_ratio_min":
			other = "0.001"
		case "lag_restart_from":
			other = "33m"
		case "lag_restart_until":
			other = "3h"
		case "retention_window":
			other = "20d"
		case "expiring_soon_share":
			other = "0.4"
		case "latency_objective":
			other = "0.95"
		case "retention_ratio_warning":
			other = "1.3"
		case "burn_fast", "burn_slow":
			other = "7"
		}
		if render(t, Options{Set: map[string]string{v.Key: other}}) == defaults {
			t.Errorf("%s=%s changes nothing", v.Key, other)
		}
	}
}

// What cannot be used is an error that names it, where it stands, and what to
// write; nothing is written then.
func TestErrors(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "values.yml")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	tests := []struct {
		name string
		o    Options
		want []string
	}{
		{"unknown key", Options{Set: map[string]string{"retention_ratio": "1.2"}}, []string{`unknown threshold "retention_ratio"`, "retention_ratio_warning"}},
		{"unknown key without a neighbour", Options{Set: map[string]string{"x": "1"}}, []string{"known are", "latency_p99"}},
		{"not a number", Options{Set: map[string]string{"latency_p99": "200ms"}}, []string{"latency_p99=200ms", "number"}},
		{"NaN", Options{Set: map[string]string{"latency_p99": "NaN"}}, []string{"latency_p99=NaN"}},
		{"not a duration", Options{Set: map[string]string{"bridge": "10"}}, []string{"bridge=10", "30m"}},
		{"zero", Options{Set: map[string]string{"bridge": "0s"}}, []string{"bridge=0s", "above zero"}},
		{"a bridge that bridges nothing", Options{Set: map[string]string{"bridge": "20s"}}, []string{"bridge=20s", "scrape_interval"}},
		{"a restart's window too short", Options{Set: map[string]string{"lag_restart_from": "117m"}}, []string{"lag_restart_until=2h", "lag_for"}},
		{"a target that is forgotten", Options{Set: map[string]string{"exporter_memory": "10m"}}, []string{"exporter_memory=10m", "exporter_down_for"}},
		{"an exporter that is forgotten", Options{Set: map[string]string{"exporter_recent": "5m"}}, []string{"exporter_recent=5m", "exporter_down_for"}},
		{"shares that cannot be", Options{Set: map[string]string{"duplicate_ratio_max": "1", "growth_share": "1.5"}}, []string{"duplicate_ratio_max=1", "growth_share=1.5"}},
		{"a second document", Options{ValuesFile: file("latency_p99: 0.1\n---\nlatency_p99: 0.5\n")}, []string{":2: a second document"}},
		{"two at once", Options{Set: map[string]string{"bridge": "x", "nope": "1"}}, []string{"bridge=x", "nope"}},
		{"window below four scrapes", Options{Set: map[string]string{"scrape_interval": "2m"}}, []string{"latency_window=5m", "four times"}},
		{"slack below bridge", Options{Set: map[string]string{"bridge": "20m"}}, []string{"retention_slack", "bridge"}},
		{"thresholds in the wrong order", Options{Set: map[string]string{"retention_ratio_critical": "1.2"}}, []string{"retention_ratio_critical=1.2"}},
		{"objective that cannot burn", Options{Set: map[string]string{"latency_objective": "0.9"}}, []string{"burn_fast=14.4"}},
		{"format", Options{Format: "yaml"}, []string{`"yaml"`, "prometheus", "operator"}},
		{"runbook base", Options{RunbookBase: "https://x y"}, []string{"runbook base"}},
		{"no file", Options{ValuesFile: "/nonexistent.yml"}, []string{"/nonexistent.yml"}},
		{"unknown key in a file", Options{ValuesFile: file("# mine\nlatency_p99: 0.5\nlatencyp99: 1\n")}, []string{"values.yml:3:", `"latencyp99"`}},
		{"twice in a file", Options{ValuesFile: file("bridge: 5m\nbridge: 6m\n")}, []string{"values.yml:2:", "line 1"}},
		{"list in a file", Options{ValuesFile: file("- bridge\n")}, []string{"values.yml:1:", "key: value"}},
		{"nested in a file", Options{ValuesFile: file("latency:\n  p99: 1\n")}, []string{"values.yml:1:", "one value"}},
		{"not YAML", Options{ValuesFile: file("a: [\n")}, []string{"values.yml", "yaml"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			err := Render(&out, test.o)
			if err == nil {
				t.Fatal("no error")
			}
			if out.Len() > 0 {
				t.Error("wrote something all the same")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
	if _, err := Load(file(""), nil); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}
