// Package exposition serves the newest snapshots to Prometheus at the cost of
// sending bytes: what only a poll changes is encoded once a poll, however many
// scrapers ask; what changes at every scrape (ages, and the exporter's own
// metrics) is encoded at the scrape.
//
// What is sent is byte for byte what client_golang's own handler would send.
package exposition

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"oncewatch/collectors/poll"
)

// atOnce bounds the memory and processor time of many scrapes at the same
// moment. A place is held while a page is put together, not while it is sent:
// a scraper that reads slowly holds none.
const atOnce = 4

// Handler serves the pollers' snapshots and the metrics of the exporter itself.
type Handler struct {
	units  []*unit
	own    prometheus.Gatherer
	now    func() time.Time
	log    *slog.Logger
	errors *prometheus.CounterVec
	places chan struct{}
	soon   time.Duration
}

// New makes the handler. own holds the metrics of the exporter itself, which
// are gathered at each scrape; a counter of what could not be served is added
// to it. now is the clock; nil means time.Now.
func New(pollers poll.Set, own *prometheus.Registry, log *slog.Logger, now func() time.Time) (*Handler, error) {
	if now == nil {
		now = time.Now
	}
	h := &Handler{own: own, now: now, log: log, places: make(chan struct{}, atOnce), soon: soon,
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "promhttp_metric_handler_errors_total",
			Help: "Total number of internal errors encountered by the promhttp metric handler.",
		}, []string{"cause"})}
	for _, cause := range []string{"encoding", "gathering"} {
		h.errors.WithLabelValues(cause)
	}
	if err := own.Register(h.errors); err != nil {
		return nil, err
	}
	for _, u := range pollers.Units() {
		h.units = append(h.units, &unit{pollers: u})
	}
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := form{format: expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...), gzip: acceptsGzip(r.Header)}
	page, ok := h.page(r, f)
	if !ok {
		return // the scraper is gone
	}
	head := w.Header()
	head.Set("Content-Type", string(f.format))
	head["Vary"] = []string{"Accept", "Accept-Encoding"}
	if f.gzip {
		head.Set("Content-Encoding", "gzip")
	}
	for i, part := range page {
		page[i] = nil // a slow reader holds no more than what it has yet to read
		if part.send(w) != nil {
			return
		}
	}
}

// part is a piece of a page on its way to one scraper.
type part interface{ send(w io.Writer) error }

type raw []byte

func (b raw) send(w io.Writer) error {
	_, err := w.Write(b)
	return err
}

// enter takes a place until leave is called; false where the scraper is gone.
func (h *Handler) enter(ctx context.Context) (leave func(), ok bool) {
	select {
	case h.places <- struct{}{}:
		return func() { <-h.places }, true
	case <-ctx.Done():
		return nil, false
	}
}

// page puts a page together. One bad series must not cost the others: what
// cannot be gathered or encoded is logged, counted and left out.
func (h *Handler) page(r *http.Request, f form) ([]part, bool) {
	leave, ok := h.enter(r.Context())
	if !ok {
		return nil, false
	}
	defer leave()
	now := h.now()
	var families []family
	for _, u := range h.units {
		families = append(families, u.families(h, f, now)...)
	}
	own, err := h.own.Gather()
	h.failed("gathering", err)
	for _, mf := range own {
		families = append(families, family{name: mf.GetName(), own: mf})
	}
	slices.SortStableFunc(families, func(a, b family) int { return strings.Compare(a.name, b.name) })
	if names := r.URL.Query()["name[]"]; len(names) > 0 {
		families = slices.DeleteFunc(families, func(f family) bool { return !slices.Contains(names, f.name) })
	}
	return h.assemble(r.Context(), families, f, now), true
}

// assemble joins the families' pieces. What is encoded now goes into members
// of its own between those that are there already: concatenated gzip members
// are one gzip stream.
func (h *Handler) assemble(ctx context.Context, families []family, f form, now time.Time) []part {
	var page []part
	fresh := &fresh{gzip: f.gzip}
	flush := func() {
		if p := fresh.take(); p != nil {
			page = append(page, p)
		}
	}
	for _, fam := range families {
		if fam.own != nil {
			h.failed("encoding", expfmt.NewEncoder(fresh, f.format).Encode(fam.own))
			continue
		}
		for _, piece := range fam.pieces {
			flush()
			if piece.moving == nil {
				page = append(page, piece.packed)
			} else {
				page = append(page, sending{piece.moving, now, f, func() (func(), bool) { return h.enter(ctx) }})
			}
		}
	}
	if c, ok := expfmt.NewEncoder(fresh, f.format).(expfmt.Closer); ok {
		h.failed("encoding", c.Close()) // the end of OpenMetrics
	}
	if len(page) == 0 {
		_, _ = fresh.Write(nil) // an empty page is an empty member, not no member
	}
	flush()
	return page
}

func (h *Handler) failed(cause string, err error) {
	if err != nil {
		h.errors.WithLabelValues(cause).Inc()
		h.log.Error("cannot serve some metrics", "cause", cause, "err", err)
	}
}

// family is one metric family of a page.
type family struct {
	name   string
	pieces []piece           // of the snapshots
	own    *dto.MetricFamily // of the exporter itself
}

// fresh collects what is encoded at a scrape.
type fresh struct {
	gzip bool
	to   *bytes.Buffer
	pack *gzip.Writer
}

var packers = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	return w
}}

func (f *fresh) Write(b []byte) (int, error) {
	if f.to == nil {
		f.to = &bytes.Buffer{}
		if f.gzip {
			f.pack = packers.Get().(*gzip.Writer)
			f.pack.Reset(f.to)
		}
	}
	if f.pack != nil {
		return f.pack.Write(b)
	}
	return f.to.Write(b)
}

// take is what was written since the last take; nil for nothing.
func (f *fresh) take() part {
	if f.to == nil {
		return nil
	}
	if f.pack != nil {
		_ = f.pack.Close() // into a buffer
		packers.Put(f.pack)
	}
	p := raw(bytes.Clone(f.to.Bytes()))
	f.to, f.pack = nil, nil
	return p
}

// acceptsGzip says whether a client takes gzip; one that also takes the plain
// text gets gzip, as from every exporter.
func acceptsGzip(h http.Header) bool {
	for _, one := range strings.Split(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(one, ";")
		if n := strings.TrimSpace(name); strings.EqualFold(n, "gzip") || n == "*" {
			q := strings.ReplaceAll(params, " ", "")
			return q != "q=0" && strings.TrimRight(strings.TrimPrefix(q, "q=0."), "0") != "" || q == ""
		}
	}
	return false
}
