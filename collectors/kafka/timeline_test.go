package kafka

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// simulatedLog answers as a broker does, from the timestamps of its records.
type simulatedLog struct {
	start  int64
	stamps []int64 // of offsets start, start+1, …
	gone   []int64 // before start, in segments that are not deleted yet
	remote bool    // all of it in the remote tier: no newest record is found
}

func (l simulatedLog) end() int64 { return l.start + int64(len(l.stamps)) }

func (l simulatedLog) list(timestamp int64) listed {
	if timestamp == atNewest {
		if len(l.stamps) == 0 || l.remote {
			return listed{offset: -1, timestamp: -1}
		}
		i := slices.Index(l.stamps, slices.Max(l.stamps))
		return listed{offset: l.start + int64(i), timestamp: l.stamps[i]}
	}
	if len(l.gone) > 0 && slices.Max(l.gone) >= timestamp {
		return listed{offset: -1, timestamp: -1}
	}
	for i, s := range l.stamps {
		if s >= timestamp {
			return listed{offset: l.start + int64(i), timestamp: s}
		}
	}
	return listed{offset: -1, timestamp: -1}
}

// ask runs steps until nothing more is asked, and says how many there were.
func (t *timeline) ask(l simulatedLog, offsets []int64, now int64, most int) int {
	for steps := range most {
		if t.wantsFirst(l.start, l.end()) {
			t.sawFirst(l.start, l.list(0))
			continue
		}
		timestamp, more := t.next(t.open(offsets), now)
		if !more {
			return steps
		}
		if a := l.list(timestamp); timestamp == atNewest {
			t.sawNewest(l.end(), now, a)
		} else {
			t.saw(timestamp, a)
		}
	}
	return most
}

const testNow = int64(1_800_000_000_000)

func ago(d time.Duration) int64 { return testNow - d.Milliseconds() }

// runningMax is what after promises to tell, exactly.
func (l simulatedLog) runningMax(offset int64) int64 { return slices.Max(l.stamps[:offset-l.start+1]) }

func TestTimelineFindsEveryOffset(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	burst := func() (s []int64) {
		for range 1000 {
			s = append(s, ago(2*time.Hour))
		}
		return s
	}
	steady := func() (s []int64) {
		for i := range 5000 {
			s = append(s, ago(50*time.Minute)+int64(i)*600)
		}
		return s
	}
	gaps := func() (s []int64) {
		at := ago(7 * 24 * time.Hour)
		for at < testNow {
			s = append(s, at)
			at += int64(random.ExpFloat64() * 60_000)
			if random.IntN(300) == 0 {
				at += (8 * time.Hour).Milliseconds()
			}
		}
		return s
	}
	disorder := func() (s []int64) {
		for i := range 3000 {
			s = append(s, ago(30*time.Minute)+int64(i)*500+random.Int64N(20_000))
		}
		return s
	}
	for name, stamps := range map[string][]int64{"burst": burst(), "steady": steady(), "gaps": gaps(), "disorder": disorder(), "one": {ago(time.Hour)}} {
		whole := simulatedLog{start: 17, stamps: stamps}
		for i := range 400 {
			l := whole
			if i%2 == 1 { // DeleteRecords has been there
				n := random.Int64N(int64(len(stamps)))
				l = simulatedLog{start: l.start + n, stamps: stamps[n:], gone: stamps[:n]}
			}
			l.remote = i%4 == 2
			offset := l.start + random.Int64N(int64(len(l.stamps)))
			line := newTimeline(TopicID{})
			if steps := line.ask(l, []int64{offset}, testNow, 100); steps == 100 {
				t.Fatalf("%s: no end of asking for offset %d", name, offset)
			}
			got, ok := line.after(offset, testNow)
			want := l.runningMax(offset)
			if len(l.gone) > 0 { // records that are gone may count or not
				want = min(max(want, got), max(want, slices.Max(l.gone)))
			}
			if tolerance := max(1000, (testNow-want)/100+1); !ok || abs(got-want) > tolerance {
				t.Fatalf("%s: offset %d: got %v (%v), want %v: off by %d ms", name, offset, got, ok, want, got-want)
			}
			if got > testNow {
				t.Fatalf("%s: a record of the future", name)
			}
		}
	}
}

