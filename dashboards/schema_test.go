package dashboards

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncewatch/deploy/testenv"
)

// The types of a current Grafana accept the dashboards, every panel's options
// and field configuration: see preview/check.mjs.
func TestGrafanaTypes(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		testenv.Missing(t, "node", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	modules, err := grafanaTypes(ctx)
	if err != nil {
		testenv.Missing(t, "@grafana/schema", err)
	}
	out, err := exec.CommandContext(ctx, node, "preview/check.mjs", "--modules", modules).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), " 0 errors") || strings.HasPrefix(string(out), "0 parts") {
		t.Errorf("nothing was checked: %s", out)
	}
}

// grafanaTypes installs the two packages that check.mjs needs, in the versions
// that preview/package.json pins, where the next run finds them.
func grafanaTypes(ctx context.Context) (dir string, err error) {
	raw, err := os.ReadFile("preview/package.json")
	if err != nil {
		return "", err
	}
	var pinned struct{ Dependencies map[string]string }
	if err := json.Unmarshal(raw, &pinned); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	var packages []string
	for _, name := range []string{"@grafana/schema", "typescript"} {
		packages = append(packages, name+"@"+pinned.Dependencies[name])
	}
	dir = filepath.Join(cache, "oncewatch", strings.NewReplacer("/", "-", "@", "").Replace(strings.Join(packages, "+")))
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte("{}"), 0o644); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "npm", append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"}, packages...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install: %w: %s", err, out)
	}
	return dir, os.WriteFile(filepath.Join(dir, "complete"), nil, 0o644)
}
