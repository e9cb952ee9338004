package alerts

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"oncewatch/alerts/ruletest"
)

// mutant is one line of mutants.yml.
type mutant struct {
	Rule    string
	Replace string
	With    string
	Nth     int
	Test    string
}

// Every mutant of mutants.yml is killed by the unit test it names. A survivor
// means that a case is missing there. For each mutant only the changed rule and
// those that depend on it are evaluated, over what the others recorded.
func TestMutants(t *testing.T) {
	text, err := os.ReadFile("mutants.yml")
	if err != nil {
		t.Fatal(err)
	}
	var mutants []mutant
	if err := yaml.Unmarshal(text, &mutants); err != nil {
		t.Fatal(err)
	}
	byTest := map[string][]mutant{}
	for _, m := range mutants {
		byTest[m.Test] = append(byTest[m.Test], m)
	}
	var killed atomic.Int64
	t.Run("tests", func(t *testing.T) {
		for _, test := range sortedKeys(byTest) {
			t.Run(test, func(t *testing.T) {
				t.Parallel()
				bases := scenarios(t, filepath.Join("tests", test+".test.yml"))
				for _, m := range byTest[test] {
					switch changed, err := m.apply(t); {
					case err != nil:
						t.Error(err)
					case m.survives(t, bases, changed):
						t.Errorf("survives: in %s, %q (nth %d) → %q", m.Rule, m.Replace, m.Nth, m.With)
					default:
						killed.Add(1)
					}
				}
			})
		}
	})
	t.Logf("mutants killed: %d of %d", killed.Load(), len(mutants))
}

// scenario is one of a test file, with what the shipped rules make of it.
type scenario struct {
	*ruletest.Test
	interval time.Duration
	store    *ruletest.Store
	rules    []rulefmt.Rule
}

func scenarios(t *testing.T, name string) []scenario {
	t.Helper()
	file, err := ruletest.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []scenario
	for _, test := range file.Tests {
		s := scenario{test, time.Duration(file.EvaluationInterval), ruletest.NewStore(), rulesFor(t, file)}
		if err := s.Load(s.store); err != nil {
			t.Fatal(err)
		}
		wrong, err := s.Run(s.store, s.store, s.rules, s.interval)
		if err != nil || len(wrong) > 0 {
			t.Fatal("fails without a mutant:", test.Name, err, wrong)
		}
		all = append(all, s)
	}
	return all
}

// survives says whether no scenario notices the mutant.
func (m mutant) survives(t *testing.T, bases []scenario, changed rulefmt.Rule) bool {
	t.Helper()
	for _, base := range bases {
		affected, records, alerts := dependents(t, base.rules, changed)
		if len(affected) == 0 {
			t.Fatalf("%s: is in no rule file of the test %s", m.Rule, m.Test)
		}
		test := *base.Test
		test.Alerts = slices.DeleteFunc(slices.Clone(test.Alerts), func(c ruletest.AlertCheck) bool { return !alerts[c.Name] })
		own := ruletest.NewStore()
		wrong, err := test.Run(ruletest.Over(base.store, own, records, alerts), own, affected, base.interval)
		if err != nil || len(wrong) > 0 {
			return false
		}
	}
	return true
}

// dependents are the changed rule and those that read it, directly or not, in
// order of evaluation.
func dependents(t *testing.T, rules []rulefmt.Rule, changed rulefmt.Rule) (affected []rulefmt.Rule, records, alerts map[string]bool) {
	t.Helper()
	records, alerts = map[string]bool{}, map[string]bool{}
	for grown := true; grown; {
		grown = false
		affected = nil
		for _, r := range rules {
			is := r.Record+r.Alert == changed.Record+changed.Alert
			if is {
				r = changed
			}
			if !is && !reads(t, r, records) {
				continue
			}
			affected = append(affected, r)
			if r.Record != "" && !records[r.Record] {
				records[r.Record], grown = true, true
			}
			if r.Alert != "" {
				alerts[r.Alert] = true
			}
		}
	}
	return affected, records, alerts
}

// reads says whether the rule reads one of the records.
func reads(t *testing.T, r rulefmt.Rule, records map[string]bool) (yes bool) {
	t.Helper()
	expr, err := promql.ParseExpr(r.Expr)
	if err != nil {
		t.Fatalf("%s%s: %v", r.Record, r.Alert, err)
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok && records[s.Name] {
			yes = true
		}
		return nil
	})
	return yes
}

var ruleStart = regexp.MustCompile(`(?m)^      - (?:alert|record): (\S+)$`)

// apply returns the changed rule. It must load: what Prometheus refuses is
// killed by no test of ours.
func (m mutant) apply(t *testing.T) (rulefmt.Rule, error) {
	t.Helper()
	for _, name := range ruleFiles(t) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		starts := ruleStart.FindAllSubmatchIndex(content, -1)
		for i, at := range starts {
			if string(content[at[2]:at[3]]) != m.Rule {
				continue
			}
			end := len(content)
			if i+1 < len(starts) {
				end = starts[i+1][0]
			}
			text, err := m.mutate(string(content[at[0]:end]))
			if err != nil {
				return rulefmt.Rule{}, err
			}
			for _, group := range parse(t, []byte(string(content[:at[0]])+text+string(content[end:]))) {
				for _, r := range group.Rules {
					if r.Record+r.Alert == m.Rule {
						return r, nil
					}
				}
			}
		}
	}
	return rulefmt.Rule{}, fmt.Errorf("no rule named %s", m.Rule)
}

func (m mutant) mutate(rule string) (string, error) {
	pos, from := -1, 0
	for range max(m.Nth, 1) {
		next := strings.Index(rule[from:], m.Replace)
		if next < 0 || m.Replace == "" {
			return "", fmt.Errorf("%s does not contain %q (nth %d)", m.Rule, m.Replace, m.Nth)
		}
		pos = from + next
		from = pos + len(m.Replace)
	}
	return rule[:pos] + m.With + rule[pos+len(m.Replace):], nil
}
