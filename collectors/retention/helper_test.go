package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
)

var t0 = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// world is snapshots made by hand, and a clock.
type world struct {
	t       testing.TB
	now     time.Time
	markers []*postgres.Markers
	topics  *kafka.Topics
	groups  *kafka.Groups
	log     fakeLog
	source  *Source
	offsets bool // the table has the columns
}

// fakeLog answers ListOffsets from records.
type fakeLog struct {
	records map[string]map[int32][]record
	fails   map[string]error
	blind   bool // finds nothing by time, and answers with the log start
	down    error
	asked   int
}

type record struct {
	offset int64
	at     time.Time
}

func (f *fakeLog) ListOffsets(_ context.Context, at map[string]map[int32]time.Time) (map[string]map[int32]kafka.ListedOffset, error) {
	f.asked++
	if f.down != nil {
		return nil, f.down
	}
	out := map[string]map[int32]kafka.ListedOffset{}
	for topic, partitions := range at {
		out[topic] = map[int32]kafka.ListedOffset{}
		for id, from := range partitions {
			a := kafka.ListedOffset{Offset: -1, Err: f.fails[fmt.Sprintf("%s/%d", topic, id)]}
			for _, r := range f.records[topic][id] {
				if f.blind {
					a.Offset, a.AtLeast = r.offset, true
					break
				}
				if !r.at.Before(from) {
					a.Offset, a.Timestamp = r.offset, r.at
					break
				}
			}
			out[topic][id] = a
		}
	}
	return out, nil
}

func newWorld(t testing.TB, change ...func(*Options)) *world {
	w := &world{t: t, now: t0, offsets: true, topics: &kafka.Topics{Topics: map[string]*kafka.Topic{}}, groups: &kafka.Groups{}}
	w.log = fakeLog{records: map[string]map[int32][]record{}, fails: map[string]error{}}
	o := Options{
		Markers: []func() *postgres.Markers{
			func() *postgres.Markers { return w.store(0) },
			func() *postgres.Markers { return w.store(1) },
		},
		Topics:  func() *kafka.Topics { return w.topics },
		Groups:  func() *kafka.Groups { return w.groups },
		Offsets: &w.log,
		Now:     func() time.Time { return w.now },
	}
	for _, f := range change {
		f(&o)
	}
	w.source = New(o)
	return w
}

func (w *world) store(i int) *postgres.Markers {
	if i < len(w.markers) {
		return w.markers[i]
	}
	return nil
}

// partition puts a log in place: records from start on, one at each time of
// the list, the last one offset before end.
func (w *world) partition(topic string, id int32, start, end int64, oldest time.Time) {
	one := w.topics.Topics[topic]
	if one == nil {
		one = &kafka.Topic{Name: topic, ID: kafka.TopicID{1}}
		w.topics.Topics[topic] = one
	}
	for int(id) >= len(one.Partitions) {
		one.Partitions = append(one.Partitions, kafka.Partition{})
	}
	p := kafka.Partition{Start: known(start), End: known(end)}
	if start < end {
		p.Oldest = known(oldest)
	}
	one.Partitions[id] = p
	var records []record
	for o := start; o < end; o++ {
		records = append(records, record{o, oldest.Add(time.Duration(o-start) * time.Minute)})
	}
	if w.log.records[topic] == nil {
		w.log.records[topic] = map[int32][]record{}
	}
	w.log.records[topic][id] = records
}

// commit sets where a group stands. The snapshot is a new one.
func (w *world) commit(group, topic string, offsets ...int64) {
	fresh := &kafka.Groups{At: w.now}
	for _, g := range w.groups.Groups {
		c := *g
		c.Topics = slices.Clone(g.Topics)
		fresh.Groups = append(fresh.Groups, &c)
	}
	g := fresh.Group(group)
	if g == nil {
		g = &kafka.Group{Name: group, Readable: true}
		fresh.Groups = append(fresh.Groups, g)
	}
	gt := kafka.GroupTopic{Topic: topic}
	for i, o := range offsets {
		p := kafka.GroupPartition{Partition: int32(i), Committed: o}
		if log := w.topics.Topics[topic]; log != nil && i < len(log.Partitions) && log.Partitions[i].Start.OK {
			p.OutOfRange = known(o < log.Partitions[i].Start.Value || o > log.Partitions[i].End.Value)
		}
		gt.Partitions = append(gt.Partitions, p)
	}
	if i := slices.IndexFunc(g.Topics, func(t kafka.GroupTopic) bool { return t.Topic == topic }); i >= 0 {
		g.Topics[i] = gt
	} else {
		g.Topics = append(g.Topics, gt)
	}
	w.groups = fresh
}

