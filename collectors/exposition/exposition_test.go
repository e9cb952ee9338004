package exposition_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"

	"oncewatch/collectors/exposition"
	"oncewatch/collectors/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	quiet = slog.New(slog.DiscardHandler)

	age   = prometheus.NewDesc("a_age_seconds", "Age of a thing,\nwith \\ and \"quotes\".", []string{"group", "topic"}, nil)
	count = prometheus.NewDesc("b_things", "Things.", []string{"group", "topic"}, nil)
	total = prometheus.NewDesc("m_things_total", "Things so far.", nil, nil)
	last  = prometheus.NewDesc("z_last", "Behind all others.", []string{"topic"}, nil)
)

// seen is a source and its snapshot in one: n series of each metric whose
// labels repeat the names, each third of the ages standing still.
type seen struct {
	n     int
	names []string
	add   float64
	err   error
	panic bool
}

func (s *seen) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{age, count, total, last} {
		ch <- d
	}
}

func (s *seen) Poll(context.Context) (poll.Snapshot, error) {
	one := *s
	return &one, s.err
}

func (s *seen) Problems() []poll.Problem { return nil }

// start is the moment at which a thing of age 0 was made. The quarters of a
// second are exact in a float64 however they are added up.
var start = time.Unix(1_800_000_000, 250_000_000)

func (s *seen) Collect(now time.Time, ch chan<- prometheus.Metric) {
	for i := range s.n {
		group, topic := s.names[i%len(s.names)], fmt.Sprintf("topic-%07d", (i*7919)%s.n)
		if i%3 == 0 {
			poll.Gauge(ch, age, 0, group, topic)
		} else {
			poll.Age(ch, age, now.Sub(start).Seconds()+float64(i)/4, group, topic)
		}
		poll.Gauge(ch, count, s.add+float64(i), group, topic)
	}
	poll.Counter(ch, total, s.add)
	if s.panic {
		panic("a nil map")
	}
	poll.Gauge(ch, last, math.Inf(1), s.names[0])
}

// hostile are names that a page must carry whole.
var hostile = []string{"plain", "", " ", "new\nline", "tab\t", `quo"te`, `back\slash`, "\xff\xfe", "ünï 世界 🎉", "# HELP x", "a 1\nb 2", "}", strings.Repeat("long", 500)}

type rig struct {
	source  *seen
	poller  *poll.Poller
	pollers poll.Set
	now     atomic.Pointer[time.Time]
	handler http.Handler
	golden  http.Handler // what client_golang serves of the same
}

func (r *rig) clock() time.Time        { return *r.now.Load() }
func (r *rig) set(t time.Time)         { r.now.Store(&t) }
func (r *rig) advance(d time.Duration) { r.set(r.clock().Add(d)) }
func (r *rig) poll(t testing.TB) {
	t.Helper()
	if err := r.poller.Once(t.Context()); !errors.Is(err, r.source.err) {
		t.Fatal(err)
	}
}

func newRig(t testing.TB, source *seen) *rig {
	t.Helper()
	r := &rig{source: source}
	r.set(start.Add(time.Hour))
	r.poller = poll.New(source, poll.Options{ID: poll.ID{Subject: "some"}, Interval: 15 * time.Second, Timeout: time.Second, Now: r.clock})
	r.pollers = poll.Set{r.poller}
	own := prometheus.NewRegistry()
	own.MustRegister(poll.Own(r.pollers))
	h, err := exposition.New(r.pollers, own, quiet, r.clock)
	if err != nil {
		t.Fatal(err)
	}
	r.handler = h.AtOnce()
	snapshots := prometheus.NewRegistry()
	snapshots.MustRegister(newest{r})
	r.golden = promhttp.HandlerFor(prometheus.Gatherers{snapshots, own}, promhttp.HandlerOpts{EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError})
	return r
}

// newest collects the newest snapshot as any collector does.
type newest struct{ *rig }

func (n newest) Describe(ch chan<- *prometheus.Desc) { n.source.Describe(ch) }
func (n newest) Collect(ch chan<- prometheus.Metric) {
	if s := n.poller.Latest(); s != nil {
		s.Collect(n.clock(), ch)
	}
}

// ways are how Prometheus and others ask.
var ways = map[string]string{
	"text":            "text/plain;version=0.0.4",
	"anything":        "*/*",
	"nothing":         "",
	"OpenMetrics 0":   "application/openmetrics-text;version=0.0.1",
	"OpenMetrics 1":   "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
	"OpenMetrics 2":   "application/openmetrics-text;version=2.0.0",
	"protobuf":        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	"Prometheus 2.42": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
	"Prometheus 3":    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
}

func get(t testing.TB, h http.Handler, accept, encoding, query string) (http.Header, []byte) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics"+query, nil)
	r.Header.Set("Accept", accept)
	if encoding != "" {
		r.Header.Set("Accept-Encoding", encoding)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	if rec.Code != http.StatusOK {
		t.Fatalf("%d: %s", rec.Code, rec.Body)
	}
	body := io.Reader(rec.Body)
	if rec.Header().Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			t.Fatal(err)
		}
		body = z
	}
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Header(), text
}

func diff(t *testing.T, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	g, w := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(g), len(w)) {
		if !bytes.Equal(g[i], w[i]) {
			t.Fatalf("line %d of %d and %d:\n%.200q, want\n%.200q", i+1, len(g), len(w), g[i], w[i])
		}
	}
	t.Fatalf("%d lines, want %d", len(g), len(w))
}

