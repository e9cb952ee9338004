package collectors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/retention"
	"oncewatch/collectors/state"
)

var (
	savedDesc = prometheus.NewDesc("oncewatch_state_last_saved_timestamp_seconds",
		"When the state was last saved, the least recent of the stores'; 0: not yet. Absent without --state.path.", nil, nil)
	stateBytesDesc = prometheus.NewDesc("oncewatch_state_bytes",
		"Size of the kept state. Absent without --state.path.", nil, nil)
)

// saveEvery is how often the state is saved at most.
const saveEvery = time.Minute

// keeping is the source that saves what every store's ledger and its comparison
// know. No poll waits for it but while it takes a copy.
type keeping struct {
	dir      *state.Dir
	e        *Exporter
	compared *retention.Source
	saved    []save // by store
}

type save struct {
	at       time.Time
	bytes    int
	database string
}

// newKeeping takes the folder; nil where that is not to be had: the exporter
// goes on without.
func (e *Exporter) newKeeping(path string, compared *retention.Source, log *slog.Logger) *keeping {
	dir, err := state.Open(path)
	if err != nil {
		remedy := "mend it and start again"
		if errors.Is(err, state.ErrInUse) {
			remedy = "give each exporter a folder of its own"
		}
		log.Error("nothing is kept across a restart", "err", err, "remedy", remedy)
		return nil
	}
	return &keeping{dir: dir, e: e, compared: compared, saved: make([]save, len(e.stores))}
}

// name of a store's file.
func (k *keeping) name(i int) string {
	if len(k.e.stores) == 1 {
		return "markers"
	}
	return "markers-" + url.PathEscape(k.e.stores[i].title)
}

// restore has every store start from what was kept. A file that is of no use is
// set aside, and the start is a first look.
func (k *keeping) restore(log *slog.Logger) {
	for i, s := range k.e.stores {
		refused := func(why string) {
			aside, err := k.dir.SetAside(k.name(i))
			log.Warn("the kept state is of no use and was set aside: the start is a first look", "store", s.title, "why", why, "file", aside, "err", err)
		}
		body, err := k.dir.Read(k.name(i))
		if err == nil && body == nil {
			continue
		}
		var kept *state.Store
		if err == nil {
			kept, err = state.Decode(body)
		}
		if err != nil {
			refused(err.Error())
			continue
		}
		log.Info("starting from the kept state", "store", s.title, "saved", kept.Saved.UTC(), "bytes", len(body))
		s.Restore(kept.Ledger, refused)
		k.saved[i] = save{at: kept.Saved, bytes: len(body)}
		if kept.Compared != nil {
			k.compared.Restore(kept.Compared)
			k.saved[i].database = kept.Compared.Database
		}
	}
}

// Describe implements poll.Source.
func (k *keeping) Describe(ch chan<- *prometheus.Desc) {
	ch <- savedDesc
	ch <- stateBytesDesc
}

// Poll implements poll.Source: it saves. That a file cannot be written is a
// problem and no failure: the exporter is of use without.
func (k *keeping) Poll(context.Context) (poll.Snapshot, error) { return k.saveAll(), nil }

func (k *keeping) saveAll() *kept {
	out := &kept{}
	for i, s := range k.e.stores {
		if err := k.save(i, s); err != nil {
			out.problems = append(out.problems, poll.Problem{Kind: "write", Entity: "state of " + k.name(i), Err: err})
		}
		if one := k.saved[i]; i == 0 || one.at.Before(out.at) {
			out.at = one.at
		}
		out.bytes += k.saved[i].bytes
	}
	return out
}

func (k *keeping) save(i int, s store) error {
	one := &k.saved[i]
	if m, ok := latest[*postgres.Markers](s.markers); ok {
		one.database = m.Database
	}
	// First what was compared, then what the ledger knows: the other way round
	// something could be taken for watched that was not.
	compared := k.compared.Keep(one.database)
	ledger := s.Keep()
	if ledger == nil {
		return nil // not complete yet: what was kept before tells more
	}
	now := k.e.now()
	body := (&state.Store{Saved: now, Ledger: ledger, Compared: compared}).Encode()
	if err := k.dir.Write(k.name(i), body); err != nil {
		return fmt.Errorf("%w: the state of before stays; see the folder's space and rights", err)
	}
	one.at, one.bytes = now, len(body)
	return nil
}

// kept is a snapshot of keeping.
type kept struct {
	at       time.Time
	bytes    int
	problems []poll.Problem
}

// Problems implements poll.Snapshot.
func (k *kept) Problems() []poll.Problem { return k.problems }

// Collect implements poll.Snapshot.
func (k *kept) Collect(_ time.Time, ch chan<- prometheus.Metric) {
	at := 0.0
	if !k.at.IsZero() {
		at = float64(k.at.UnixMilli()) / 1000
	}
	poll.Gauge(ch, savedDesc, at)
	poll.Gauge(ch, stateBytesDesc, float64(k.bytes))
}