// table puts markers in place, read now.
func (w *world) table(series ...postgres.Series) *postgres.Markers {
	m := &postgres.Markers{
		Database: "db", Table: &postgres.Table{}, Identity: "table", Series: series, Ready: true,
		// The server's clock is an hour off ours.
		ServerTime: w.now.Add(time.Hour), ReadAt: w.now,
	}
	m.Table.Has = postgres.Columns{Group: "consumer_group", Topic: "topic", ProcessedAt: "processed_at"}
	if w.offsets {
		m.Table.Has.Partition, m.Table.Has.Offset = "partition", "offset"
	}
	w.markers = []*postgres.Markers{m}
	return m
}

// column is a time of ours as the table's column has it.
func column(t time.Time) time.Time { return t.Add(time.Hour) }

// marks is a series with markers at offsets.
func marks(group, topic string, partitions map[int64]postgres.Handled) postgres.Series {
	return postgres.Series{Group: group, Topic: topic, Counted: true, Rows: 1, Handled: partitions}
}

func gone(first, last int64, newest time.Time) handled.Range {
	n := last - first + 1
	return handled.Range{First: first, Last: last, Least: n, Most: n, Newest: column(newest).UnixMicro()}
}

// from is a partition of which no marker was seen below an offset.
func from(first int64, gone ...handled.Range) postgres.Handled {
	h := postgres.Handled{From: first, To: 1 << 40, Gone: gone}
	if first > 0 {
		h.Unseen = []handled.Range{{First: 0, Last: first - 1, Most: first}}
	}
	return h
}

func (w *world) poll() *Snapshot {
	w.t.Helper()
	s, err := w.source.Poll(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return s.(*Snapshot)
}

// settle polls as often as the commits need to be known from before the
// markers were read.
func (w *world) settle() *Snapshot {
	w.t.Helper()
	w.poll()
	w.now = w.now.Add(15 * time.Second)
	for _, m := range w.markers {
		fresh := *m
		fresh.ServerTime, fresh.ReadAt = m.ServerTime.Add(w.now.Sub(m.ReadAt)), w.now
		w.markers[slices.Index(w.markers, m)] = &fresh
	}
	return w.poll()
}

// values writes down what is unprotected, and behind a plus what is unverified
// where that is not 0.
func values(s *Snapshot) string {
	ch := make(chan prometheus.Metric)
	go func() {
		s.Collect(s.At, ch)
		close(ch)
	}()
	reg := prometheus.NewPedanticRegistry()
	var list []prometheus.Metric
	for m := range ch {
		list = append(list, m)
	}
	reg.MustRegister(metrics(list))
	families, err := reg.Gather()
	if err != nil {
		return err.Error()
	}
	of := map[string]map[string]float64{}
	for _, f := range families {
		of[f.GetName()] = map[string]float64{}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			of[f.GetName()][strings.Join(labels, " ")] = m.Gauge.GetValue()
		}
	}
	var lines []string
	for labels, n := range of["processed_events_unprotected_records"] {
		line := fmt.Sprintf("%s %v", labels, n)
		u, ok := of["processed_events_unverified_records"][labels]
		if !ok {
			line += "+?"
		} else if u != 0 {
			line += fmt.Sprintf("+%v", u)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

type metrics []prometheus.Metric

func (m metrics) Describe(chan<- *prometheus.Desc) {}
func (m metrics) Collect(ch chan<- prometheus.Metric) {
	for _, one := range m {
		ch <- one
	}
}

func (w *world) want(s *Snapshot, lines ...string) {
	w.t.Helper()
	slices.Sort(lines)
	if got, want := values(s), strings.Join(lines, "\n"); got != want {
		w.t.Errorf("got\n%s\nwant\n%s", got, want)
		for _, one := range s.Series {
			for _, p := range one.Partitions {
				w.t.Logf("%s %s: %+v", one.Group, one.Topic, *p)
			}
		}
	}
}

var errDenied = &poll.KindError{Kind: "denied", Err: errors.New("TOPIC_AUTHORIZATION_FAILED")}
