package web_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/replay"
	"oncewatch/collectors/web"
)

// replayHandler answers as an exporter would whose group has lost three markers.
func replayHandler(t *testing.T, err error) http.Handler {
	t.Helper()
	h, e := web.Replay(func(ctx context.Context, q replay.Question) (*replay.Answer, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a question without a deadline")
		}
		if err != nil {
			return nil, err
		}
		a := &replay.Answer{Group: q.Group, To: "earliest", Topics: []replay.Topic{{Topic: "payments", Partitions: []replay.Partition{{LogEnd: 10, Committed: 10}}}}}
		a.Know(func(string, int32) (replay.Known, bool) { return replay.Known{}, true })
		return a, nil
	})
	if e != nil {
		t.Fatal(e)
	}
	return web.Handler(web.Config{}, http.NotFoundHandler(), nil, h)
}

func TestReplayOverHTTP(t *testing.T) {
	t.Parallel()
	input := &replay.InputError{Parameter: "group", Text: "Kafka keeps no offsets of a group <b>"}
	for _, c := range []struct {
		path     string
		err      error
		code     int
		kind     string
		contains []string
	}{
		{"/api/v1/replay?group=g", nil, 200, "application/json", []string{`"group": "g"`, `"read_again": 10`, `"safe_offset": 0`, `"verdict": "safe"`}},
		{"/api/v1/replay?group=g&format=text", nil, 200, "text/plain; charset=utf-8", []string{"From earliest nothing would be applied twice"}},
		{"/api/v1/replay", nil, 400, "application/json", []string{`{"error":"group: it is missing: /api/v1/replay?group=NAME\u0026to=earliest"}`}},
		{"/api/v1/replay?group=x", input, 400, "application/json", []string{`{"error":"group: Kafka keeps no offsets of a group \u003cb\u003e"}`}},
		{"/api/v1/replay?group=x&format=text", replay.ErrWaiting, 503, "text/plain; charset=utf-8", []string{"not everything has been read lately: see the sources on the page\n"}},
		{"/replay?group=g&topic=a+b&to=-36h", nil, 200, "text/html; charset=utf-8", []string{
			`<input name="to" value="-36h"`, `<input type="hidden" name="topic" value="a b">`, "From earliest nothing would be applied twice",
			"oncewatch replay --exporter=http://example.com --group=g --topic=&#39;a b&#39; --to=-36h --plan=plan.csv"}},
		{"/replay?group=<script>", input, 400, "text/html; charset=utf-8", []string{"It cannot be told", "a group &lt;b&gt;", "before a reset of &lt;script&gt;"}},
		{"/replay?group=g", errors.New("the broker is gone"), 503, "text/html; charset=utf-8", []string{"the broker is gone"}},
	} {
		rec := httptest.NewRecorder()
		replayHandler(t, c.err).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, c.path, nil))
		if rec.Code != c.code || rec.Header().Get("Content-Type") != c.kind || !strings.Contains(rec.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d, %q", c.path, rec.Code, rec.Header())
		}
		for _, want := range c.contains {
			if !strings.Contains(rec.Body.String(), want) {
				t.Errorf("%s lacks %s:\n%s", c.path, want, rec.Body)
			}
		}
	}
}

// At most two questions are put at a time; who gives up waiting is told so.
func TestReplayIsBounded(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	h, err := web.Replay(func(context.Context, replay.Question) (*replay.Answer, error) {
		asked <- struct{}{}
		<-release
		return nil, replay.ErrWaiting
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	for range 2 {
		go func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, replay.Path+"?group=g", nil))
			done <- struct{}{}
		}()
		<-asked
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, replay.Path+"?group=g", nil).WithContext(ctx))
	if rec.Code != http.StatusServiceUnavailable || !strings.Contains(rec.Body.String(), "too many questions at once") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	close(release)
	<-done
	<-done
}

// Each card tells how far back its group may be reset, and leads to the page
// for another target.
func TestPageTellsHowFarBackIsSafe(t *testing.T) {
	t.Parallel()
	page := render(t, func() web.View {
		return web.View{Now: time.Unix(1_800_000_000, 0), Lines: []checklist.Line{
			{Number: 1, Title: "a", Database: "db", Group: "g", Topic: "payments"}, {Number: 1, Title: "a", Database: "db", Group: "g", Topic: "refunds"},
			{Number: 1, Title: "a", Database: "plain", Group: "g"}},
			Resets: []web.Reset{
				{Database: "db", Group: "g", Topic: "payments", SafeBackTo: time.Date(2026, 11, 28, 4, 13, 0, 1, time.UTC)},
				{Database: "db", Group: "g", Topic: "refunds"},
				{Database: "plain", Group: "g", Topic: "payments", SafeBackTo: time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)},
			}}
	})
	for _, want := range []string{
		`Before a reset: safe back to <strong>2026-11-28 04:13:01 UTC</strong>. <a href="replay?database=db&amp;group=g&amp;topic=payments">`,
		`Before a reset: no time is known back to which it applies nothing twice. <a href="replay?database=db&amp;group=g&amp;topic=refunds">`,
		`Before a reset on payments: safe back to <strong>2026-11-29 00:00:00 UTC</strong>.`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}
