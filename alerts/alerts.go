// Package alerts holds the alert rules of oncewatch. The rules are written as
// YAML in the *.rules.yml.tmpl files of this folder; the Go part only fills the
// [Thresholds] in. The *.rules.yml files beside them are the result with the
// defaults and load into Prometheus, Mimir and Thanos as they are.
package alerts

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

//go:generate go test -run TestFilesAreGenerated -update .

//go:embed *.rules.yml.tmpl annotations.tmpl
var templates embed.FS

// DefaultRunbookBase is the address the pages of runbooks/ are expected under
// until --runbook-base says where they are really served.
const DefaultRunbookBase = "https://oncewatch.example/runbooks"

// Formats are what [Options.Format] takes.
const (
	FormatPrometheus = "prometheus" // a rule file: Prometheus, Mimir, Thanos
	FormatOperator   = "operator"   // a PrometheusRule object for the Prometheus operator
)

// Options are the flags of `oncewatch rules`.
type Options struct {
	Format      string            // FormatPrometheus if empty
	Set         map[string]string // thresholds by key, over those of ValuesFile
	ValuesFile  string            // YAML file of thresholds; none if empty
	RunbookBase string            // address of the runbook pages; DefaultRunbookBase if empty
}

// Render writes every rule to w as one document. The error names each value
// that cannot be used; then nothing is written.
func Render(w io.Writer, o Options) error {
	t, err := Load(o.ValuesFile, o.Set)
	if err != nil {
		return err
	}
	files, err := Files(t, o.RunbookBase)
	if err != nil {
		return err
	}
	var doc bytes.Buffer
	indent := ""
	switch o.Format {
	case "", FormatPrometheus:
	case FormatOperator:
		indent = "  "
		doc.WriteString(operatorHead)
	default:
		return fmt.Errorf("unknown format %q: want %s or %s", o.Format, FormatPrometheus, FormatOperator)
	}
	doc.WriteString(indent + "groups:\n")
	for _, name := range sortedKeys(files) {
		_, groups, _ := strings.Cut(string(files[name]), "\ngroups:\n")
		for line := range strings.Lines(groups) {
			if line != "\n" {
				line = indent + line
			}
			doc.WriteString(line)
		}
	}
	_, err = w.Write(doc.Bytes())
	return err
}

const operatorHead = `apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: oncewatch
  labels:
    app.kubernetes.io/name: oncewatch
spec:
`

// Files returns the rule files of this folder by name, filled with t.
func Files(t Thresholds, runbookBase string) (map[string][]byte, error) {
	if runbookBase == "" {
		runbookBase = DefaultRunbookBase
	}
	if err := checkRunbookBase(runbookBase); err != nil {
		return nil, err
	}
	all, err := template.New("").Delims("<<", ">>").Option("missingkey=error").Funcs(template.FuncMap{
		"seconds": func(d model.Duration) string { return number(time.Duration(d).Seconds()) },
		"percent": func(share float64) string { return number(share*100) + " %" },
		"times":   func(d model.Duration, n int) model.Duration { return d * model.Duration(n) },
		"div":     func(d model.Duration, n int) model.Duration { return d / model.Duration(n) },
		"budget":  func(burn, objective float64) string { return number(burn * (1 - objective)) },
		"runbook": func(alert string) string { return strings.TrimSuffix(runbookBase, "/") + "/" + alert + ".md" },
		"num":     number,
		"le":      bound,
		"slo":     func(level, name string, objective float64, t Thresholds) slo { return slo{level, name, objective, t} },
	}).ParseFS(templates, "*.rules.yml.tmpl", "annotations.tmpl")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, tmpl := range all.Templates() {
		name, ok := strings.CutSuffix(tmpl.Name(), ".tmpl")
		if !ok || !strings.HasSuffix(name, ".rules.yml") {
			continue
		}
		var out bytes.Buffer
		if err := tmpl.Execute(&out, t); err != nil {
			return nil, err
		}
		files[name] = out.Bytes()
	}
	return files, nil
}

// checkRunbookBase keeps a base from breaking the YAML it is written into.
func checkRunbookBase(base string) error {
	var got string
	if err := yaml.Unmarshal([]byte(base), &got); err != nil || got != base || strings.ContainsAny(base, " \t\r\n") {
		return errors.New("runbook base " + strconv.Quote(base) + ": want an address without spaces, such as " + DefaultRunbookBase)
	}
	return nil
}

// number writes a float without the noise of its last bit (0.06, not 0.06000000000000005).
func number(f float64) string { return strconv.FormatFloat(f, 'g', 12, 64) }

// slo is what the burn rates of one objective are made from.
type slo struct {
	Level, Name string
	Objective   float64
	T           Thresholds
}

// bound matches the bucket of a classic histogram with that upper bound, which
// Prometheus 3 and OpenMetrics write as a float: le="1.0".
func bound(f float64) string {
	if le := number(f); f != math.Trunc(f) {
		return `le="` + le + `"`
	} else {
		return `le=~"` + le + `|` + le + `.0"`
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
