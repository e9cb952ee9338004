package alerts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// mutant is one line of mutants.yml.
type mutant struct {
	Rule    string
	Replace string
	With    string
	Nth     int
	Test    string

	id     string          // suffix of its rules: _m007
	rules  []rulefmt.Rule  // the mutated rule and all that depend on it, renamed
	alerts map[string]bool // alerts among them, by their original name
	file   string
}

// Every mutant of mutants.yml is killed by the unit test it names. A survivor
// means that a case is missing there.
//
// A promtool run for each would take minutes. So the mutants of one test run side
// by side: the mutated rule and the rules that depend on it are added to the
// shipped ones under names of their own, and every check of the test is made once
// more for each mutant, with its alerts in place of the shipped ones.
func TestMutants(t *testing.T) {
	text, err := os.ReadFile("mutants.yml")
	if err != nil {
		t.Fatal(err)
	}
	var mutants []*mutant
	if err := yaml.Unmarshal(text, &mutants); err != nil {
		t.Fatal(err)
	}
	byTest := map[string][]*mutant{}
	for i, m := range mutants {
		m.id = fmt.Sprintf("_m%03d", i+1)
		if err := m.build(t); err != nil {
			t.Errorf("mutant %d: %v", i+1, err)
			continue
		}
		byTest[m.Test] = append(byTest[m.Test], m)
	}
	promtool := promtool3(t)
	var killed atomic.Int64
	t.Run("tests", func(t *testing.T) {
		for _, test := range sortedKeys(byTest) {
			t.Run(test, func(t *testing.T) {
				t.Parallel()
				for _, m := range survivors(t, promtool, test, byTest[test]) {
					t.Errorf("survives: in %s, %q → %q", m.Rule, m.Replace, m.With)
					killed.Add(-1)
				}
				killed.Add(int64(len(byTest[test])))
			})
		}
	})
	t.Logf("mutants killed: %d of %d", killed.Load(), len(mutants))
}

var ruleStart = regexp.MustCompile(`(?m)^      - (?:alert|record): (\S+)$`)

// apply returns the rule file the mutant changes and its changed text.
func (m *mutant) apply(t *testing.T) (file string, text []byte, err error) {
	for _, name := range ruleFiles(t) {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", nil, err
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
			rule := string(content[at[0]:end])
			pos, from := -1, 0
			for range max(m.Nth, 1) {
				next := strings.Index(rule[from:], m.Replace)
				if next < 0 || m.Replace == "" {
					return "", nil, fmt.Errorf("%s does not contain %q (nth %d)", m.Rule, m.Replace, m.Nth)
				}
				pos = from + next
				from = pos + len(m.Replace)
			}
			rule = rule[:pos] + m.With + rule[pos+len(m.Replace):]
			return name, []byte(string(content[:at[0]]) + rule + string(content[end:])), nil
		}
	}
	return "", nil, fmt.Errorf("no rule named %s", m.Rule)
}

// build fills in the rules of the mutant. It must load: what Prometheus refuses
// is killed by no test of ours.
func (m *mutant) build(t *testing.T) error {
	file, text, err := m.apply(t)
	if err != nil {
		return err
	}
	m.file, m.alerts = file, map[string]bool{}
	changed := map[string]bool{}
	for _, group := range parse(t, text) {
		for _, r := range group.Rules {
			expr, depends := rename(t, r.Expr, changed, m.id)
			name := r.Record + r.Alert
			if name != m.Rule && !depends {
				continue
			}
			r.Expr = strings.TrimSpace(expr) // yaml writes a leading space so that it cannot read it again
			if r.Record != "" {
				changed[r.Record] = true
				r.Record += m.id
			} else {
				m.alerts[r.Alert] = true
				r.Alert += m.id
			}
			m.rules = append(m.rules, r)
		}
	}
	if len(m.alerts) == 0 {
		return fmt.Errorf("no alert depends on %s", m.Rule)
	}
	return nil
}

