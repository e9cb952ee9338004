package consumer_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"oncewatch/deploy/testenv"

	"oncewatch/collectors/consumer"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var key = consumer.Key{Group: "g", Topic: "t"}

// program is a consumer that shows its metrics.
type program struct {
	start                                    float64
	processed, duplicate, elsewhere, retried float64
	dead, lost, lag                          float64
	upTo100, upTo200, upTo400, all           float64 // events by handling time
	drop                                     []string
	replace                                  map[string]string
}

func (p *program) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	page := fmt.Sprintf(`# HELP events_handled_total Events.
# TYPE events_handled_total counter
events_handled_total{consumer_group="g",topic="t",outcome="processed"} %g
events_handled_total{consumer_group="g",topic="t",outcome="duplicate"} %g
# TYPE events_duplicate_origin_total counter
events_duplicate_origin_total{consumer_group="g",topic="t",origin="other_offset"} %g
events_duplicate_origin_total{consumer_group="g",topic="t",origin="same_offset"} 0
# TYPE event_handle_duration_seconds histogram
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.1"} %g
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.2"} %g
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="0.4"} %g
event_handle_duration_seconds_bucket{consumer_group="g",topic="t",le="+Inf"} %g
event_handle_duration_seconds_sum{consumer_group="g",topic="t"} 7
event_handle_duration_seconds_count{consumer_group="g",topic="t"} %g
# TYPE consumer_offset_commit_lag_seconds gauge
consumer_offset_commit_lag_seconds{consumer_group="g",topic="t",partition="0"} 0.5
consumer_offset_commit_lag_seconds{consumer_group="g",topic="t",partition="1"} %g
# TYPE event_retries_total counter
event_retries_total{consumer_group="g",topic="t"} %g
# TYPE events_dead_lettered_total counter
events_dead_lettered_total{consumer_group="g",topic="t",reason="data"} %g
# TYPE events_lost_total counter
events_lost_total{consumer_group="g",topic="t",partition="0"} %g
# TYPE consumer_start_time_seconds gauge
consumer_start_time_seconds{consumer_group="g"} %f
`, p.processed, p.duplicate, p.elsewhere, p.upTo100, p.upTo200, p.upTo400, p.all, p.all, p.lag, p.retried, p.dead, p.lost, p.start)
	for line := range strings.Lines(page) {
		keep := true
		for _, d := range p.drop {
			keep = keep && !strings.Contains(line, d)
		}
		for from, to := range p.replace {
			line = strings.ReplaceAll(line, from, to)
		}
		if keep {
			_, _ = w.Write([]byte(line))
		}
	}
}

// watcher reads programs at times that are set.
type watcher struct {
	t      *testing.T
	source *consumer.Source
	now    time.Time
}

func watch(t *testing.T, programs ...http.Handler) *watcher {
	t.Helper()
	w := &watcher{t: t, now: time.Unix(1_800_000_000, 0)}
	var c consumer.Config
	for _, p := range programs {
		s := httptest.NewServer(p)
		t.Cleanup(s.Close)
		c.MetricsURL = append(c.MetricsURL, s.URL+"/metrics")
	}
	var err error
	if w.source, err = consumer.New(c, func() time.Time { return w.now }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.source.Close)
	return w
}

