package web_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncewatch/alerts"
	"oncewatch/collectors/checklist"
	"oncewatch/collectors/web"
	"oncewatch/deploy/testenv"
)

var pictures = flag.String("pictures", "", "folder to draw the page into")

func get(t testing.TB, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec
}

// Only the page's own script may run: the policy names its hash.
func TestPolicyLetsOneScriptRun(t *testing.T) {
	page, err := web.Page(view(nil))
	if err != nil {
		t.Fatal(err)
	}
	rec := get(t, page, "/")
	_, rest, _ := strings.Cut(rec.Body.String(), "<script>")
	script, _, ok := strings.Cut(rest, "</script>")
	sum := sha256.Sum256([]byte(script))
	if want := "script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !ok || !strings.Contains(rec.Header().Get("Content-Security-Policy"), want) {
		t.Errorf("policy %q, want %s", rec.Header().Get("Content-Security-Policy"), want)
	}
}

// A fault while a page is written costs that page, and says so.
func TestAFaultCostsItsPageOnly(t *testing.T) {
	faulty := true
	page, err := web.Page(func() web.View {
		if faulty {
			panic("a fault")
		}
		return web.View{}
	})
	if err != nil {
		t.Fatal(err)
	}
	if rec := get(t, page, "/"); rec.Code != http.StatusInternalServerError || !strings.Contains(rec.Body.String(), "The page could not be written: a fault") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	faulty = false
	if rec := get(t, page, "/"); rec.Code != http.StatusOK {
		t.Errorf("the next page: %d", rec.Code)
	}
}

// The runbook of a line's alert is served by the exporter itself, and every
// line that has one links to it.
func TestRunbooks(t *testing.T) {
	h := web.Handler(web.Config{}, http.NotFoundHandler(), nil, nil)
	for _, name := range []string{"EventsLost", "EventsLost.md"} {
		if rec := get(t, h, "/runbooks/"+name); rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), "## Mitigation") {
			t.Errorf("%s: %d", name, rec.Code)
		}
	}
	for _, name := range []string{"Nothing", "..%2f..%2fmain.go", "%2e%2e%2falerts.go"} {
		if rec := get(t, h, "/runbooks/"+name); rec.Code != http.StatusNotFound {
			t.Errorf("%s: %d", name, rec.Code)
		}
	}
	pages := 0
	for _, rule := range []string{"markers", "duplicate-ratio", "row-count", "retention-ratio", "handle-latency", "commit-lag", "replay-exposure", "retention-margin", "effect-divergence", "committed-offsets", "records-lost", "dead-letters", "lag", "open-transaction"} {
		seen := map[string]bool{}
		for _, v := range []checklist.Verdict{checklist.Unknown, checklist.Warning, checklist.Violated} {
			name := checklist.Line{Rule: rule, Verdict: v}.Runbook()
			if _, ok := alerts.Runbook(name); !ok {
				t.Errorf("%s: there is no runbook %q", rule, name)
			}
			seen[name] = true
		}
		pages += len(seen)
	}
	if pages < 20 {
		t.Errorf("only %d runbooks belong to lines", pages)
	}
	if page := render(t, view([]checklist.Line{{Rule: "lag", Group: "g", Verdict: checklist.Violated}})); !strings.Contains(page, `href="runbooks/ConsumerRecordsExpiring"`) {
		t.Error("a violated line does not link to its runbook")
	}
}

func groups(n int) []checklist.Line {
	var lines []checklist.Line
	for i := range n {
		for j := range 13 {
			l := checklist.Line{
				Rule: fmt.Sprint("rule-", j), Number: max(0, 7-j), Title: "Do markers outlive the records on the broker?", Database: "db", Group: fmt.Sprintf("group-%04d", i), Topic: "payments",
				Verdict: checklist.OK, Value: "8d 2h", Threshold: "at least 1.1 × 7d", Meaning: "The oldest marker is older than anything the broker still has.",
				Evidence: []string{"topic payments: retention.ms 7d, a record can really stay 14d (segments are deleted whole)", "the pruner is configured to keep 8d"},
			}
			if i == n-1 {
				l.Verdict = checklist.Violated
			}
			lines = append(lines, l)
		}
	}
	return lines
}

