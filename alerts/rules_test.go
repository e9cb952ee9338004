package alerts

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// ruleFiles are the shipped rule files.
func ruleFiles(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.rules.yml")
	if err != nil || len(names) == 0 {
		t.Fatal("no rule files", err)
	}
	return names
}

// parse reads a rule file as Prometheus does and fails on whatever it refuses.
func parse(t *testing.T, text []byte) []rulefmt.RuleGroup {
	t.Helper()
	groups, errs := rulefmt.Parse(text, false, model.LegacyValidation, promql, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil {
		t.FailNow()
	}
	return groups.Groups
}

var promql = parser.NewParser(parser.Options{})

// rules are all shipped rules in order of evaluation.
func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	var all []rulefmt.Rule
	for _, name := range ruleFiles(t) {
		all = append(all, rulesOf(t, name)...)
	}
	return all
}

func rulesOf(t *testing.T, name string) (all []rulefmt.Rule) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range parse(t, text) {
		all = append(all, group.Rules...)
	}
	return all
}

// alerts are the shipped alerting rules.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	var alerts []rulefmt.Rule
	for _, r := range rules(t) {
		if r.Alert != "" {
			alerts = append(alerts, r)
		}
	}
	return alerts
}

// unitTest is what the tests about the tests need of a promtool test.
type unitTest struct {
	PromQL []struct {
		Expr    string `yaml:"expr"`
		Samples []struct {
			Labels string `yaml:"labels"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
	Alert []struct {
		Alertname string `yaml:"alertname"`
		Alerts    []any  `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
}

// unitTests are all scenarios of tests/.
func unitTests(t *testing.T) []unitTest {
	t.Helper()
	names, err := filepath.Glob("tests/*.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	var all []unitTest
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Tests []unitTest `yaml:"tests"`
		}
		if err := yaml.Unmarshal(text, &file); err != nil {
			t.Fatal(name, err)
		}
		all = append(all, file.Tests...)
	}
	return all
}