func (w *watcher) read() *consumer.Snapshot {
	w.t.Helper()
	got, err := w.source.Poll(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return got.(*consumer.Snapshot)
}

func (w *watcher) wait(d time.Duration) { w.now = w.now.Add(d) }

func ago(d time.Duration) float64 { return 1_800_000_000 - d.Seconds() }

// A consumer that has been slow and has redelivered for an hour is judged by
// that hour, not by the moment between two looks, in which nothing happened.
func TestTotalsSinceTheStartUntilThereIsAWindow(t *testing.T) {
	p := &program{start: ago(time.Hour), processed: 100_000, duplicate: 50_000, upTo100: 1000, upTo200: 10_500, upTo400: 150_000, all: 150_000}
	w := watch(t, p)
	for range 2 {
		v := w.read().Values[key]
		if v.Processed.Value != 100_000 || v.Duplicates.Value != 50_000 || v.P99.Value < 0.39 || v.Timed.Value != 150_000 {
			t.Errorf("%+v", v)
		}
		w.wait(75 * time.Millisecond)
		if !strings.Contains(v.Processed.From, "since the consumer started 1h ago") {
			t.Errorf("from %q", v.Processed.From)
		}
	}
	w.wait(29 * time.Minute)
	p.processed += 500
	if v := w.read().Values[key]; v.Processed.Value != 100_500 {
		t.Errorf("after 29 minutes: %+v", v.Processed)
	}
	w.wait(time.Minute)
	p.processed += 700
	if v := w.read().Values[key]; v.Processed.Value != 1200 || v.Duplicates.Value != 0 || !strings.Contains(v.Processed.From, "in the last 30m") || v.P99.OK() {
		t.Errorf("after half an hour: %+v", v)
	}
}

// Of several consumers one restarts: the differences of each come first.
func TestRestartOfOneDoesNotHideInTheGrowthOfAnother(t *testing.T) {
	a := &program{start: ago(time.Hour), processed: 150_000, duplicate: 150}
	b := &program{start: ago(time.Hour), processed: 150_010, duplicate: 150}
	w := watch(t, a, b)
	w.read()
	for range 30 {
		w.wait(time.Minute)
		a.start, a.processed, a.duplicate = ago(0), 0, 0
		b.processed, b.duplicate = b.processed+100_000/30., b.duplicate+25
		w.read()
	}
	v := w.read().Values[key]
	if math.Abs(v.Processed.Value-100_000) > 1 || math.Abs(v.Duplicates.Value-750) > 0.1 {
		t.Errorf("%+v", v)
	}
}

// A reset is seen by any bucket that went back, without a start time too; what
// was counted before it is not lost.
func TestResetSeenByABucket(t *testing.T) {
	p := &program{drop: []string{"start_time"}, processed: 10, all: 10, upTo400: 10}
	w := watch(t, p)
	w.read()
	w.wait(15 * time.Minute)
	p.processed, p.all, p.upTo400 = 40, 40, 40
	w.read()
	w.wait(15 * time.Minute)
	p.processed, p.all, p.upTo400 = 50, 5, 5 // it has handled more since than before
	v := w.read().Values[key]
	if v.Processed.Value != 80 || v.Timed.Value != 35 {
		t.Errorf("%+v", v)
	}
}

// What is not exported, or under another name, is not known, and named.
func TestMissingIsNamed(t *testing.T) {
	get := map[string]func(consumer.Values) consumer.Figure{
		"processed":  func(v consumer.Values) consumer.Figure { return v.Processed },
		"duplicates": func(v consumer.Values) consumer.Figure { return v.Duplicates },
		"elsewhere":  func(v consumer.Values) consumer.Figure { return v.Elsewhere },
		"p99":        func(v consumer.Values) consumer.Figure { return v.P99 },
		"dead":       func(v consumer.Values) consumer.Figure { return v.DeadLettered },
		"lost":       func(v consumer.Values) consumer.Figure { return v.Lost },
		"lag":        func(v consumer.Values) consumer.Figure { return v.CommitLag },
	}
	for name, c := range map[string]struct {
		p      *program
		figure string
		says   string
	}{
		"no counter":          {&program{drop: []string{"events_handled_total"}}, "processed", `exports no events_handled_total{outcome="processed"}`},
		"one outcome":         {&program{drop: []string{`"duplicate"`}}, "duplicates", `exports no events_handled_total{outcome="duplicate"}`},
		"another spelling":    {&program{replace: map[string]string{`"duplicate"`: `"DUPLICATE"`}}, "duplicates", `has outcome="DUPLICATE", where processed or duplicate is wanted`},
		"another label":       {&program{replace: map[string]string{"outcome=": "result="}}, "processed", `has outcome="", where processed or duplicate is wanted`},
		"no group":            {&program{replace: map[string]string{`events_handled_total{consumer_group="g",`: "events_handled_total{"}}, "processed", "has no label consumer_group"},
		"no topic":            {&program{replace: map[string]string{`events_handled_total{consumer_group="g",topic="t",`: `events_handled_total{consumer_group="g",`}}, "processed", "has no label topic"},
		"not a number":        {&program{processed: math.NaN()}, "processed", "is no counter, or no number"},
		"negative":            {&program{dead: -1}, "dead", "is no counter, or no number"},
		"no buckets":          {&program{drop: []string{"_bucket"}}, "p99", "has no buckets"},
		"no histogram at all": {&program{drop: []string{"duration"}}, "p99", "exports no event_handle_duration_seconds"},
		"a gauge of buckets":  {&program{drop: []string{"TYPE event_handle"}}, "p99", "exports no event_handle_duration_seconds"},
		"no end":              {&program{drop: []string{"+Inf", "duration_seconds_count"}}, "p99", `neither le="+Inf" nor a count`},
		"a summary": {&program{drop: []string{"_bucket"}, replace: map[string]string{"seconds histogram": "seconds summary"}},
			"p99", "is a summary"},
		"no origins":      {&program{drop: []string{"origin"}}, "elsewhere", `exports no events_duplicate_origin_total{origin="other_offset"}`},
		"no dead letters": {&program{drop: []string{"dead_lettered"}}, "dead", "exports no events_dead_lettered_total"},
		"no losses":       {&program{drop: []string{"events_lost"}}, "lost", "exports no events_lost_total"},
		"no commit lag":   {&program{drop: []string{"commit_lag"}}, "lag", "exports no consumer_offset_commit_lag_seconds"},
		"nothing handled": {&program{}, "p99", "no event has been handled"},
	} {
		c.p.start = ago(time.Hour)
		v := watch(t, c.p).read().Values[key]
		if f := get[c.figure](v); f.OK() || !strings.Contains(f.Missing, c.says) {
			t.Errorf("%s: %+v, want %q", name, f, c.says)
		}
		for other, figure := range get {
			if f := figure(v); other != c.figure && !f.OK() && !strings.Contains(f.Missing, "no event has been handled") && !strings.Contains(f.Missing, "events_handled_total") {
				t.Errorf("%s: %s too: %s", name, other, f.Missing)
			}
		}
	}
}

// Buckets with other bounds cannot be added up.
func TestOtherBounds(t *testing.T) {
	a, b := &program{all: 10}, &program{all: 10, replace: map[string]string{`le="0.2"`: `le="0.25"`}}
	if v := watch(t, a, b).read().Values[key]; v.P99.OK() || !strings.Contains(v.P99.Missing, "other buckets") {
		t.Errorf("%+v", v.P99)
	}
}

// A member without partitions has no series of theirs, and that is no fault.
func TestMemberWithoutPartitions(t *testing.T) {
	a, b := &program{lag: 3, lost: 2, all: 1}, &program{all: 1, drop: []string{"commit_lag", "events_lost"}}
	v := watch(t, a, b).read().Values[key]
	if !v.CommitLag.OK() || v.CommitLag.Value != 3 || !v.Lost.OK() || v.Lost.Value != 2 {
		t.Errorf("%+v", v)
	}
}

// What one of several does not answer is said, and does not mix with the rest.
func TestOneIsAway(t *testing.T) {
	away := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "hunter2", http.StatusServiceUnavailable) })
	s := watch(t, &program{processed: 7}, away).read()
	if s.Sources != 2 || s.Unread != 1 || s.Values[key].Processed.Value != 7 || len(s.Problems()) != 1 || strings.Contains(s.Problems()[0].Err.Error(), "hunter2") {
		t.Errorf("%+v", s)
	}
}

