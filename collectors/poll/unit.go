package poll

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Unit is pollers whose snapshots share metrics: the samples of one metric
// stand together on a page, whichever of them they are from.
type Unit []*Poller

// Units divides the set into pollers that share descriptions.
func (s Set) Units() []Unit {
	var units []Unit
	owner := map[*prometheus.Desc]int{}
	for _, p := range s {
		at := len(units)
		descs := p.descs()
		for _, d := range descs {
			if u, ok := owner[d]; ok {
				at = u
				break
			}
		}
		if at == len(units) {
			units = append(units, nil)
		}
		units[at] = append(units[at], p)
		for _, d := range descs {
			owner[d] = at
		}
	}
	return units
}

func (p *Poller) descs() (descs []*prometheus.Desc) {
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		p.source.Describe(ch)
	}()
	for d := range ch {
		descs = append(descs, d)
	}
	return descs
}

// Seen is what a unit has to show.
type Seen struct {
	Snapshots []Snapshot
	// Version is another one whenever the snapshots are others.
	Version string
	// Sources is another one whenever a source begins or ceases to be shown.
	Sources string
}

// Seen is the newest snapshots that are not stale at now.
func (u Unit) Seen(now time.Time) Seen {
	var seen Seen
	var version, sources strings.Builder
	for _, p := range u {
		p.mu.RLock()
		snapshot, n := p.snapshot, p.polled
		if p.stale(now) {
			snapshot = nil
		}
		p.mu.RUnlock()
		shown := "-"
		if snapshot != nil {
			seen.Snapshots = append(seen.Snapshots, snapshot)
			version.WriteString(strconv.Itoa(n))
			shown = "+"
		}
		version.WriteByte(' ')
		sources.WriteString(shown)
	}
	seen.Version, seen.Sources = version.String(), sources.String()
	return seen
}
