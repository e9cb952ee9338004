package matrix

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"oncewatch/deploy/testenv"
)

// inhibition is one of Alertmanager's inhibit_rules.
type inhibition struct {
	source, target []matcher
	equal          []string
}

// matcher of one label: = or =~, which is all the shipped rules use.
type matcher struct {
	label string
	value *regexp.Regexp
}

// inhibitions are those of the shipped Alertmanager configuration.
func inhibitions(t *testing.T) []inhibition {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "deploy", "alertmanager", "alertmanager.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Inhibit []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string `yaml:"equal"`
		} `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	var all []inhibition
	for _, i := range config.Inhibit {
		all = append(all, inhibition{matchers(t, i.Source), matchers(t, i.Target), i.Equal})
	}
	if len(all) == 0 {
		t.Fatal("no inhibit_rules")
	}
	return all
}

func matchers(t *testing.T, texts []string) []matcher {
	t.Helper()
	var all []matcher
	for _, text := range texts {
		label, value, ok := strings.Cut(text, "=")
		if !ok || strings.HasSuffix(label, "!") {
			t.Fatalf("inhibit_rules: %s: only = and =~ are known here", text)
		}
		quoted := !strings.HasPrefix(value, "~")
		value = strings.Trim(strings.TrimPrefix(value, "~"), `"`)
		if quoted {
			value = regexp.QuoteMeta(value)
		}
		all = append(all, matcher{label, regexp.MustCompile("^(?:" + value + ")$")})
	}
	return all
}

func match(ms []matcher, labels map[string]string) bool {
	for _, m := range ms {
		if !m.value.MatchString(labels[m.label]) {
			return false
		}
	}
	return true
}

func (i inhibition) silences(source, target firing) bool {
	if !match(i.source, source.Labels) || !match(i.target, target.Labels) {
		return false
	}
	for _, label := range i.equal {
		if source.Labels[label] != target.Labels[label] {
			return false
		}
	}
	return true
}

// unnoticed is for how many evaluations an alert may fire without being sent:
// Alertmanager waits for a cause that fires a moment later (group_wait), and
// Prometheus evaluates groups one after the other.
const unnoticed = 2

// notified says whether an alert that fired was sent to anybody: not while
// one that explains it fired too.
func (b *bench) notified(f firing, all []firing) bool {
	loud := 0
	for t := f.From; !t.After(f.To); t = t.Add(minutes(1)) {
		silent := false
		for _, source := range all {
			for _, i := range b.inhibit {
				silent = silent || source.stack() == "" && source.at(t) && i.silences(source, f)
			}
		}
		if !silent {
			loud++
		}
	}
	return loud > unnoticed
}