// Two consumers behind one address would be taken for one that restarts again
// and again.
func TestSeveralBehindOneAddress(t *testing.T) {
	a, b := &program{start: ago(time.Hour), processed: 1e6}, &program{start: ago(2 * time.Hour), processed: 2e6}
	var n atomic.Int64
	w := watch(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%2 == 0 {
			b.ServeHTTP(w, r)
			return
		}
		a.ServeHTTP(w, r)
	}))
	w.read()
	w.wait(time.Minute)
	if _, err := w.source.Poll(context.Background()); err == nil || !strings.Contains(err.Error(), "several consumers answer at this address") {
		t.Errorf("error: %v", err)
	}
}

// The metrics' values lie on the way from one bound to the next, as
// histogram_quantile has it.
func TestPercentile(t *testing.T) {
	v := watch(t, &program{upTo100: 90, upTo200: 98, upTo400: 100, all: 100}).read().Values[key]
	if math.Abs(v.P99.Value-0.3) > 1e-9 || v.P99Low != 0.2 || v.P99High != 0.4 {
		t.Errorf("%+v", v)
	}
	v = watch(t, &program{all: 100}).read().Values[key] // all above the last bound
	if v.P99.Value != 0.4 || !math.IsInf(v.P99High, 1) {
		t.Errorf("%+v", v)
	}
}

