package retention

import (
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
)

// One partition: log from start to end, committed, what the markers tell.
func TestByOffset(t *testing.T) {
	with := func(h postgres.Handled) *postgres.Handled { return &h }
	long := t0.Add(-8 * day)
	for name, c := range map[string]struct {
		start, end, committed int64
		handled               *postgres.Handled
		want                  string // "" absent
		ranges                []Range
		safe                  int64 // -1 absent
	}{
		"nothing gone": {100, 1000, 900, with(from(0)), "0", nil, 100},
		"gone below the log start, as it should be":              {100, 1000, 900, with(from(0, gone(0, 99, long))), "0", nil, 100},
		"the pruner is too quick":                                {100, 1000, 900, with(from(0, gone(0, 499, long))), "400", []Range{{100, 500, 400, 0}}, 500},
		"up to one record":                                       {100, 1000, 900, with(from(0, gone(0, 100, long))), "1", []Range{{100, 101, 1, 0}}, 101},
		"all of them (TRUNCATE)":                                 {100, 1000, 900, with(from(0, gone(0, 899, long))), "800", []Range{{100, 900, 800, 0}}, 900},
		"never beyond the commit":                                {100, 1000, 900, with(from(0, gone(0, 999, long))), "800", []Range{{100, 900, 800, 0}}, 900},
		"a deletion in the middle":                               {100, 1000, 900, with(from(0, gone(300, 309, long))), "10", []Range{{300, 310, 10, 0}}, 310},
		"a group that began before we looked, at latest perhaps": {0, 1000, 900, with(from(800)), "0+800", []Range{{0, 800, 0, 800}}, 800},
		"the same, whose log start has come by":                  {800, 1000, 900, with(from(800)), "0", nil, 800},
		"a restart of the exporter, and then a prune": {0, 1000, 900, with(from(400, gone(400, 499, long))), "100+400",
			[]Range{{0, 400, 0, 400}, {400, 500, 100, 0}}, 500},
		"no marker was ever seen":        {0, 1000, 900, nil, "0+900", []Range{{0, 900, 0, 900}}, 900},
		"no marker, and nothing handled": {0, 1000, 0, nil, "0", nil, 0},
		"the commit is below the log":    {500, 1000, 400, nil, "0", nil, 500},
		"an empty log":                   {900, 900, 900, nil, "0", nil, 900},
		"the commit is beyond the log":   {0, 10, 900, with(from(0, gone(0, 99, long))), "", nil, -1},
		"never more than there are offsets": {100, 1000, 900,
			with(from(0, handled.Range{First: 0, Last: 999, Least: 900, Most: 900}, handled.Range{First: 0, Last: 999, Least: 800, Most: 800})), "800", []Range{{100, 900, 800, 0}}, 900},
		"markers beyond the commit tell nothing of what is below": {100, 1000, 900, with(from(950)), "0+800", []Range{{100, 900, 0, 800}}, 900},
		"where a range with gaps is cut, both numbers say so": {500, 1000, 900,
			with(from(0, handled.Range{First: 0, Last: 999, Least: 700, Most: 700})), "100+300", []Range{{500, 900, 100, 300}}, 900},
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
		if got := p.Ranges(0); !slices.Equal(got, c.ranges) {
			t.Errorf("%s: ranges %v, want %v", name, got, c.ranges)
		}
		if p.Safe.OK != (c.safe >= 0) || p.Safe.OK && p.Safe.Value != c.safe {
			t.Errorf("%s: safe %+v, want %d", name, p.Safe, c.safe)
		}
		if p.Unverified.OK != p.Unprotected.OK || (p.Why == "") != (p.Unverified.OK && p.Unverified.Value == 0) {
			t.Errorf("%s: %+v, %+v, but %q", name, p.Unprotected, p.Unverified, p.Why)
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
		marks("g", "a", map[int64]postgres.Handled{0: from(0, gone(0, 9, t0)), 1: from(0, gone(0, 59, t0))}),
		marks("g", "b", map[int64]postgres.Handled{0: {}}),
		marks("h", "a", map[int64]postgres.Handled{0: {}, 1: from(70)}),
		marks("not on this cluster", "a", map[int64]postgres.Handled{0: {}}),
	)
	second := *m
	second.Database = "db2"
	second.Series = []postgres.Series{marks("g", "a", map[int64]postgres.Handled{0: {}, 1: {}})}
	w.markers = append(w.markers, &second)
	s := w.settle()
	w.want(s, "g db 0 a 10", "g db 1 a 10", "g db 0 b 0", "h db 0 a 0", "h db 1 a 0+20", "g db2 0 a 0", "g db2 1 a 0")
	if n := s.Find("db", "g", "a").Unprotected(); n != known(int64(20)) {
		t.Errorf("sum %+v, want 20", n)
	}
	if n, u := s.Find("db", "h", "a").Unprotected(), s.Find("db", "h", "a").Unverified(); n != known(int64(0)) || u != known(int64(20)) {
		t.Errorf("sums %+v and %+v, want 0 and 20", n, u)
	}

	w = newWorld(t, func(o *Options) { o.ByTopic = true })
	w.partition("a", 0, 0, 100, t0)
	w.partition("a", 1, 50, 100, t0)
	w.commit("g", "a", 100, 100)
	w.commit("h", "a", 100, 100)
	w.commit("i", "a", 100, 100)
	w.table(
		marks("g", "a", map[int64]postgres.Handled{0: from(0, gone(0, 9, t0)), 1: from(70)}),
		marks("h", "a", map[int64]postgres.Handled{0: {}, 1: from(70)}),
		marks("i", "a", map[int64]postgres.Handled{0: {}, 1: {}}),
	)
	w.want(w.settle(), "g db a 10+20", "h db a 0+20", "i db a 0")
}

// A commit that was read after the markers may cover offsets whose markers were
// not seen yet: no false alarm while a replay writes them again.
func TestCommitsAreReadBeforeMarkers(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 0, 1000, t0)
	w.commit("g", "t", 1000)
	w.table(marks("g", "t", map[int64]postgres.Handled{0: from(0, gone(0, 499, t0))}))
	w.now = w.now.Add(time.Second)
	w.want(w.poll()) // the commit was not there when the markers were read
	w.want(w.settle(), "g db 0 t 500")
	// Reset to earliest: nothing is below the commit.
	w.commit("g", "t", 0)
	w.want(w.poll(), "g db 0 t 0")
	// The replay has passed 300; the markers were read at 200.
	w.table(marks("g", "t", map[int64]postgres.Handled{0: from(0, gone(200, 499, t0))}))
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
	lost := from(0, gone(0, 499, t0))
	w.table(marks("g", "t", map[int64]postgres.Handled{0: lost, 1: lost, 2: from(600), 3: {}}))
	w.settle()
	w.log.records["t"][0] = w.log.records["t"][0][480:]
	w.log.records["t"][1] = nil
	w.log.records["t"][2] = w.log.records["t"][2][700:]
	s := w.settle()
	w.want(s, "g db 0 t 20", "g db 1 t 0", "g db 2 t 0", "g db 3 t 0")
	if n := w.log.asked; n > 4*(1+rewindRounds) {
		t.Errorf("%d rounds of questions in 4 polls, want one each, and those for the safe times", n)
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

// A leaderless partition and a topic that cannot be read cost their
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
		postgres.ReasonUnexplained: "g db 0 t 0+900", postgres.ReasonCatchingUp: "g db 0 t 0+900", postgres.ReasonRole: "g db 0 t 0",
	} {
		m = w.table(m.Series...)
		m.Inexact = []postgres.Reason{reason}
		if got := values(w.poll()); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
	m = w.table(m.Series...)
	m.Ready = false
	w.want(w.poll(), "g db 0 t 0+900")
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
	old := []handled.Range{gone(0, 499, t0.Add(-day))}
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
	w.table(marks("g", "t", map[int64]postgres.Handled{0: from(0, old[0], gone(40, 59, anew.Add(time.Minute)), gone(500, 999, t0))}))
	w.want(w.settle(), "g db 0 t 20")
}

// Tables without a column for the topic, or for the group.
func TestTablesWithLessColumns(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 0, 1000, t0)
	w.commit("only", "t", 1000)
	m := w.table(marks("", "t", map[int64]postgres.Handled{0: from(0, gone(0, 9, t0))}))
	m.Table.Has.Group = ""
	w.want(w.settle(), "only db 0 t 10")
	w.commit("second", "t", 1000)
	w.want(w.settle())
}

func TestRangesAreFew(t *testing.T) {
	p := Partition{LogStart: known(int64(0)), Committed: 1002}
	for i := range int64(20) {
		p.Gone = append(p.Gone, gone(i*10, i*10+8, t0))
	}
	p.Gone = append(p.Gone, gone(1000, 1001, t0))
	p.Unseen = []handled.Range{{First: 195, Last: 300, Most: 106}}
	got := p.Ranges(8)
	if len(got) != 8 || got[0].From != 0 || got[7] != (Range{1000, 1002, 2, 0}) || got[6].To != 301 {
		t.Errorf("%v", got)
	}
	var sum, unverified int64
	for _, r := range got {
		sum, unverified = sum+r.Gone, unverified+r.Unverified
	}
	if sum != 182 || unverified != 102 {
		t.Errorf("%d gone and %d unverified in %v, want 182 and the 102 that are left of 106", sum, unverified, got)
	}
}
