package retention

import (
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
)

// One partition: log from start to end, committed, what the markers tell.
func TestByOffset(t *testing.T) {
	long := t0.Add(-8 * day)
	for name, c := range map[string]struct {
		start, end, committed int64
		handled               *postgres.Handled
		want                  string // "" absent
		gone                  []Range
		unseen                int64
	}{
		"nothing gone": {100, 1000, 900, &postgres.Handled{From: 0}, "0", nil, 0},
		"gone below the log start, as it should be": {100, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{gone(0, 99, long)}}, "0", nil, 0},
		"the pruner is too quick": {100, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{gone(0, 499, long)}}, "400", []Range{{100, 499}}, 0},
		"up to one record": {100, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{gone(0, 100, long)}}, "1", []Range{{100, 100}}, 0},
		"all of them (TRUNCATE)": {100, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{gone(0, 899, long)}}, "800", []Range{{100, 899}}, 0},
		"never beyond the commit": {100, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{gone(0, 999, long)}}, "800", []Range{{100, 899}}, 0},
		"a deletion in the middle": {100, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{gone(300, 309, long)}}, "10", []Range{{300, 309}}, 0},
		"a young group that began at latest": {0, 1000, 900,
			&postgres.Handled{From: 800}, "", nil, 800},
		"a young group whose log start has come by": {800, 1000, 900,
			&postgres.Handled{From: 800}, "0", nil, 0},
		"a restart of the exporter, and then a prune: at least this many": {0, 1000, 900,
			&postgres.Handled{From: 400, Gone: []postgres.Gone{gone(400, 499, long)}}, "100", []Range{{400, 499}}, 400},
		"no marker was ever seen":                {0, 1000, 900, nil, "", nil, 900},
		"no marker, and nothing handled":         {0, 1000, 0, nil, "0", nil, 0},
		"the commit is below the log":            {500, 1000, 400, nil, "0", nil, 0},
		"an empty log":                           {900, 900, 900, nil, "0", nil, 0},
		"the commit is beyond the log (case K1)": {0, 10, 900, &postgres.Handled{From: 0, Gone: []postgres.Gone{gone(0, 99, long)}}, "", nil, 0},
		"never more than there are offsets": {100, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{{First: 0, Last: 999, Markers: 900}, {First: 0, Last: 999, Markers: 800}}}, "800", []Range{{100, 899}}, 0},
		"markers beyond the commit tell nothing of what is below": {100, 1000, 900, &postgres.Handled{From: 950}, "", nil, 800},
		"offsets with gaps count by markers": {500, 1000, 900,
			&postgres.Handled{From: 0, Gone: []postgres.Gone{{First: 0, Last: 999, Markers: 500}}}, "200", []Range{{500, 899}}, 0},
	} {
		w := newWorld(t)
		w.partition("t", 0, c.start, c.end, t0.Add(-7*day))
		w.commit("g", "t", c.committed)
		s := marks("g", "t", nil)
		if c.handled != nil {
			s.Handled = map[int64]postgres.Handled{0: *c.handled}
		}
		w.table(s)
		snapshot := w.settle()
		want := ""
		if c.want != "" {
			want = "g db 0 t " + c.want
		}
		if got := values(snapshot); got != want {
			t.Errorf("%s: %q, want %q (%s)", name, got, want, snapshot.Series[0].Partitions[0].Why)
		}
		p := snapshot.Find("db", "g", "t").Partitions[0]
		if len(p.Gone) != len(c.gone) || len(p.Gone) > 0 && p.Gone[0] != c.gone[0] {
			t.Errorf("%s: gone %v, want %v", name, p.Gone, c.gone)
		}
		if p.Unseen != c.unseen {
			t.Errorf("%s: %d unseen, want %d", name, p.Unseen, c.unseen)
		}
		if p.Unprotected.OK != (p.Why == "") {
			t.Errorf("%s: %+v, but %q", name, p.Unprotected, p.Why)
		}
	}
}