// OpenMetrics puts exemplars behind samples, and calls a counter's type by the
// name without its suffix.
func TestOpenMetrics(t *testing.T) {
	p := &program{processed: 4, all: 1, replace: map[string]string{
		"TYPE events_handled_total":            "TYPE events_handled",
		`le="+Inf"} 1`:                         `le="+Inf"} 1 # {trace_id="abc"} 0.3 1800000000.1`,
		`consumer_start_time_seconds{consumer`: "# UNIT x seconds\n" + `consumer_start_time_seconds{consumer`,
	}}
	if v := watch(t, p).read().Values[key]; v.Processed.Value != 4 || v.Timed.Value != 1 {
		t.Errorf("%+v", v)
	}
}

// Pages that are too long, too many or no pages are refused, by a sentence that
// repeats nothing of them; foreign families are dropped unread.
func TestHostilePages(t *testing.T) {
	wanted := `events_handled_total{consumer_group="g",topic="t",outcome="processed"} `
	for name, c := range map[string]struct {
		write func(w http.ResponseWriter)
		says  string
	}{
		"no metrics": {func(w http.ResponseWriter) { _, _ = fmt.Fprint(w, "<html>hunter2</html>") }, "exports none of the metrics"},
		"nonsense":   {func(w http.ResponseWriter) { _, _ = fmt.Fprintln(w, "\n\n"+wanted+"hunter2") }, "line 3 is no metric"},
		"a wanted line without end": {func(w http.ResponseWriter) {
			_, _ = fmt.Fprint(w, `events_handled_total{topic="`, strings.Repeat("x", 100<<10))
		}, "line 1 is longer than 64 kB"},
		"series without end": {func(w http.ResponseWriter) {
			for i := range 30_000 {
				_, _ = fmt.Fprintf(w, "events_lost_total{consumer_group=\"g\",topic=\"t\",partition=\"%d\"} 1\n", i)
			}
		}, "more than 20000 series"},
		"labels without end": {func(w http.ResponseWriter) {
			for range 300 {
				_, _ = fmt.Fprintf(w, "events_lost_total{consumer_group=\"g\",topic=\"t\",partition=\"%s\"} 1\n", strings.Repeat("x", 60<<10))
			}
		}, "take more than 16 MiB"},
		"bytes without end": {func(w http.ResponseWriter) {
			line := []byte(strings.Repeat("x", 1<<20))
			for range 100 {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}, "longer than 64 MiB"},
		"an answer that breaks off": {func(w http.ResponseWriter) {
			_, _ = fmt.Fprintln(w, wanted+"1")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "ended early"},
	} {
		w := watch(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.write(w) }))
		_, err := w.source.Poll(context.Background())
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// 16 MiB of other programs' series cost less than 40 MB.
func TestForeignSeriesCostLittle(t *testing.T) {
	p := &program{processed: 9}
	page := []byte(strings.Repeat(`some_other_metric_of_the_program_total{label="value",other="thing"} 12345`+"\n", 16<<20/74))
	w := watch(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(page)
		p.ServeHTTP(w, r)
	}))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if v := w.read().Values[key]; v.Processed.Value != 9 {
		t.Errorf("%+v", v)
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 40<<20 {
		t.Errorf("allocated %d MiB", allocated>>20)
	}
	t.Logf("%d MiB of series: %d KiB allocated in all", len(page)>>20, (after.TotalAlloc-before.TotalAlloc)>>10)
}

// A consumer that never ends its answer costs the poll's time, not more.
func TestEndlessAnswer(t *testing.T) {
	w := watch(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := w.source.Poll(ctx); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("error: %v", err)
	}
}

func TestSecretsStayOut(t *testing.T) {
	for _, address := range []string{"http://u:hunter2@127.0.0.1:1/metrics", "http://hunter2@127.0.0.1:1/metrics?token=hunter2"} {
		s, err := consumer.New(consumer.Config{MetricsURL: []string{address}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Poll(context.Background()); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "http://127.0.0.1:1/metrics") {
			t.Errorf("error: %v", err)
		}
		s.Close()
	}
	if err := (consumer.Config{MetricsURL: []string{"ftp://u:hunter2@x"}}).Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error: %v", err)
	}
}
