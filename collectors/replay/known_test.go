package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/replay"
)

// A random log: for any target the truth lies within the bounds, the safe
// offset is safe, and so is the plan; the safe time leads to a safe offset, and
// a second earlier does not.
func TestKnowledgeBoundsTheTruth(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		start, n := r.Int64N(50), 1+r.Int64N(60)
		commit := start + r.Int64N(n+1)
		gone := make([]bool, start+n) // the truth
		log := &fakeLog{start: start}
		at := from
		for o := range start + n {
			gone[o] = r.IntN(3) == 0
			at = at.Add(time.Duration(r.IntN(5000)-500) * time.Millisecond) // now and then backwards
			log.times = append(log.times, at)
		}
		known := replay.Known{}
		for o := int64(0); o < start+n; {
			last := min(start+n-1, o+r.Int64N(10))
			var in int64
			for i := o; i <= last; i++ {
				if gone[i] {
					in++
				}
			}
			switch {
			case in == 0:
			case r.IntN(4) == 0:
				known.Unverified = append(known.Unverified, handled.Range{First: o, Last: last, Most: last - o + 1})
			default:
				known.Gone = append(known.Gone, handled.Range{First: o, Last: last, Least: r.Int64N(in + 1), Most: in + r.Int64N(last-o+2-in)})
			}
			o = last + 1
		}
		to := start + r.Int64N(n+1)
		a := &replay.Answer{Group: "g", At: at.Add(time.Hour), To: fmt.Sprint("offset:", to), Topics: []replay.Topic{{Topic: "t", Partitions: []replay.Partition{
			{LogStart: start, LogEnd: start + n, Committed: commit, Target: to, Counts: replay.Counts{Skipped: max(0, to-commit)}}}}}}
		a.Know(func(string, int32) (replay.Known, bool) { return known, true })
		if err := a.SafeTimes(t.Context(), log); err != nil {
			t.Fatal(err)
		}
		truth := func(from int64) (twice int64) {
			for o := from; o < commit; o++ {
				if gone[o] {
					twice++
				}
			}
			return twice
		}
		c, p := a.Totals, a.Topics[0].Partitions[0]
		if got := truth(to); got < c.Twice || got > c.Twice+c.Unknown {
			t.Errorf("seed %d: %d are applied twice, told %d to %d", seed, got, c.Twice, c.Twice+c.Unknown)
		}
		if c.Again != max(0, commit-to) || c.Again != c.Protected+c.Twice+c.Unknown || c.Protected < 0 || c.Skipped != max(0, to-commit) {
			t.Errorf("seed %d: %+v", seed, c)
		}
		if n := truth(p.SafeOffset); n != 0 || p.SafeOffset < start || p.SafeOffset > commit {
			t.Errorf("seed %d: from the safe offset %d of %d to %d, %d are applied twice", seed, p.SafeOffset, start, commit, n)
		}
		if a.Verdict == replay.Safe && truth(to) > 0 {
			t.Errorf("seed %d: called safe", seed)
		}
		if p.SafeTime == nil {
			continue
		}
		if o := log.first(*p.SafeTime); (o >= 0 || commit < p.LogEnd) && (o < p.SafeOffset || o > commit) {
			t.Errorf("seed %d: the safe time leads to %d, safe is %d to %d", seed, o, p.SafeOffset, commit)
		}
		if o := log.first(p.SafeTime.Add(-time.Second)); o >= p.SafeOffset && p.SafeOffset > start {
			t.Errorf("seed %d: a second before the safe time is safe too", seed)
		}
	}
}

// fakeLog answers as a broker does: the first record at or after a time.
type fakeLog struct {
	start int64
	times []time.Time // by offset
	err   error
}

func (l *fakeLog) first(at time.Time) int64 {
	for o := l.start; o < int64(len(l.times)); o++ {
		if !l.times[o].Before(at) {
			return o
		}
	}
	return -1
}

func (l *fakeLog) ListOffsets(_ context.Context, at map[string]map[int32]time.Time) (map[string]map[int32]kafka.ListedOffset, error) {
	out := map[string]map[int32]kafka.ListedOffset{}
	for topic, partitions := range at {
		out[topic] = map[int32]kafka.ListedOffset{}
		for id, at := range partitions {
			a := kafka.ListedOffset{Offset: l.first(at), Err: l.err}
			if a.Offset >= 0 {
				a.Timestamp = l.times[a.Offset]
			}
			out[topic][id] = a
		}
	}
	return out, nil
}

// What nobody has seen is unknown, and exit code 2 says so; a broker that does
// not tell times costs only these.
func TestNothingIsKnown(t *testing.T) {
	t.Parallel()
	a := &replay.Answer{Group: "g", To: "earliest", At: from, Topics: []replay.Topic{{Topic: "t", Partitions: []replay.Partition{
		{Partition: 1, LogStart: 5, LogEnd: 10, Committed: 10, Target: 5}, {Partition: 0, LogStart: 3, LogEnd: 3, Committed: 3, Target: 3}}}}}
	a.Know(func(string, int32) (replay.Known, bool) { return replay.Known{}, false })
	if err := a.SafeTimes(t.Context(), &fakeLog{err: errors.New("denied"), times: slices.Repeat([]time.Time{from}, 10)}); err != nil {
		t.Fatal(err)
	}
	p := a.Topics[0].Partitions[1]
	if a.ExitCode() != 2 || a.Totals != (replay.Counts{Again: 5, Unknown: 5}) || p.SafeOffset != 10 || p.SafeTime != nil || p.Why == "" {
		t.Errorf("exit code %d, %+v, %+v", a.ExitCode(), a.Totals, p)
	}
	if want := "No time is known back to which a reset is safe; from earliest up to 5 events would be applied twice, or none: it is not known."; a.Sentence != want {
		t.Errorf("%q", a.Sentence)
	}
}
