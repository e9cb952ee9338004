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

// The types of Grafana 11, 12 and 13 accept the dashboards, every panel's options
// and field configuration: see preview/check.mjs.
func TestGrafanaTypes(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		testenv.Missing(t, "node", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	asking := t.TempDir()
	if err := Write(asking, Options{AskDataSource: true}); err != nil {
		t.Fatal(err)
	}
	pinned, err := pinnedPackages()
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"11.0.7", "12.0.2", pinned["@grafana/schema"]} {
		modules, err := grafanaTypes(ctx, version, pinned["typescript"])
		if err != nil {
			testenv.Missing(t, "@grafana/schema "+version, err)
		}
		kinds := []string{"."}
		if version == pinned["@grafana/schema"] {
			kinds = append(kinds, asking)
		}
		for _, boards := range kinds {
			out, err := exec.CommandContext(ctx, node, "preview/check.mjs", "--modules", modules, "--boards", boards).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", version, err, out)
			}
			if !strings.Contains(string(out), "against "+version+", 0 errors") || strings.HasPrefix(string(out), "0 parts") {
				t.Errorf("%s: nothing was checked: %s", version, out)
			}
		}
	}
}

// pinnedPackages are the versions of preview/package.json.
func pinnedPackages() (map[string]string, error) {
	raw, err := os.ReadFile("preview/package.json")
	if err != nil {
		return nil, err
	}
	var pinned struct{ Dependencies map[string]string }
	err = json.Unmarshal(raw, &pinned)
	return pinned.Dependencies, err
}

// grafanaTypes installs the two packages that check.mjs needs where the next run
// finds them.
func grafanaTypes(ctx context.Context, schema, typescript string) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	packages := []string{"@grafana/schema@" + schema, "typescript@" + typescript}
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
