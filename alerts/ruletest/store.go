package ruletest

import (
	"context"
	"sort"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// Store keeps samples in memory, in order of time. It is not for concurrent writers.
type Store struct {
	byName map[string][]*series
	byHash map[uint64]*series
}

type series struct {
	labels  labels.Labels
	samples []sample
}

type sample struct {
	t int64 // ms
	f float64
	h *histogram.FloatHistogram
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{byName: map[string][]*series{}, byHash: map[uint64]*series{}}
}

// Append adds a sample at t (in ms), which is later than those of the series before.
func (s *Store) Append(l labels.Labels, t int64, v float64) { s.append(l, sample{t: t, f: v}) }

// AppendHistogram is [Store.Append] for a native histogram.
func (s *Store) AppendHistogram(l labels.Labels, t int64, h *histogram.FloatHistogram) {
	s.append(l, sample{t: t, h: h})
}

func (s *Store) append(l labels.Labels, p sample) {
	known, ok := s.byHash[l.Hash()]
	if !ok {
		known = &series{labels: l}
		s.byHash[l.Hash()] = known
		name := l.Get(model.MetricNameLabel)
		s.byName[name] = append(s.byName[name], known)
	}
	if n := len(known.samples); n > 0 && known.samples[n-1].t >= p.t {
		return // as Prometheus: what comes late or twice is dropped
	}
	known.samples = append(known.samples, p)
}

// Querier implements [storage.Queryable].
func (s *Store) Querier(mint, maxt int64) (storage.Querier, error) {
	return querier{mint, maxt, func(name string) []*series { return s.byName[name] }}, nil
}

type querier struct {
	mint, maxt int64
	named      func(name string) []*series
}

func (q querier) Select(_ context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	mint, maxt := q.mint, q.maxt
	if hints != nil {
		mint, maxt = hints.Start, hints.End
	}
	var found []storage.Series
	for _, m := range matchers {
		if m.Name != model.MetricNameLabel || m.Type != labels.MatchEqual {
			continue
		}
		for _, s := range q.named(m.Value) {
			if all(matchers, s.labels) {
				if in := between(s.samples, mint, maxt); len(in) > 0 {
					found = append(found, &series{s.labels, in})
				}
			}
		}
	}
	if sorted {
		sort.Slice(found, func(i, j int) bool { return labels.Compare(found[i].Labels(), found[j].Labels()) < 0 })
	}
	return &seriesSet{all: found}
}

func all(matchers []*labels.Matcher, l labels.Labels) bool {
	for _, m := range matchers {
		if !m.Matches(l.Get(m.Name)) {
			return false
		}
	}
	return true
}

func between(samples []sample, mint, maxt int64) []sample {
	from := sort.Search(len(samples), func(i int) bool { return samples[i].t >= mint })
	to := sort.Search(len(samples), func(i int) bool { return samples[i].t > maxt })
	return samples[from:max(from, to)]
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

type seriesSet struct {
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at <= len(s.all) }
func (s *seriesSet) At() storage.Series                { return s.all[s.at-1] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

func (s *series) Labels() labels.Labels { return s.labels }

func (s *series) Iterator(chunkenc.Iterator) chunkenc.Iterator {
	return storage.NewListSeriesIterator(samples(s.samples))
}

type samples []sample

func (s samples) Len() int                { return len(s) }
func (s samples) Get(i int) chunks.Sample { return &s[i] }

func (s *sample) T() int64                      { return s.t }
func (s *sample) ST() int64                     { return 0 }
func (s *sample) F() float64                    { return s.f }
func (s *sample) H() *histogram.Histogram       { return nil }
func (s *sample) FH() *histogram.FloatHistogram { return s.h.Copy() }
func (s *sample) Copy() chunks.Sample           { c := *s; return &c }

func (s *sample) Type() chunkenc.ValueType {
	if s.h != nil {
		return chunkenc.ValFloatHistogram
	}
	return chunkenc.ValFloat
}

// Over is a view of base in which what some rules wrote is replaced by what was
// written to own: the series of records, and the ALERTS of alerts.
func Over(base, own *Store, records, alerts map[string]bool) storage.Queryable {
	return queryable(func(name string) []*series {
		switch {
		case records[name]:
			return own.byName[name]
		case name == "ALERTS":
			all := own.byName[name]
			for _, s := range base.byName[name] {
				if !alerts[s.labels.Get(labels.AlertName)] {
					all = append(all[:len(all):len(all)], s)
				}
			}
			return all
		default:
			return base.byName[name]
		}
	})
}

type queryable func(name string) []*series

// Querier implements [storage.Queryable].
func (q queryable) Querier(mint, maxt int64) (storage.Querier, error) {
	return querier{mint, maxt, q}, nil
}
