package exposition

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"oncewatch/collectors/poll"
)

// form is how a page is encoded.
type form struct {
	format expfmt.Format
	gzip   bool
}

// maxForms bounds what is kept for scrapers that ask in different ways.
const maxForms = 4

// soon is how long encoding may hold a scrape up. What took longer the last
// time is encoded beside the scrapes, which get the poll before meanwhile.
const soon = 5 * time.Millisecond

// unit is the encoded snapshots of pollers that share metrics.
type unit struct {
	pollers poll.Unit

	mu    sync.Mutex
	pages []*page // by form, the one asked for last at the end
}

// page is a unit's families in one form.
type page struct {
	form     form
	seen     poll.Seen
	families []family
	took     time.Duration
	building bool // a newer one is under way
}

// families is what the unit has to show at now.
func (u *unit) families(h *Handler, f form, now time.Time) []family {
	seen := u.pollers.Seen(now)
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.IndexFunc(u.pages, func(p *page) bool { return p.form == f })
	var had *page
	if i >= 0 {
		had = u.pages[i]
		u.pages = append(slices.Delete(u.pages, i, i+1), had)
		if had.seen.Version == seen.Version {
			return had.families
		}
		// What must no longer be shown is never shown once more.
		if had.took > h.soon && seen.Sources == had.seen.Sources {
			if !had.building {
				had.building = true
				go u.replace(h, had, seen, now)
			}
			return had.families
		}
	}
	p := h.encode(seen, f, now)
	if had != nil {
		u.pages[len(u.pages)-1] = p
	} else {
		u.pages = append(u.pages, p)
		if len(u.pages) > maxForms {
			u.pages = slices.Delete(u.pages, 0, 1)
		}
	}
	return p.families
}

// replace encodes a newer page beside the scrapes.
func (u *unit) replace(h *Handler, had *page, seen poll.Seen, now time.Time) {
	p := h.encode(seen, had.form, now)
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := slices.Index(u.pages, had); i >= 0 {
		u.pages[i] = p
	}
}

var texts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// encode makes a page of snapshots, one family at a time, so that no more than
// one is in memory in any form but the last.
func (h *Handler) encode(seen poll.Seen, f form, now time.Time) *page {
	began := time.Now()
	p := &page{form: f, seen: seen}
	samples, err := collect(seen.Snapshots, now)
	h.failed("gathering", err)
	text := texts.Get().(*bytes.Buffer)
	defer texts.Put(text)
	for desc, s := range samples {
		delete(samples, desc)
		// The registry checks, completes and sorts as it does for everybody.
		reg := prometheus.NewRegistry()
		reg.MustRegister(s)
		families, err := reg.Gather()
		h.failed("gathering", err)
		for _, mf := range families {
			if slices.ContainsFunc(p.families, func(f family) bool { return f.name == mf.GetName() }) {
				h.failed("gathering", fmt.Errorf("%s: described twice", mf.GetName()))
				continue
			}
			moves := unmark(mf)
			text.Reset()
			if err := expfmt.NewEncoder(text, f.format).Encode(mf); err != nil {
				h.failed("encoding", err)
				continue
			}
			p.families = append(p.families, family{name: mf.GetName(), pieces: f.pieces(text.Bytes(), mf, moves, now)})
		}
	}
	p.took = time.Since(began)
	return p
}

// collect asks the snapshots for their samples, by description. A snapshot
// that panics costs its own samples only.
func collect(snapshots []poll.Snapshot, now time.Time) (map[*prometheus.Desc]samples, error) {
	var err error
	all := make(chan prometheus.Metric, 256)
	go func() {
		defer close(all)
		for _, s := range snapshots {
			if panicked := collectOne(s, now, all); panicked != nil {
				err = panicked
			}
		}
	}()
	by := map[*prometheus.Desc]samples{}
	for m := range all {
		if a, ok := m.(poll.Aging); ok && a.Ages() {
			m = marked{m}
		}
		by[m.Desc()] = append(by[m.Desc()], m)
	}
	return by, err
}

func collectOne(s poll.Snapshot, now time.Time, to chan<- prometheus.Metric) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("collect a snapshot: %v", r)
		}
	}()
	s.Collect(now, to)
	return nil
}

// samples of one description are a collector that the registry does not check
// beforehand.
type samples []prometheus.Metric

// Describe implements prometheus.Collector.
func (samples) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s samples) Collect(ch chan<- prometheus.Metric) {
	for _, m := range s {
		ch <- m
	}
}