// rename gives the series recorded by changed rules their name in the mutant.
func rename(t *testing.T, expr string, changed map[string]bool, suffix string) (renamed string, depends bool) {
	t.Helper()
	return rewrite(t, expr, func(s *parser.VectorSelector) string {
		if !changed[s.Name] {
			return ""
		}
		depends = true
		return s.Name + suffix + strings.TrimPrefix(selector(s), s.Name)
	}), depends
}

// selector is s without its offset, as rewrite replaces it.
func selector(s *parser.VectorSelector) string {
	plain := *s
	plain.OriginalOffset, plain.Offset = 0, 0
	return plain.String()
}

// rewrite replaces the selectors for which f returns a text.
func rewrite(t *testing.T, expr string, f func(*parser.VectorSelector) string) string {
	t.Helper()
	parsed, err := promql.ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	type edit struct {
		from, to int
		text     string
	}
	var edits []edit
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			if text := f(s); text != "" {
				from := int(s.PosRange.Start)
				// Up to the end of the matchers; an offset stays where it is.
				to := from + len(s.Name)
				if to < len(expr) && expr[to] == '{' {
					to += strings.IndexByte(expr[to:], '}') + 1
				}
				edits = append(edits, edit{from, to, text})
			}
		}
		return nil
	})
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		expr = expr[:e.from] + e.text + expr[e.to:]
	}
	return expr
}

// survivors runs the test with all its mutants and returns those it does not kill.
func survivors(t *testing.T, promtool, test string, mutants []*mutant) []*mutant {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "tests"), 0o755); err != nil {
		t.Fatal(err)
	}
	needed := neededFor(t, filepath.Join("tests", test+".test.yml"))
	alive := map[string]*mutant{}
	for _, m := range mutants {
		alive[m.id] = m
		m.only(needed)
	}
	// A mutant whose rules cannot even be evaluated ends the run: it is killed, and
	// the others run without it.
	for {
		for _, name := range ruleFiles(t) {
			writeRules(t, dir, name, needed, alive)
		}
		file := filepath.Join("tests", test+".test.yml")
		writeTest(t, file, filepath.Join(dir, file), alive)
		cmd := exec.Command(promtool, "test", "rules", filepath.Join(dir, file))
		cmd.Env = append(os.Environ(), "GOGC=800") // a third of its time is collecting garbage
		out, err := cmd.CombinedOutput()
		failed, broken := map[string]bool{}, map[string]bool{}
		for line := range strings.Lines(string(out)) {
			ids := idPattern.FindAllString(line, 1)
			switch {
			case strings.Contains(line, "rule: ") && strings.Contains(line, "err: ") && len(ids) == 1:
				broken[ids[0]] = true
			case (strings.Contains(line, "expr: ") || strings.Contains(line, "alertname: ")) && len(ids) == 1:
				failed[ids[0]] = true
			case strings.Contains(line, "expr: ") || strings.Contains(line, "alertname: "):
				t.Errorf("fails without a mutant: %.500s", line)
			}
		}
		if err != nil && len(failed)+len(broken) == 0 {
			t.Fatalf("promtool: %v\n%.2000s", err, out)
		}
		if len(broken) > 0 {
			for id := range broken {
				delete(alive, id)
			}
			continue
		}
		for id := range failed {
			delete(alive, id)
		}
		var left []*mutant
		for _, id := range sortedKeys(alive) {
			left = append(left, alive[id])
		}
		return left
	}
}

var idPattern = regexp.MustCompile(`_m\d{3}`)

// neededFor are the alerts a test names and every rule they depend on: what the
// mutants of that test are evaluated with. The whole rules run in TestUnitTests.
func neededFor(t *testing.T, test string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(test)
	if err != nil {
		t.Fatal(err)
	}
	needed := map[string]bool{}
	for _, r := range slices.Backward(rules(t)) { // what a rule reads stands before it
		if r.Alert != "" && !strings.Contains(string(text), r.Alert) || r.Record != "" && !needed[r.Record] {
			continue
		}
		needed[r.Record+r.Alert] = true
		rewrite(t, r.Expr, func(s *parser.VectorSelector) string { needed[s.Name] = true; return "" })
	}
	return needed
}