// Several topics of a group, several groups of a topic, two stores; a group
// without markers is none of ours.
func TestSubjectsAreKeptApart(t *testing.T) {
	w := newWorld(t)
	w.partition("a", 0, 0, 100, t0)
	w.partition("a", 1, 50, 100, t0)
	w.partition("b", 0, 0, 100, t0)
	w.commit("g", "a", 100, 100)
	w.commit("g", "b", 100)
	w.commit("h", "a", 100, 100)
	w.commit("other", "a", 100, 100)
	m := w.table(
		marks("g", "a", map[int64]postgres.Handled{0: {Gone: []postgres.Gone{gone(0, 9, t0)}}, 1: {Gone: []postgres.Gone{gone(0, 59, t0)}}}),
		marks("g", "b", map[int64]postgres.Handled{0: {}}),
		marks("h", "a", map[int64]postgres.Handled{0: {}, 1: {From: 70}}),
		marks("not on this cluster", "a", map[int64]postgres.Handled{0: {}}),
	)
	second := *m
	second.Database = "db2"
	second.Series = []postgres.Series{marks("g", "a", map[int64]postgres.Handled{0: {}, 1: {}})}
	w.markers = append(w.markers, &second)
	s := w.settle()
	w.want(s, "g db 0 a 10", "g db 1 a 10", "g db 0 b 0", "h db 0 a 0", "g db2 0 a 0", "g db2 1 a 0")
	if n := s.Find("db", "g", "a").Unprotected(); n != known(int64(20)) {
		t.Errorf("sum %+v, want 20", n)
	}
	if n := s.Find("db", "h", "a").Unprotected(); n.OK {
		t.Errorf("sum %+v where a partition is not known, want none", n)
	}

	w = newWorld(t, func(o *Options) { o.ByTopic = true })
	w.partition("a", 0, 0, 100, t0)
	w.partition("a", 1, 50, 100, t0)
	w.commit("g", "a", 100, 100)
	w.commit("h", "a", 100, 100)
	w.commit("i", "a", 100, 100)
	w.table(
		marks("g", "a", map[int64]postgres.Handled{0: {Gone: []postgres.Gone{gone(0, 9, t0)}}, 1: {From: 70}}),
		marks("h", "a", map[int64]postgres.Handled{0: {}, 1: {From: 70}}),
		marks("i", "a", map[int64]postgres.Handled{0: {}, 1: {}}),
	)
	w.want(w.settle(), "g db a 10", "i db a 0")
}

// A commit that was read after the markers may cover offsets whose markers were
// not seen yet: no false alarm while a replay writes them again.
func TestCommitsAreReadBeforeMarkers(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 0, 1000, t0)
	w.commit("g", "t", 1000)
	w.table(marks("g", "t", map[int64]postgres.Handled{0: {Gone: []postgres.Gone{gone(0, 499, t0)}}}))
	w.now = w.now.Add(time.Second)
	w.want(w.poll()) // the commit was not there when the markers were read
	w.want(w.settle(), "g db 0 t 500")
	// Reset to earliest: nothing is below the commit.
	w.commit("g", "t", 0)
	w.want(w.poll(), "g db 0 t 0")
	// The replay has passed 300; the markers were read at 200.
	w.table(marks("g", "t", map[int64]postgres.Handled{0: {Gone: []postgres.Gone{gone(200, 499, t0)}}}))
	w.now = w.now.Add(time.Second)
	w.commit("g", "t", 300)
	w.want(w.poll(), "g db 0 t 0")
	w.table(marks("g", "t", map[int64]postgres.Handled{0: {}}))
	w.commit("g", "t", 1000)
	w.want(w.poll(), "g db 0 t 0")
	w.want(w.settle(), "g db 0 t 0")
}

// The head of the log that is gone since the snapshot, by retention, deletion
// or compaction, is not counted.
func TestTheLogIsAskedAgain(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 0, 1000, t0)
	w.partition("t", 1, 0, 1000, t0)
	w.partition("t", 2, 0, 1000, t0)
	w.partition("t", 3, 0, 1000, t0)
	w.commit("g", "t", 900, 900, 900, 900)
	lost := postgres.Handled{Gone: []postgres.Gone{gone(0, 499, t0)}}
	w.table(marks("g", "t", map[int64]postgres.Handled{0: lost, 1: lost, 2: {From: 600}, 3: {}}))
	w.settle()
	w.log.records["t"][0] = w.log.records["t"][0][480:]
	w.log.records["t"][1] = nil
	w.log.records["t"][2] = w.log.records["t"][2][700:]
	s := w.settle()
	w.want(s, "g db 0 t 20", "g db 1 t 0", "g db 2 t 0", "g db 3 t 0")
	if n := w.log.asked; n != 4 {
		t.Errorf("%d rounds of questions in 4 polls, want one each", n)
	}

	// What cannot be asked is absent, and named once; the rest stays.
	w.log.fails["t/0"] = errDenied
	s = w.poll()
	w.want(s, "g db 1 t 0", "g db 2 t 0", "g db 3 t 0")
	if p := s.Problems(); len(p) != 1 || p[0].Kind != "denied" {
		t.Errorf("problems %v", p)
	}
	w.log.down = errDenied
	s = w.poll()
	w.want(s, "g db 3 t 0")
	if p := s.Problems(); len(p) != 1 || p[0].Kind != "denied" {
		t.Errorf("problems %v", p)
	}
	// Where nothing is gone nothing is asked.
	w.table(marks("g", "t", map[int64]postgres.Handled{0: {}, 1: {}, 2: {}, 3: {}}))
	w.log.asked = 0
	w.want(w.poll(), "g db 0 t 0", "g db 1 t 0", "g db 2 t 0", "g db 3 t 0")
	if w.log.asked != 0 {
		t.Errorf("asked %d times for nothing", w.log.asked)
	}
}

