package testenv

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
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
// configuration, and waits until it is ready.
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
	cmd := Tool(t, "prometheus", append([]string{
		"--config.file=" + filepath.Join(s.Dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(s.Dir, "data"),
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
