package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/exposition"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func view(lines []checklist.Line, sources ...poll.Status) func() web.View {
	return func() web.View {
		return web.View{Now: time.Unix(1_800_000_000, 0), Refresh: 15 * time.Second, Version: "1.2.3", Lines: lines, Sources: sources}
	}
}

func render(t testing.TB, v func() web.View) string {
	t.Helper()
	page, err := web.Page(v)
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	page.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	if csp := rec.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("Content-Security-Policy %q", csp)
	}
	return rec.Body.String()
}

func TestPageTellsTheWorstFirst(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	page := render(t, view([]checklist.Line{
		{Rule: "lag", Title: "How far behind?", Group: "fine", Topic: "a", Verdict: checklist.OK, Value: "0 records"},
		{Rule: "retention-ratio", Number: 3, Title: "Do markers outlive?", Group: "bad", Topic: "b", Verdict: checklist.Violated,
			Value: "0.43", Threshold: "at least 1.1", Meaning: "A reset applies events again.", Remedy: "Keep markers for 8d.", Evidence: []string{"topic b: 7d"}},
		{Rule: "log-fields", Number: 6, Title: "Logs?", Group: "fine", Topic: "a", Verdict: checklist.Unknown, Outside: true},
		{Rule: "unique-key", Title: "Unique?", Database: "db", Verdict: checklist.OK},
	},
		poll.Status{ID: poll.ID{Subject: "markers"}, LastSuccess: now.Add(-5 * time.Second)},
		poll.Status{ID: poll.ID{Subject: "topics"}, LastSuccess: now.Add(-time.Hour), Stale: true, Err: errors.New("no broker answered")},
		poll.Status{ID: poll.ID{Subject: "groups"}, LastSuccess: now, Problems: []poll.Problem{{Kind: "denied", Entity: "group secret"}}},
		poll.Status{ID: poll.ID{Subject: "table"}, Stale: true},
	))
	for _, want := range []string{
		"1 line is violated, 2 sources cannot be read.",
		"topics: cannot be read: no broker answered", "(last read 1h ago)",
		"group secret (denied)", "table: not read yet", "markers: read 5s ago",
		"→ Keep markers for 8d.", "topic b: 7d", `content="15"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Index(page, "<h2>bad") > strings.Index(page, "<h2>fine") {
		t.Error("the violated group does not come first")
	}
	if strings.Count(page, `<header class="card"><span class="badge ok">`) != 1 {
		t.Error("a line that nobody can see decides the verdict")
	}
}

func TestPageWithNothingToJudge(t *testing.T) {
	if page := render(t, view(nil)); !strings.Contains(page, "Nothing to judge yet") {
		t.Error("an empty page does not say why")
	}
}

// Names of topics, groups and ids come from outside.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "a\nb", "\xff\xfe", `'";--`, strings.Repeat("x", 10_000), "{{.Now}}",
	} {
		page := render(t, view([]checklist.Line{{Title: name, Group: name, Topic: name, Database: name, Value: name, Meaning: name, Remedy: name, Evidence: []string{name}}},
			poll.Status{ID: poll.ID{Subject: poll.Subject(name)}, Err: errors.New(name)}))
		if strings.Count(page, "<script") != 1 || strings.Contains(page, "<script>alert") || strings.Contains(page, "<img") {
			t.Errorf("%.40q is not escaped", name)
		}
	}
}

var desc = prometheus.NewDesc("some_metric", "Help.", []string{"topic"}, nil)

// fixed is a source of so many series.
type fixed int

func (fixed) Describe(ch chan<- *prometheus.Desc)           { ch <- desc }
func (n fixed) Poll(context.Context) (poll.Snapshot, error) { return n, nil }
func (fixed) Problems() []poll.Problem                      { return nil }
func (n fixed) Collect(_ time.Time, ch chan<- prometheus.Metric) {
	for i := range int(n) {
		poll.Gauge(ch, desc, float64(i), fmt.Sprint("topic-", i))
	}
}