// What is served is what client_golang serves, to the byte, in every format and
// compression, with hostile names, at the poll and later, when ages have grown.
func TestServesWhatClientGolangServes(t *testing.T) {
	r := newRig(t, &seen{n: 900, names: hostile})
	r.poll(t)
	for range 3 {
		for name, accept := range ways {
			for _, encoding := range []string{"", "gzip", "identity", "gzip;q=0", "br, gzip;q=0.5"} {
				header, got := get(t, r.handler, accept, encoding, "")
				wantHeader, want := get(t, r.golden, accept, encoding, "")
				diff(t, got, want)
				for _, key := range []string{"Content-Type", "Content-Encoding"} {
					if header.Get(key) != wantHeader.Get(key) {
						t.Errorf("%s, %q: %s %q, want %q", name, encoding, key, header.Get(key), wantHeader.Get(key))
					}
				}
			}
		}
		r.advance(2500 * time.Millisecond)
	}
	_, got := get(t, r.handler, "", "gzip", "?name[]=b_things&name[]=oncewatch_collector_success")
	_, want := get(t, r.golden, "", "gzip", "?name[]=b_things&name[]=oncewatch_collector_success")
	diff(t, got, want)
}

// The same over random sizes and names: what is cut into pieces of any length
// joins again.
func TestServesWhatClientGolangServesAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 15 {
		names := make([]string, 1+rnd.IntN(5))
		for i := range names {
			names[i] = strings.Repeat(hostile[rnd.IntN(len(hostile))], rnd.IntN(20))[:] + fmt.Sprint(i)
		}
		r := newRig(t, &seen{n: 1 + rnd.IntN(1500), names: names})
		r.poll(t)
		for range 2 {
			for _, accept := range ways {
				encoding := []string{"", "gzip"}[rnd.IntN(2)]
				_, got := get(t, r.handler, accept, encoding, "")
				_, want := get(t, r.golden, accept, encoding, "")
				diff(t, got, want)
			}
			// At least a second: for so long scrapers share what is compressed.
			r.advance(time.Second + time.Duration(rnd.IntN(40))*250*time.Millisecond)
		}
	}
}

// A poll is seen by the scrape after it, and what has become stale by none.
func TestFollowsPolls(t *testing.T) {
	r := newRig(t, &seen{n: 1, names: hostile})
	r.poll(t)
	scrape := func() string {
		_, text := get(t, r.handler, "", "gzip", "")
		return string(text)
	}
	if !strings.Contains(scrape(), "\nm_things_total 0\n") {
		t.Fatal("the first poll is not served")
	}
	r.source.add = 5
	r.advance(15 * time.Second)
	r.poll(t)
	if text := scrape(); !strings.Contains(text, "\nm_things_total 5\n") {
		t.Fatalf("the second poll is not served:\n%s", text)
	}
	r.source.err = errors.New("away")
	r.advance(time.Minute)
	r.poll(t)
	if text := scrape(); strings.Contains(text, "things") || !strings.Contains(text, `oncewatch_collector_success{collector="some"} 0`) {
		t.Fatalf("a snapshot of a minute ago is served:\n%s", text)
	}
}

// A large page is encoded beside the scrapes: they get the poll before until it
// is there, never an old one once it is, and never one that must be withheld.
func TestLargePagesAreEncodedBesideScrapes(t *testing.T) {
	r := newRig(t, &seen{n: 30_000, names: hostile[:4]})
	r.poll(t)
	value := func() string {
		_, text := get(t, r.handler, "", "gzip", "?name[]=m_things_total")
		_, v, _ := strings.Cut(string(text), "\nm_things_total ")
		return strings.TrimSpace(v)
	}
	if v := value(); v != "0" {
		t.Fatal(v)
	}
	r.source.add = 1
	r.poll(t)
	deadline := time.Now().Add(20 * time.Second)
	for value() != "1" {
		if time.Now().After(deadline) {
			t.Fatal("the second poll is never served")
		}
	}
	if v := value(); v != "1" {
		t.Fatalf("back to %s", v)
	}
	r.advance(time.Minute)
	if v := value(); v != "" {
		t.Fatalf("stale, and still %q", v)
	}
}

// twice is a snapshot with a label set that comes twice, and a hostile one.
type twice struct{ seen }

func (s *twice) Poll(context.Context) (poll.Snapshot, error) { return s, nil }
func (s *twice) Collect(_ time.Time, ch chan<- prometheus.Metric) {
	poll.Gauge(ch, last, 1, "same")
	poll.Gauge(ch, last, 2, "same")
	poll.Gauge(ch, last, math.Inf(1), "other\n\"\xff")
	poll.Counter(ch, total, 7)
}

// A label set that comes twice, or a snapshot that panics half-way, costs
// neither the page nor the other series, and is counted.
func TestOneBadSeriesDoesNotCostThePage(t *testing.T) {
	for name, source := range map[string]poll.Source{"twice": &twice{}, "panic": &seen{n: 1, names: hostile, add: 7, panic: true}} {
		p := poll.New(source, poll.Options{ID: poll.ID{Subject: poll.Subject(name)}, Interval: time.Minute, Timeout: time.Minute})
		if err := p.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		own := prometheus.NewRegistry()
		h, err := exposition.New(poll.Set{p}, own, quiet, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, text := get(t, h, "", "", "")
		if !strings.Contains(string(text), "\nm_things_total 7\n") || !strings.Contains(string(text), `errors_total{cause="gathering"} 1`) {
			t.Errorf("%s:\n%s", name, text)
		}
		if name == "twice" && (!strings.Contains(string(text), `z_last{topic="same"}`) || !strings.Contains(string(text), "z_last{topic=\"other\\n\\\"\uFFFD\"} +Inf")) {
			t.Errorf("the others are gone:\n%s", text)
		}
	}
}
