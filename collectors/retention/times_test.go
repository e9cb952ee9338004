package retention

import (
	"testing"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// timeWorld is a table without offsets. The log has a record a minute.
func timeWorld(t *testing.T, change ...func(*Options)) *world {
	w := newWorld(t, change...)
	w.offsets = false
	return w
}

// timed is a series whose oldest marker and newest pruned one are of the given
// ages; 0: none.
func timed(w *world, group, topic string, rows int64, oldest, pruned time.Duration) postgres.Series {
	s := postgres.Series{Group: group, Topic: topic, Counted: true, Rows: rows}
	if oldest > 0 {
		s.Oldest = column(w.now.Add(-oldest))
	}
	if pruned > 0 {
		s.Pruning, s.ObservedRetention, s.PrunedTo = true, pruned, column(w.now.Add(-pruned))
	}
	return s
}

// A week of records, a minute apart.
const week = 7 * 24 * 60

func weekOfRecords(w *world) {
	w.partition("t", 0, 1000, 1000+week, w.now.Add(-7*day))
	w.commit("g", "t", 1000+week)
}

func TestByTime(t *testing.T) {
	for name, c := range map[string]struct {
		rows           int64
		oldest, pruned time.Duration
		want           string
	}{
		"markers reach back beyond the log":        {8 * 24 * 60, 8 * day, 0, "g db 0 t 0"},
		"pruned, and beyond the log":               {8 * 24 * 60, 8 * day, 8*day + time.Minute, "g db 0 t 0"},
		"no pruning seen, younger than the log":    {3 * 24 * 60, 3 * day, 0, "g db 0 t 0+10080"},
		"one old straggler proves nothing":         {3*24*60 + 1, 8 * day, 0, "g db 0 t 0+10080"},
		"a straggler, but pruning was seen":        {3*24*60 + 1, 9 * day, 3 * day, "g db 0 t 5759+2"},
		"pruned at 3 days":                         {3 * 24 * 60, 3 * day, 3 * day, "g db 0 t 5759+2"},
		"too close in time to tell":                {week, 7 * day, 7*day - 30*time.Second, "g db 0 t 0+2"},
		"lag: as many markers as records are left": {week, 3 * day, 3 * day, "g db 0 t 0+5761"},
		"lag: some of them are":                    {week - 100, 3 * day, 3 * day, "g db 0 t 100+5661"},
		"no markers at all, and never any":         {0, 0, 0, "g db 0 t 0+10080"},
	} {
		w := timeWorld(t)
		weekOfRecords(w)
		// Seen by an exporter that has been there from the start.
		w.now = w.now.Add(-20 * day)
		if c.oldest > 0 {
			w.table(timed(w, "g", "t", 1, time.Hour, 0))
			w.commit("g", "t", 0)
			w.poll()
		}
		w.now = w.now.Add(20 * day)
		w.commit("g", "t", 1000+week)
		w.table(timed(w, "g", "t", c.rows, c.oldest, c.pruned))
		s := w.poll()
		if got := values(s); got != c.want {
			t.Errorf("%s: %q, want %q (%+v)", name, got, c.want, *s.Series[0].Partitions[0])
		}
		if s.Series[0].Exact {
			t.Errorf("%s: called exact", name)
		}
	}
}

// A restart: what the exporter has not seen handled is unknown, and a group that
// began at latest is not exposed by what it never handled.
func TestByTimeAfterARestart(t *testing.T) {
	w := timeWorld(t)
	weekOfRecords(w)
	w.table(timed(w, "g", "t", 3*24*60, 3*day, 0))
	w.want(w.poll(), "g db 0 t 0+5761")
	// An hour later an hour's markers are gone: those are known, the rest is not.
	w.now = w.now.Add(time.Hour)
	w.table(timed(w, "g", "t", 3*24*60-60, 3*day, 3*day))
	s := w.poll()
	w.want(s, "g db 0 t 58+5763")
}

// After a replay the records have new markers, whatever their timestamps say.
func TestByTimeAfterAReplay(t *testing.T) {
	w := timeWorld(t)
	weekOfRecords(w)
	w.table(timed(w, "g", "t", 8*24*60, 8*day, 0))
	w.poll()
	w.table(timed(w, "g", "t", 3*24*60, 3*day, 3*day))
	w.want(w.poll(), "g db 0 t 5759+2")
	w.commit("g", "t", 1000)
	w.want(w.poll(), "g db 0 t 0")
	w.commit("g", "t", 1000+week)
	// Half of the new markers are not counted yet: still no false alarm.
	w.table(timed(w, "g", "t", 5*24*60, 3*day, 3*day))
	w.want(w.poll(), "g db 0 t 0+5761")
	w.table(timed(w, "g", "t", week, 3*day, 3*day))
	w.want(w.poll(), "g db 0 t 0")
}

// case: producers with wrong clocks. The future hides records and is no zero;
// the past is never counted while markers are left for every record.
func TestByTimeWithWrongClocks(t *testing.T) {
	w := timeWorld(t)
	w.partition("t", 0, 0, 1000, t0.Add(365*day))
	w.commit("g", "t", 1000)
	w.table(timed(w, "g", "t", 1000, 8*day, 3*day))
	w.want(w.poll(), "g db 0 t 0+1000")
	w.partition("t", 0, 0, 1000, t0.Add(-365*day))
	w.want(w.poll(), "g db 0 t 0+1000")
}

// Without a topic column, pruning is seen for the group; of each topic only
// what it has handled since counts.
func TestByTimeWithoutTopics(t *testing.T) {
	w := timeWorld(t)
	w.partition("t", 0, 0, week, t0.Add(-7*day))
	w.partition("u", 0, 0, week, t0.Add(-7*day))
	w.commit("g", "t", week)
	w.commit("g", "u", week)
	topicless := func(rows int64, pruned time.Duration) {
		m := w.table(timed(w, "g", "", rows, 3*day, pruned))
		m.Table.Has.Topic = ""
	}
	topicless(2*3*24*60, 0)
	w.want(w.poll(), "g db 0 t 0+5761", "g db 0 u 0+5761")
	w.partition("t", 0, 0, 2*week, t0.Add(-7*day))
	w.commit("g", "t", 2*week)
	w.now = w.now.Add(7 * day)
	topicless(3*24*60, 3*day)
	w.want(w.poll(), "g db 0 t 5759+10082", "g db 0 u 0+10080")
}

// What was seen to be pruned stays so: it does not move with the clock, nor back
// when older stragglers go, and never beyond the commit.
func TestByTimeRemembersTheNewestPruned(t *testing.T) {
	w := timeWorld(t)
	weekOfRecords(w)
	w.table(timed(w, "g", "t", 8*24*60, 8*day, 0))
	w.poll()
	w.table(timed(w, "g", "t", 3*24*60, 3*day, 3*day))
	w.want(w.poll(), "g db 0 t 5759+2")
	w.now = w.now.Add(day)
	w.table(timed(w, "g", "t", 3*24*60, 4*day, 4*day))
	w.want(w.poll(), "g db 0 t 5759+2")
	w.table(timed(w, "g", "t", 3*24*60-1, 4*day, 9*day))
	w.want(w.poll(), "g db 0 t 5759+2")

	w = timeWorld(t)
	weekOfRecords(w)
	w.partition("t", 1, 0, week, w.now.Add(-7*day))
	w.commit("g", "t", 1000+100, 3000)
	w.table(timed(w, "g", "t", 3100, 8*day, 0))
	w.poll()
	w.table(timed(w, "g", "t", 0, 0, 3*day))
	w.want(w.poll(), "g db 0 t 100", "g db 1 t 3000")
}

func TestByTimeAsksOnceForManyGroups(t *testing.T) {
	w := timeWorld(t)
	weekOfRecords(w)
	for _, g := range []string{"g", "h", "i"} {
		w.commit(g, "t", 1000+week)
	}
	table := func(rows int64, pruned time.Duration) {
		w.table(timed(w, "g", "t", rows, 8*day, pruned), timed(w, "h", "t", rows, 8*day, pruned), timed(w, "i", "t", rows, 8*day, pruned))
	}
	table(8*24*60, 0)
	w.poll()
	table(3*24*60, 3*day)
	w.log.asked = 0
	w.want(w.poll(), "g db 0 t 5759+2", "h db 0 t 5759+2", "i db 0 t 5759+2")
	if w.log.asked > 3+rewindRounds {
		t.Errorf("%d rounds, want 3, the same times for all, and those for the safe time", w.log.asked)
	}
	w.topics = &kafka.Topics{Topics: map[string]*kafka.Topic{}}
	w.want(w.poll())
}

// What the broker cannot find by time is no zero: which records are older than
// the pruned markers is not known then, nor, after a restart, which are younger
// than the oldest.
func TestByTimeWhereTheBrokerCannotLookByTime(t *testing.T) {
	w := timeWorld(t)
	weekOfRecords(w)
	w.table(timed(w, "g", "t", 8*24*60, 8*day, 0))
	w.poll()
	w.table(timed(w, "g", "t", 3*24*60, 3*day, 3*day))
	w.log.blind = true
	w.want(w.poll(), "g db 0 t 0+10080")
	w.log.blind = false
	w.want(w.poll(), "g db 0 t 5759+2")

	for what, c := range map[string]struct {
		hinder func(*fakeLog)
		want   string
	}{
		"cannot look by time": {func(l *fakeLog) { l.blind = true }, "g db 0 t 0+10080"},
		"does not answer":     {func(l *fakeLog) { l.fails["t/0"] = errDenied }, ""},
	} {
		w = timeWorld(t)
		weekOfRecords(w)
		c.hinder(&w.log)
		// An old marker that was left behind, and those of three days.
		w.table(timed(w, "g", "t", 3*24*60+1, 8*day, 0))
		if got := values(w.poll()); got != c.want {
			t.Errorf("the broker %s: %q, want %q", what, got, c.want)
		}
	}
}

// The log start is the most that can be there of a log whose first record the
// broker does not find.
func TestTheLogStartBoundsWhatIsExposed(t *testing.T) {
	w := newWorld(t)
	w.partition("t", 0, 300, 800, t0.Add(-7*day))
	w.commit("g", "t", 800)
	w.table(marks("g", "t", map[int64]postgres.Handled{0: from(0, gone(0, 693, t0))}))
	w.log.blind = true
	w.want(w.settle(), "g db 0 t 394")
}