// only keeps the rules of the mutant that are needed.
func (m *mutant) only(needed map[string]bool) {
	m.rules = slices.DeleteFunc(m.rules, func(r rulefmt.Rule) bool {
		return !needed[strings.TrimSuffix(r.Record+r.Alert, m.id)]
	})
	for name := range m.alerts {
		if !needed[name] {
			delete(m.alerts, name)
		}
	}
}

// writeRules writes the needed rules of a shipped file and those of its mutants.
func writeRules(t *testing.T, dir, name string, needed map[string]bool, alive map[string]*mutant) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	groups := parse(t, text)
	for i := range groups {
		groups[i].Rules = slices.DeleteFunc(groups[i].Rules, func(r rulefmt.Rule) bool { return !needed[r.Record+r.Alert] })
	}
	last := &groups[len(groups)-1]
	for _, id := range sortedKeys(alive) {
		if alive[id].file == name {
			last.Rules = append(last.Rules, alive[id].rules...)
		}
	}
	text, err = yaml.Marshal(rulefmt.RuleGroups{Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeTest copies a promtool test and repeats each of its checks for each mutant.
func writeTest(t *testing.T, from, to string, alive map[string]*mutant) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, item := range file["tests"].([]any) {
		test := item.(map[string]any)
		for _, kind := range []string{"promql_expr_test", "alert_rule_test"} {
			checks, _ := test[kind].([]any)
			var all []any
			for _, item := range checks {
				check := item.(map[string]any)
				if kind == "promql_expr_test" && !strings.Contains(check["expr"].(string), "ALERTS") {
					continue // a check of a record, which the mutants do not replace
				}
				for _, id := range append([]string{""}, sortedKeys(alive)...) {
					m := alive[id]
					mutated := map[string]any{}
					for k, v := range check {
						mutated[k] = v
					}
					switch {
					case kind == "promql_expr_test":
						mutated["expr"] = m.inPlace(t, check["expr"].(string))
					case m != nil && m.alerts[check["alertname"].(string)]:
						mutated["alertname"] = check["alertname"].(string) + id
					case m != nil:
						continue
					}
					all = append(all, mutated)
				}
			}
			if all != nil {
				test[kind] = all
			}
		}
	}
	text, err = yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// inPlace is a check's expression with the mutant's alerts in place of those they
// replace; for no mutant, without those of all of them.
func (m *mutant) inPlace(t *testing.T, expr string) string {
	t.Helper()
	if m == nil {
		return rewrite(t, expr, func(s *parser.VectorSelector) string {
			return matchers(s, "", `alertname!~".*_m[0-9]{3}"`)
		})
	}
	names := strings.Join(sortedKeys(m.alerts), "|")
	return rewrite(t, expr, func(s *parser.VectorSelector) string {
		return fmt.Sprintf(`(%s or label_replace(%s, "alertname", "$1", "alertname", "(.*)%s"))`,
			matchers(s, "", `alertname!~".*_m[0-9]{3}|`+names+`"`),
			matchers(s, m.id, `alertname=~"(`+names+`)`+m.id+`"`), m.id)
	})
}

// matchers is the selector s with one more matcher, and with suffix on the names
// of alerts in it.
func matchers(s *parser.VectorSelector, suffix, more string) string {
	list := []string{more}
	for _, m := range s.LabelMatchers {
		switch {
		case m.Name == "__name__":
		case m.Name == "alertname":
			list = append(list, fmt.Sprintf("%s%s%q", m.Name, m.Type, m.Value+suffix))
		default:
			list = append(list, m.String())
		}
	}
	return s.Name + "{" + strings.Join(list, ",") + "}"
}