func TestTimelineFewStepsWhereAGroupMovesOn(t *testing.T) {
	var stamps []int64
	for i := range 100_000 {
		stamps = append(stamps, ago(time.Hour)+int64(i)*36)
	}
	line := newTimeline(TopicID{})
	steps, known := 0, 0
	const polls = 50
	for poll := range polls {
		// A group ten minutes behind, of a producer at 28/s, each 15 seconds.
		now := ago(30*time.Minute) + int64(poll)*15_000
		n, _ := slices.BinarySearch(stamps, now)
		l := simulatedLog{stamps: stamps[:n]}
		at, _ := slices.BinarySearch(stamps, now-600_000)
		line.ask(l, []int64{int64(at)}, now, 2) // what a poll has left
		if ms, ok := line.after(int64(at), now); ok {
			known++
			if abs(ms-stamps[at]) > 6000 {
				t.Errorf("poll %d: off by %d ms", poll, ms-stamps[at])
			}
		}
		line.prune([]int64{int64(at)})
		steps += 2
	}
	if known < polls-3 {
		t.Errorf("known in %d of %d polls, want all but the first few", known, polls)
	}
	if len(line.marks) > maxMarks {
		t.Errorf("%d marks are kept", len(line.marks))
	}
}

func TestTimelineHeadMovesAndTopicIsMadeAnew(t *testing.T) {
	l := simulatedLog{stamps: []int64{ago(3 * time.Hour), ago(2 * time.Hour), ago(time.Hour)}}
	line := newTimeline(TopicID{})
	line.ask(l, nil, testNow, 10)
	if line.first.timestamp != ago(3*time.Hour) {
		t.Errorf("first record: %+v", line.first)
	}
	l = simulatedLog{start: 1, stamps: l.stamps[1:]}
	if !line.wantsFirst(l.start, l.end()) {
		t.Error("the log start has moved, and nothing asks for the new first record")
	}
	line.ask(l, nil, testNow, 10)
	if line.first.timestamp != ago(2*time.Hour) {
		t.Errorf("first record after the head was deleted: %+v", line.first)
	}
	// What was known before helps where the broker does not tell.
	l = simulatedLog{start: 2, stamps: l.stamps[1:], gone: l.stamps[:1]}
	line.ask(l, nil, testNow, 10)
	if ms, ok := line.after(2, testNow); !ok || ms != ago(time.Hour) {
		t.Errorf("first record behind segments that are not deleted yet: %d, %v", ms, ok)
	}
	line.reset(TopicID{1})
	if !line.wantsFirst(0, 5) || len(line.marks) != 0 {
		t.Errorf("a topic made anew keeps what was known of the old: %+v", line)
	}
	line.sawFirst(0, listed{offset: -1, timestamp: -1})
	if line.wantsFirst(0, 5) {
		t.Errorf("no first record, and it is asked for again at once: %+v", line)
	}
}

func TestTimelineKeepsItsMouthShut(t *testing.T) {
	line := newTimeline(TopicID{})
	for _, offset := range []int64{0, 5} {
		if ms, ok := line.after(offset, testNow); ok {
			t.Errorf("tells %d of offset %d without having asked", ms, offset)
		}
	}
	// Only the ends are known, days apart.
	line.sawFirst(0, listed{offset: 0, timestamp: ago(48 * time.Hour)})
	line.sawNewest(1000, testNow, listed{offset: 999, timestamp: ago(time.Minute)})
	if ms, ok := line.after(500, testNow); ok {
		t.Errorf("tells %d from a bracket of two days", ms)
	}
	if ms, ok := line.after(0, testNow); !ok || ms != ago(48*time.Hour) {
		t.Errorf("first record: %d, %v", ms, ok)
	}
	if ms, ok := line.after(999, testNow); !ok || ms != ago(time.Minute) {
		t.Errorf("newest record: %d, %v", ms, ok)
	}
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
