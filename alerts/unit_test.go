package alerts

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"

	"oncewatch/alerts/ruletest"
)

// Every alert, firing and silent, with its neighbours: tests/*.test.yml, on the
// newest PromQL.
func TestUnitTests(t *testing.T) {
	files, err := filepath.Glob("tests/*.test.yml")
	if err != nil || len(files) == 0 {
		t.Fatal("no unit tests", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			file, err := ruletest.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			rules := rulesFor(t, file)
			for _, test := range file.Tests {
				store := ruletest.NewStore()
				if err := test.Load(store); err != nil {
					t.Fatal(err)
				}
				wrong, err := test.Run(store, store, rules, time.Duration(file.EvaluationInterval))
				if err != nil {
					t.Fatal(test.Name, err)
				}
				for _, w := range wrong {
					t.Error(w)
				}
			}
		})
	}
}

// rulesFor are the rules of the files that a test file names.
func rulesFor(t *testing.T, file *ruletest.File) []rulefmt.Rule {
	t.Helper()
	var all []rulefmt.Rule
	for _, pattern := range file.RuleFiles {
		names, err := filepath.Glob(filepath.Join("tests", pattern))
		if err != nil || len(names) == 0 {
			t.Fatal("no rule files for", pattern, err)
		}
		for _, name := range names {
			all = append(all, rulesOf(t, name)...)
		}
	}
	return all
}