// A thousand groups: the worst are written out, the rest is a line each that
// links to its own page.
func TestThousandGroups(t *testing.T) {
	page, err := web.Page(view(groups(1000)))
	if err != nil {
		t.Fatal(err)
	}
	best := time.Hour
	var rec *httptest.ResponseRecorder
	for range 5 {
		began := time.Now()
		rec = get(t, page, "/")
		best = min(best, time.Since(began))
	}
	body := rec.Body.String()
	t.Logf("1,000 groups: %s, %d kB", best, len(body)/1000)
	if len(body) > 2_000_000 || best > time.Second { // 200 ms on a quiet machine; this one may be busy
		t.Errorf("%d bytes in %s", len(body), best)
	}
	first := strings.Index(body, "<h2>group-0999")
	if first < 0 || first > strings.Index(body, "<h2>group-0000") || !strings.Contains(body, "975 more, none of them worse") {
		t.Error("the worst group is not first, or the rest is not folded")
	}
	for _, query := range []string{"database=db&group=group-0500&topic=payments", "group=group-0500", "group=group-0500&topic=payments"} {
		alone := get(t, page, "/?"+query).Body.String()
		if strings.Count(alone, `<header class="card">`) != 1 || !strings.Contains(alone, "<h2>group-0500") {
			t.Errorf("?%s is not the page of one group", query)
		}
	}
}

// In a browser: what a person opens by a click is open again after the page has
// reloaded itself, what was closed again is not, and no other script runs.
func TestOpenStaysOpen(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		testenv.Missing(t, "chromium", err)
	}
	lines := []checklist.Line{
		{Rule: "lag", Title: "How far behind?", Group: "g", Topic: "t", Verdict: checklist.Warning, Evidence: []string{"seen"}},
		{Rule: "records-lost", Title: "Lost?", Group: "g", Topic: "t", Verdict: checklist.Warning, Evidence: []string{"<script>top.document.title = 'ran'</script>"}},
	}
	page, err := web.Page(view(lines))
	if err != nil {
		t.Fatal(err)
	}
	// The page stands in a frame; who looks at it clicks, waits until the page
	// has seen that, and lets it reload.
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/person" {
			page.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<title>person</title><iframe src="/"></iframe><p id="seen"></p><script>
			const frame = document.querySelector("iframe"), ids = ["evidence-%s", "evidence-%s"];
			const state = () => ids.map(id => frame.contentDocument.getElementById(id).open).join();
			const toggled = (id, then) => {
				frame.contentDocument.getElementById(id).addEventListener("toggle", then, {once: true});
				frame.contentDocument.querySelector("#" + id + " summary").click();
			};
			const steps = [
				() => toggled(ids[0], () => toggled(ids[1], () => frame.contentWindow.location.reload())),
				() => { seen.textContent += state() + ";"; toggled(ids[1], () => frame.contentWindow.location.reload()); },
				() => { seen.textContent += state(); },
			];
			frame.onload = () => steps.shift()();
		</script>`, lines[0].ID(), lines[1].ID())
	})
	s := httptest.NewServer(h)
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--user-data-dir="+t.TempDir(), "--dump-dom", s.URL+"/person").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), `<p id="seen">true,true;true,false</p>`) || !strings.Contains(string(out), "<title>person</title>") {
		t.Errorf("what was opened does not stay so, or a foreign script ran:\n%s", out)
	}
}

// With -pictures the page is drawn as a person sees it.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("no -pictures")
	}
	broken := append(groups(3), checklist.Line{Rule: "log-fields", Number: 6, Title: "Does every log line of an event carry event_id and consumer_group?", Group: "group-0001", Topic: "payments", Database: "db", Outside: true, Meaning: "Cannot be seen from here: logs are not read."})
	for i := range broken {
		if broken[i].Verdict == checklist.Violated {
			broken[i].Rule, broken[i].Remedy = "retention-ratio", "Keep markers for at least 7d 17h; until then, do not reset the group's offsets."
		}
	}
	for name, lines := range map[string][]checklist.Line{"healthy": groups(2)[:13], "broken": broken} {
		page, err := web.Page(view(lines))
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(page)
		defer s.Close()
		for mode, flags := range map[string][]string{"light": nil, "dark": {"--blink-settings=preferredColorScheme=0", "--force-dark-mode"}} {
			args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000", "--user-data-dir=" + t.TempDir(),
				"--screenshot=" + filepath.Join(*pictures, name+"-"+mode+".png")}, append(flags, s.URL)...)
			if out, err := exec.Command("chromium", args...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(*pictures, "healthy-light.png")); err != nil {
		t.Error(err)
	}
}
