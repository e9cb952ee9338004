package consumer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The metrics that are read; everything else on a page is dropped unread.
const (
	handledTotal      = "events_handled_total"
	originTotal       = "events_duplicate_origin_total"
	durationSeconds   = "event_handle_duration_seconds"
	commitLagSeconds  = "consumer_offset_commit_lag_seconds"
	retriesTotal      = "event_retries_total"
	deadLetteredTotal = "events_dead_lettered_total"
	lostTotal         = "events_lost_total"
	startTime         = "consumer_start_time_seconds"
	processStartTime  = "process_start_time_seconds"
)

var wantedNames = []string{
	handledTotal, originTotal, durationSeconds, commitLagSeconds, retriesTotal, deadLetteredTotal, lostTotal, startTime, processStartTime,
}

// Bounds of one consumer's page.
const (
	maxPage   = 64 << 20 // bytes, of which only what is wanted is kept
	maxLine   = 64 << 10 // bytes
	maxSeries = 20_000   // wanted ones: about 20 MB while they are parsed
	maxWanted = 16 << 20 // bytes of these
)

// parse reads a page of metrics as a stream. An error repeats nothing of it.
func parse(page io.Reader) (map[string]*dto.MetricFamily, error) {
	r, w := io.Pipe()
	filtered := make(chan error, 1)
	go func() {
		err := filter(page, w)
		_ = w.CloseWithError(err) // nil is the end
		filtered <- err
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	_ = r.Close()
	if ferr := <-filtered; ferr != nil && !errors.Is(ferr, io.ErrClosedPipe) {
		return nil, ferr
	}
	if err != nil {
		var at expfmt.ParseError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("line %d is no metric", at.Line)
		}
		return nil, errors.New("these are no metrics")
	}
	return families, nil
}

// filter passes on the lines of the wanted metrics, and each other one as an
// empty line, so that lines keep their numbers.
func filter(page io.Reader, w io.Writer) error {
	limited := &io.LimitedReader{R: page, N: maxPage + 1}
	in := bufio.NewReaderSize(limited, maxLine)
	out := bufio.NewWriterSize(w, maxLine)
	for number, series, size := 1, 0, 0; ; number++ {
		line, err := in.ReadSlice('\n')
		keep := wanted(line)
		if keep && len(line) > 0 && line[0] != '#' {
			series, size = series+1, size+len(line)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && keep:
			return fmt.Errorf("line %d is longer than %d kB", number, maxLine>>10)
		case series > maxSeries:
			return fmt.Errorf("it has more than %d series of the metrics that are read", maxSeries)
		case size > maxWanted:
			return fmt.Errorf("the metrics that are read take more than %d MiB", maxWanted>>20)
		}
		for errors.Is(err, bufio.ErrBufferFull) { // of another metric
			_, err = in.ReadSlice('\n')
		}
		if limited.N == 0 {
			return fmt.Errorf("the page is longer than %d MiB", maxPage>>20)
		}
		text := []byte("\n")
		if keep {
			text = withoutExemplar(line)
		}
		if _, werr := out.Write(text); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			_ = out.WriteByte('\n') // of a last line that ends without one
			return out.Flush()
		}
		if err != nil {
			return errors.New("the page ended early")
		}
	}
}

// wanted says whether a line is about a metric that is read: a sample, or its
// TYPE.
func wanted(line []byte) bool {
	line = bytes.TrimLeft(line, " \t")
	if rest, ok := bytes.CutPrefix(line, []byte("# TYPE ")); ok {
		line = rest
	}
	end := bytes.IndexAny(line, "{ \t\r\n")
	if end < 0 {
		end = len(line)
	}
	name := string(line[:end])
	if slices.Contains(wantedNames, name) {
		return true
	}
	histogram, ok := strings.CutPrefix(name, durationSeconds)
	return ok && slices.Contains([]string{"_bucket", "_sum", "_count"}, histogram)
}

// withoutExemplar cuts off what OpenMetrics puts behind a sample.
func withoutExemplar(line []byte) []byte {
	if line[0] == '#' {
		return line
	}
	if i := bytes.LastIndexByte(line, '}'); i >= 0 {
		if j := bytes.LastIndex(line[:i], []byte(" # {")); j >= 0 && bytes.IndexByte(line[:j], '}') >= 0 {
			return append(line[:j:j], '\n')
		}
	}
	return line
}

// Key is a consumer group on a topic.
type Key struct{ Group, Topic string }

// totals are what one consumer has counted since it started, or between two
// readings.
type totals struct {
	// counters by the metric's name, and for the first two by outcome and
	// origin behind a slash; absent where the consumer does not export it.
	counters map[string]float64
	// buckets counts handled events by upper bound, cumulative.
	buckets map[float64]float64
}

// reading is one consumer's page.
type reading struct {
	start  float64             // Unix seconds, of the first group's; 0 where it is not exported
	series map[string]float64  // each counter by name and labels
	of     map[string]seriesOf // what a series counts into
	// wrong says of a group and topic what a metric that is there lacks.
	wrong map[Key]map[string]string
	lag   map[Key]float64
	keys  map[Key]bool
}

// seriesOf is where a series is summed.
type seriesOf struct {
	key     Key
	counter string
	bound   float64 // of a bucket; NaN else
}

