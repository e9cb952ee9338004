package alerts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"oncewatch/deploy/testenv"
)

// promtool242 is the oldest Prometheus the rules must load on: Debian 12's package.
func promtool242(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		testenv.Missing(t, "promtool 2.42 (Debian package prometheus)", err)
	}
	version, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil || !bytes.Contains(version, []byte("version 2.42")) {
		testenv.Missing(t, "promtool 2.42 (Debian package prometheus)", fmt.Errorf("%s is another: %.60s", path, version))
	}
	return path
}

// run fails the test with promtool's output, cut to what a person reads.
func run(t *testing.T, promtool string, args ...string) {
	t.Helper()
	cmd := exec.Command(promtool, args...)
	cmd.Env = append(os.Environ(), "GOGC=800") // a third of its time is collecting garbage
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%.4000s", strings.Join(args, " "), err, out)
	}
}

// The same tests on the oldest Prometheus, whose own promtool also stands for
// that the evaluation in this process is the real one. It has no native histograms.
func TestUnitTestsOldest(t *testing.T) {
	promtool := promtool242(t)
	files, err := filepath.Glob("tests/*.test.yml")
	if err != nil || len(files) == 0 {
		t.Fatal("no unit tests", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_native.test.yml") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			run(t, promtool, "test", "rules", file)
		})
	}
}

// The rules load as they are shipped, and with other thresholds, on the oldest
// Prometheus and on the newest.
func TestRulesLoad(t *testing.T) {
	all, err := filepath.Glob("*.rules.yml")
	if err != nil || len(all) == 0 {
		t.Fatal("no rule files", err)
	}
	dir := t.TempDir()
	other := filepath.Join(dir, "other.yml")
	var doc bytes.Buffer
	set := map[string]string{"retention_window": "60d", "prune_cycle": "7d", "latency_p99": "0.5", "duplicate_window": "1h", "latency_objective": "0.995", "lag_growth_window": "45m"}
	if err := Render(&doc, Options{Set: set, RunbookBase: "https://wiki.example/oncewatch/"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, doc.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	parse(t, doc.Bytes())
	promtool := promtool242(t)
	run(t, promtool, append([]string{"check", "rules", "--lint=all", "--lint-fatal"}, all...)...)
	run(t, promtool, "check", "rules", "--lint=all", "--lint-fatal", other)
}

// Every alert has a case in which it fires and one in which it is silent, in a
// test that would fail otherwise.
func TestEveryAlertFiresAndStaysSilent(t *testing.T) {
	all := alerts(t)
	fires := map[string]bool{}
	for _, test := range unitTests(t) {
		for _, check := range test.PromQL {
			for _, sample := range check.Samples {
				if m := alertname.FindStringSubmatch(sample.Labels); m != nil {
					fires[m[1]] = true
				}
			}
		}
	}
	for _, alert := range all {
		if !fires[alert.Alert] {
			t.Errorf("%s: no scenario in which it fires among its neighbours", alert.Alert)
		}
	}
	t.Logf("alerts with firing and silent cases: %d of %d", len(fires), len(all))
}

var alertname = regexp.MustCompile(`alertname="(\w+)"`)
