package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"oncewatch/deploy/testenv"
)

// systemd's own judgement of the units: no complaint, and little exposure.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		testenv.Missing(t, "systemd-analyze", err)
	}
	units, err := filepath.Glob(filepath.Join(testenv.Root(), "deploy/systemd/*.service"))
	if err != nil || len(units) != 3 {
		t.Fatalf("%v %v", units, err)
	}
	bin := filepath.Dir(program(t, "oncewatch"))
	for _, unit := range units {
		raw, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		var execStart []string
		for line := range strings.Lines(string(raw)) {
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
				execStart = strings.Fields(command)
			}
		}
		if len(execStart) < 2 {
			t.Fatalf("%s starts %v", unit, execStart)
		}
		knowsCommand(t, filepath.Base(execStart[0]), execStart[1:])
		// ProtectSystem=strict leaves the exporter one folder to write: its state's.
		if filepath.Base(unit) == "oncewatch.service" &&
			(!strings.Contains(string(raw), "\nStateDirectory=oncewatch\n") || !slices.Contains(execStart, "--state.path=%S/oncewatch")) {
			t.Errorf("%s keeps its state where it may not write, or not at all", unit)
		}

		// The programs are not installed here: verify their copies.
		copied := filepath.Join(t.TempDir(), filepath.Base(unit))
		if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(raw), "ExecStart=/usr/bin/", "ExecStart="+bin+"/")), 0o644); err != nil {
			t.Fatal(err)
		}
		// verify exits with 0 for a misspelt key, and complains on standard error.
		verify := exec.Command(analyze, "verify", "--man=no", copied)
		var stderr bytes.Buffer
		verify.Stderr = &stderr
		if err := verify.Run(); err != nil || stderr.Len() > 0 {
			t.Errorf("%s: %v\n%s", unit, err, stderr.String())
		}
		// 1.5 of 10; a unit without hardening has 9.6.
		if out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold=15", copied).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
	knowsConfig(t, filepath.Join(testenv.Root(), "deploy/systemd/oncewatch.yml"))
}