func read(families map[string]*dto.MetricFamily) *reading {
	r := &reading{series: map[string]float64{}, of: map[string]seriesOf{}, wrong: map[Key]map[string]string{}, lag: map[Key]float64{}, keys: map[Key]bool{}}
	r.counter(families, handledTotal, "outcome", "processed", "duplicate")
	r.counter(families, originTotal, "origin", "same_offset", "other_offset")
	r.counter(families, retriesTotal, "")
	r.counter(families, deadLetteredTotal, "")
	r.counter(families, lostTotal, "")
	r.histogram(families[durationSeconds])
	for _, m := range families[commitLagSeconds].GetMetric() {
		k, ok := r.key(m, commitLagSeconds)
		if !ok {
			continue
		}
		v, ok := value(m)
		if !ok {
			r.mark(k, commitLagSeconds, "is no number")
			continue
		}
		r.lag[k] = max(r.lag[k], v)
	}
	for _, name := range []string{processStartTime, startTime} { // the second is more exact
		for _, m := range families[name].GetMetric() {
			if v, ok := value(m); ok && v > 0 {
				r.start = v
			}
		}
	}
	return r
}

func (r *reading) mark(k Key, metric, what string) {
	if r.wrong[k] == nil {
		r.wrong[k] = map[string]string{}
	}
	r.wrong[k][metric] = what
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// key is the group and topic of a sample; a sample that does not tell both is
// remembered as such.
func (r *reading) key(m *dto.Metric, metric string) (Key, bool) {
	k := Key{label(m, "consumer_group"), label(m, "topic")}
	switch {
	case k.Group == "":
		r.mark(Key{}, metric, "has no label consumer_group")
		return k, false
	case k.Topic == "":
		r.mark(Key{Group: k.Group}, metric, "has no label topic")
		return k, false
	}
	r.keys[k] = true
	return k, true
}

func value(m *dto.Metric) (float64, bool) {
	v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	return v, v >= 0 && !math.IsInf(v, 1)
}

// counter reads a counter; where a label splits it, its values are what is
// known of it.
func (r *reading) counter(families map[string]*dto.MetricFamily, name, split string, known ...string) {
	for _, m := range families[name].GetMetric() {
		k, ok := r.key(m, name)
		if !ok {
			continue
		}
		into := name
		if split != "" {
			v := label(m, split)
			if !slices.Contains(known, v) {
				r.mark(k, name, fmt.Sprintf("has %s=%.40q, where %s is wanted", split, v, strings.Join(known, " or ")))
				continue
			}
			into += "/" + v
		}
		v, ok := value(m)
		if !ok || m.Counter == nil && m.Untyped == nil && m.Gauge == nil {
			r.mark(k, name, "is no counter, or no number")
			continue
		}
		r.add(name, m, k, into, math.NaN(), v)
	}
}

func (r *reading) add(name string, m *dto.Metric, k Key, into string, bound, v float64) {
	var id strings.Builder
	id.WriteString(name)
	for _, l := range m.Label {
		id.WriteString("\x00" + l.GetName() + "\x00" + l.GetValue())
	}
	if !math.IsNaN(bound) {
		fmt.Fprintf(&id, "\x00%g", bound)
	}
	r.series[id.String()], r.of[id.String()] = v, seriesOf{k, into, bound}
}

func (r *reading) histogram(f *dto.MetricFamily) {
	for _, m := range f.GetMetric() {
		k, ok := r.key(m, durationSeconds)
		switch {
		case !ok:
		case m.Summary != nil:
			r.mark(k, durationSeconds, "is a summary: the quantiles of several consumers cannot be joined, a histogram's buckets can")
		case m.Histogram == nil:
			r.mark(k, durationSeconds, "is no histogram")
		case len(m.Histogram.Bucket) == 0:
			r.mark(k, durationSeconds, "has no buckets")
		default:
			last := m.Histogram.Bucket[len(m.Histogram.Bucket)-1].GetUpperBound()
			if !math.IsInf(last, 1) && m.Histogram.SampleCount == nil {
				r.mark(k, durationSeconds, `has neither le="+Inf" nor a count`)
				continue
			}
			for _, b := range m.Histogram.Bucket {
				r.add(durationSeconds, m, k, durationSeconds, b.GetUpperBound(), float64(b.GetCumulativeCount()))
			}
			if !math.IsInf(last, 1) {
				r.add(durationSeconds, m, k, durationSeconds, math.Inf(1), float64(m.Histogram.GetSampleCount()))
			}
		}
	}
}

// sum adds the series up by group and topic. before is what each had at an
// earlier reading; nil: nothing.
func (r *reading) sum(before *reading) map[Key]*totals {
	out := make(map[Key]*totals, len(r.keys))
	for k := range r.keys {
		out[k] = newTotals()
	}
	for id, v := range r.series {
		if before != nil {
			v -= before.series[id]
		}
		of := r.of[id]
		if math.IsNaN(of.bound) {
			out[of.key].counters[of.counter] += v
		} else {
			out[of.key].buckets[of.bound] += v
		}
	}
	return out
}

func newTotals() *totals {
	return &totals{counters: map[string]float64{}, buckets: map[float64]float64{}}
}

// restarted says whether the consumer has begun anew since an earlier reading:
// its start has moved, or any counter or bucket went back.
func (r *reading) restarted(before *reading) bool {
	if before.start > 0 && r.start > before.start+1 {
		return true
	}
	for id, v := range before.series {
		if now, ok := r.series[id]; ok && now < v {
			return true
		}
	}
	return false
}