// handler serves a source's metrics without a page.
func handler(t testing.TB, s poll.Source) http.Handler {
	t.Helper()
	p := poll.New(s, poll.Options{ID: poll.ID{Subject: "some"}, Interval: time.Minute, Timeout: time.Minute})
	if err := p.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	metrics, err := exposition.New(poll.Set{p}, prometheus.NewRegistry(), quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	return web.Handler(web.Config{TelemetryPath: "/metrics"}, metrics, nil, nil)
}

func start(t *testing.T, c web.Config, h http.Handler) (url string, end func() error) {
	t.Helper()
	c.ListenAddress = []string{"127.0.0.1:0"}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := web.Listen(ctx, c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, h, web.Probes(func() bool { return true }), time.Second) }()
	return s.URL(), func() error { cancel(); return <-done }
}

// A scraper that opens connections and reads nothing must hold neither other
// scrapes nor the exit; 200 at once are all answered.
func TestManyAndSlowScrapers(t *testing.T) {
	h := handler(t, fixed(100))
	url, end := start(t, web.Config{}, h)
	for range 20 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		w := bufio.NewWriter(conn)
		_, _ = w.WriteString("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") // and never reads
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 0}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	failed := make(chan string, 200)
	for range 200 {
		wg.Go(func() {
			resp, err := client.Get(url + "/metrics")
			if err != nil {
				failed <- err.Error()
				return
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "topic-99") {
				failed <- fmt.Sprint(resp.Status, " ", err)
			}
		})
	}
	wg.Wait()
	close(failed)
	for f := range failed {
		t.Error(f)
	}
	began := time.Now()
	if err := end(); err != nil || time.Since(began) > 3*time.Second {
		t.Errorf("end: %v after %v", err, time.Since(began))
	}
}

// What is no address of Grafana is refused before anything is served.
func TestDashboardsURL(t *testing.T) {
	for address, want := range map[string]bool{
		"": true, "http://127.0.0.1:3000": true, "https://grafana.example.com/g/": true,
		"grafana.example.com": false, "javascript:alert(1)": false, "https://": false, "https://g.example.com/?orgId=1": false,
	} {
		s, err := web.Listen(t.Context(), web.Config{ListenAddress: []string{"127.0.0.1:0"}, DashboardsURL: address}, quiet)
		if (err == nil) != want {
			t.Errorf("%q: %v", address, err)
		}
		if s != nil {
			serving, end := context.WithCancel(t.Context())
			end()
			_ = s.Serve(serving, http.NotFoundHandler(), http.NotFoundHandler(), time.Second)
		}
	}
}

func TestBasicAuth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	hash, err := bcrypt.GenerateFromPassword([]byte("s3cret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("basic_auth_users:\n  prometheus: "+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := handler(t, fixed(1))
	url, end := start(t, web.Config{ConfigFile: file}, h)
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
	defer http.DefaultClient.CloseIdleConnections()
	for password, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, "s3cret": http.StatusOK} {
		req, err := http.NewRequest(http.MethodGet, url+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if password != "" {
			req.SetBasicAuth("prometheus", password)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("password %q: %s, want %d", password, resp.Status, want)
		}
	}
	for path, want := range map[string]int{"/-/healthy": http.StatusOK, "/-/ready": http.StatusOK, "/-/../metrics": http.StatusNotFound, "/-/metrics": http.StatusNotFound} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want && resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a password: %s, want %d", path, resp.Status, want)
		}
		if resp.StatusCode == http.StatusUnauthorized && want == http.StatusOK {
			t.Errorf("%s wants a password", path)
		}
	}
}

// Profiles are served only where they were asked for.
func TestPprofIsOffByDefault(t *testing.T) {
	for enabled, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
		h := web.Handler(web.Config{EnablePprof: enabled}, http.NotFoundHandler(), nil, nil)
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap"} {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
			if rec.Code != want {
				t.Errorf("%v, %s: %d, want %d", enabled, path, rec.Code, want)
			}
		}
	}
}
