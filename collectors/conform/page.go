package conform

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/model/textparse"
)

// Bounds of one page.
const (
	maxPage   = 64 << 20 // bytes
	maxSeries = 200_000
)

// Page is what was read at one place.
type Page struct {
	Source string
	types  map[string]string // by the family's name, as the rules write it
	units  map[string]string
	series map[string][]series // by the family's name
	native map[string]bool     // histograms that have native buckets
	n      int
}

type series struct {
	labels labels.Labels
	value  float64
}

func newPage(source string) *Page {
	return &Page{Source: source, types: map[string]string{}, units: map[string]string{}, series: map[string][]series{}, native: map[string]bool{}}
}

// Read reads a page in any format that Prometheus scrapes, by Prometheus' own
// parsers, and relabels it as Prometheus would. An error repeats nothing of the
// page. contentType may be empty: then it is told from the page.
func Read(source string, r io.Reader, contentType string, relabelling []*relabel.Config) (*Page, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxPage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: the page ended early", source)
	case len(text) > maxPage:
		return nil, fmt.Errorf("%s: the page is longer than %d MiB", source, maxPage>>20)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%s: the page is empty", source)
	}
	if bytes.HasSuffix(bytes.TrimSpace(text), []byte("# EOF")) && !strings.Contains(contentType, "protobuf") {
		contentType = "application/openmetrics-text; version=1.0.0"
	}
	if !strings.Contains(contentType, "openmetrics") && !strings.Contains(contentType, "protobuf") {
		contentType = "text/plain; version=0.0.4"
		text = append(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), '\n')
	}
	p, err := textparse.New(text, contentType, labels.NewSymbolTable(), textparse.ParserOptions{KeepClassicOnClassicAndNativeHistograms: true})
	if p == nil || err != nil {
		return nil, fmt.Errorf("%s: this is no page of metrics in a format that Prometheus reads", source)
	}
	page := newPage(source)
	types, units, all := map[string]string{}, map[string]string{}, []parsed{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: after %d series comes something that is no metric: is this the address of the metrics?", source, len(all))
		}
		switch entry {
		case textparse.EntryType:
			name, t := p.Type()
			types[string(name)] = string(t)
		case textparse.EntryUnit:
			name, unit := p.Unit()
			units[string(name)] = string(unit)
		case textparse.EntrySeries:
			var s parsed
			p.Labels(&s.labels)
			_, _, s.value = p.Series()
			all = append(all, s)
		case textparse.EntryHistogram:
			s := parsed{native: true}
			p.Labels(&s.labels)
			all = append(all, s)
		}
		if len(all) > maxSeries {
			return nil, fmt.Errorf("%s: it has more than %d series", source, maxSeries)
		}
	}
	page.fill(all, types, units, relabelling)
	return page, nil
}

type parsed struct {
	labels labels.Labels
	value  float64
	native bool
}

// fill sorts series into families, by the names they have once relabelled.
func (p *Page) fill(all []parsed, types, units map[string]string, relabelling []*relabel.Config) {
	for _, s := range all {
		theirs := s.labels.Get(model.MetricNameLabel)
		lb := labels.NewBuilder(s.labels)
		if !relabel.ProcessBuilder(lb, relabelling...) {
			continue
		}
		ls := lb.Labels()
		name := ls.Get(model.MetricNameLabel)
		described, ours := theirs, name
		if _, ok := types[theirs]; !ok {
			if h := histogramOf(theirs); types[h] == string(model.MetricTypeHistogram) || types[h] == string(model.MetricTypeSummary) || types[h] == string(model.MetricTypeGaugeHistogram) {
				described, ours = h, histogramOf(name)
			} else if base, ok := strings.CutSuffix(theirs, "_total"); ok && types[base] != "" { // OpenMetrics
				described = base
			}
		}
		if t := types[described]; t != "" && t != string(model.MetricTypeUnknown) && t != "untyped" {
			p.types[ours] = t
		} else if strings.HasSuffix(name, "_bucket") && ls.Has(labels.BucketLabel) { // has no type, and is none the less
			ours = histogramOf(name)
			p.types[ours] = string(model.MetricTypeHistogram)
		}
		if u := units[described]; u != "" {
			p.units[ours] = u
		}
		if s.native {
			p.native[ours] = true
		}
		p.series[ours] = append(p.series[ours], series{ls, s.value})
		p.n++
	}
	for name, t := range p.types { // sums and counts that came before the buckets
		if t == string(model.MetricTypeHistogram) {
			for _, suffix := range []string{"_sum", "_count"} {
				p.series[name] = append(p.series[name], p.series[name+suffix]...)
				delete(p.series, name+suffix)
			}
		}
	}
}
