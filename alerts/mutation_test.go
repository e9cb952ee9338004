package alerts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"go.yaml.in/yaml/v3"
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
// means that a case is missing there.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("a promtool run for each of some two hundred mutants")
	}
	text, err := os.ReadFile("mutants.yml")
	if err != nil {
		t.Fatal(err)
	}
	var mutants []mutant
	if err := yaml.Unmarshal(text, &mutants); err != nil {
		t.Fatal(err)
	}
	promtool := promtool3(t)
	var killed atomic.Int64
	t.Run("group", func(t *testing.T) {
		for i, m := range mutants {
			t.Run(fmt.Sprintf("%03d_%s", i+1, m.Rule), func(t *testing.T) {
				t.Parallel()
				file, text, err := m.apply()
				if err != nil {
					t.Fatal(err)
				}
				parse(t, text) // a mutant that does not load is killed by nothing we wrote
				dir := t.TempDir()
				if err := os.Mkdir(filepath.Join(dir, "tests"), 0o755); err != nil {
					t.Fatal(err)
				}
				test := filepath.Join("tests", m.Test+".test.yml")
				for _, name := range append(ruleFiles(t), test) {
					content, err := os.ReadFile(name)
					if err != nil {
						t.Fatal(err)
					}
					if name == file {
						content = text
					}
					if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				out, err := exec.Command(promtool, "test", "rules", filepath.Join(dir, test)).CombinedOutput()
				var exit *exec.ExitError
				switch {
				case err == nil:
					t.Errorf("survives %s: %q → %q in %s", m.Test, m.Replace, m.With, m.Rule)
				case errors.As(err, &exit) && strings.Contains(string(out), "FAILED"):
					killed.Add(1)
				default:
					t.Errorf("promtool: %v\n%.1000s", err, out)
				}
			})
		}
	})
	t.Logf("mutants killed: %d of %d", killed.Load(), len(mutants))
}

var ruleStart = regexp.MustCompile(`(?m)^      - (?:alert|record): (\S+)$`)

// apply returns the rule file the mutant changes and its changed text.
func (m mutant) apply() (file string, text []byte, err error) {
	names, err := filepath.Glob("*.rules.yml")
	if err != nil {
		return "", nil, err
	}
	for _, name := range names {
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
				if next < 0 {
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