// case K4: a leaderless partition and a topic that cannot be read cost their
// own series.
func TestWhatCannotBeReadIsAbsent(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 0, 1000, t0)
	w.partition("t", 1, 0, 1000, t0)
	w.topics.Topics["t"].Partitions[1] = kafka.Partition{}
	w.topics.Topics["denied"] = &kafka.Topic{Name: "denied"}
	w.commit("g", "t", 900, 900)
	w.commit("g", "denied", 900)
	w.commit("g", "unknown", 900)
	all := map[int64]postgres.Handled{0: {}, 1: {}}
	m := w.table(marks("g", "t", all), marks("g", "denied", all), marks("g", "unknown", all))
	w.want(w.settle(), "g db 0 t 0")
	for reason, want := range map[postgres.Reason]string{
		postgres.ReasonUnexplained: "", postgres.ReasonCatchingUp: "", postgres.ReasonRole: "g db 0 t 0",
	} {
		m = w.table(m.Series...)
		m.Inexact = []postgres.Reason{reason}
		if got := values(w.poll()); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
	m = w.table(m.Series...)
	m.Ready = false
	w.want(w.poll())
	w.commit("g", "t", 0, 900) // nothing handled: no markers are needed to say so
	w.want(w.poll(), "g db 0 t 0")
	w.groups.Groups[0].Readable = false
	if s := w.poll(); len(s.Series) != 0 {
		t.Errorf("%+v of a group whose commits could not be read", s.Series)
	}
	w.groups = nil
	if _, err := w.source.Poll(t.Context()); poll.Kind(err) != "waiting" || !strings.Contains(err.Error(), "groups") {
		t.Errorf("error %v", err)
	}
}

// What was learnt of a topic is void when it is made anew.
func TestRecreatedTopic(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 0, 1000, t0)
	w.commit("g", "t", 1000)
	old := []postgres.Gone{gone(0, 499, t0.Add(-day))}
	w.table(marks("g", "t", map[int64]postgres.Handled{0: {Gone: old}}))
	w.want(w.settle(), "g db 0 t 500")
	// Its id cannot be read for a while, then it is the same.
	w.topics.Topics["t"].ID = kafka.TopicID{}
	w.want(w.settle(), "g db 0 t 500")
	w.topics.Topics["t"].ID = kafka.TopicID{1}
	w.want(w.settle(), "g db 0 t 500")
	// Another, in which the group begins at 40.
	w.topics = &kafka.Topics{Topics: map[string]*kafka.Topic{}}
	w.partition("t", 0, 0, 100, w.now)
	w.topics.Topics["t"].ID = kafka.TopicID{2}
	w.commit("g", "t", 100)
	w.want(w.settle(), "g db 0 t 0")
	// More of the old topic's markers go, and then some of the new one's.
	anew := w.now
	w.now = w.now.Add(day)
	w.table(marks("g", "t", map[int64]postgres.Handled{0: {Gone: append(old, gone(20, 39, t0))}}))
	w.want(w.settle(), "g db 0 t 0")
	w.table(marks("g", "t", map[int64]postgres.Handled{0: {Gone: []postgres.Gone{old[0], gone(40, 59, anew.Add(time.Minute)), gone(500, 999, t0)}}}))
	w.want(w.settle(), "g db 0 t 20")
}

// case P4 and a table of one group without the column.
func TestTablesWithLessColumns(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 0, 1000, t0)
	w.commit("only", "t", 1000)
	m := w.table(marks("", "t", map[int64]postgres.Handled{0: {Gone: []postgres.Gone{gone(0, 9, t0)}}}))
	m.Table.Has.Group = ""
	w.want(w.settle(), "only db 0 t 10")
	w.commit("second", "t", 1000)
	w.want(w.settle())
}

func TestRangesAreFew(t *testing.T) {
	var ranges []Range
	for i := range int64(20) {
		ranges = append(ranges, Range{i * 10, i*10 + 8})
	}
	ranges = append(ranges, Range{1000, 1001})
	got := fewer(ranges)
	if len(got) != maxRanges || got[0].First != 0 || got[len(got)-1] != (Range{1000, 1001}) || got[len(got)-2].Last != 198 {
		t.Errorf("%v", got)
	}
}
