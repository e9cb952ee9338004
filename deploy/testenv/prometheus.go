package testenv

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// PrometheusServer is a real one. It ends with the test.
type PrometheusServer struct {
	URL string
	// Dir holds its files; what its configuration reads by pattern may be
	// added while it runs.
	Dir string
}

// Prometheus starts one with the files, of which prometheus.yml is its
// configuration, and waits until it is ready. Its data are in the folder data,
// unless a flag says where they are already.
func Prometheus(t testing.TB, files map[string]string, flags ...string) PrometheusServer {
	t.Helper()
	s := PrometheusServer{Dir: t.TempDir()}
	for name, text := range files {
		path := filepath.Join(s.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	address := FreeAddress(t)
	const path = "--storage.tsdb.path="
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, path) }) {
		flags = append(slices.Clone(flags), path+filepath.Join(s.Dir, "data"))
	}
	cmd := Tool(t, "prometheus", append([]string{"--config.file=" + filepath.Join(s.Dir, "prometheus.yml"),
		"--web.listen-address=" + address, "--log.level=warn"}, flags...)...)
	endWithParent(cmd)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("prometheus: %s", log.Bytes())
		}
	})
	s.URL = "http://" + address
	Eventually(t, "Prometheus is ready", func() bool {
		resp, err := http.Get(s.URL + "/-/ready")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return s
}
