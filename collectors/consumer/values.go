package consumer

import (
	"maps"
	"math"
	"slices"
	"time"

	"oncewatch/collectors/poll"
)

// Figure is a number that consumers tell, or why they do not.
type Figure struct {
	Value float64
	// Missing names what is not exported, and by whom; empty where Value is
	// known.
	Missing string
	// From names where Value comes from and what time it covers.
	From string
}

// OK says whether the figure is known.
func (f Figure) OK() bool { return f.Missing == "" }

// Values are what the consumers of a group tell of a topic.
type Values struct {
	// Processed and Duplicates are events by outcome, Elsewhere the duplicates
	// whose marker has another offset.
	Processed, Duplicates, Elsewhere Figure
	// LongHandled and LongDuplicates are the same over a longer time, where it
	// is known: for a ratio that is too low.
	LongHandled, LongDuplicates Figure
	// P99 is the 99th percentile of the handling time, in seconds, of Timed
	// events. The truth lies between P99Low and P99High, the bounds of its
	// bucket.
	P99, Timed      Figure
	P99Low, P99High float64
	// Retries, DeadLettered, Lost and EverDuplicate are events since the
	// consumers started, or as long as the Prometheus remembers.
	Retries, DeadLettered, Lost, EverDuplicate Figure
	// CommitLag is the longest wait for an offset commit now, in seconds.
	CommitLag Figure
}

// Snapshot is what the consumers told at one poll.
type Snapshot struct {
	Values map[Key]Values
	// Sources is how many were asked, Unread how many of them did not answer.
	Sources, Unread int
	// Enough is how many events it takes to say anything of a share of them; 0:
	// as many as the alert rules want.
	Enough float64

	problems []poll.Problem
}

// quantile estimates the handling time that a share q of the events stayed
// below, in seconds, as histogram_quantile does, and the bounds of its bucket;
// NaN without events.
func quantile(q float64, buckets map[float64]float64) (value, low, high float64) {
	bounds := slices.Sorted(maps.Keys(buckets))
	if len(bounds) == 0 || !(buckets[bounds[len(bounds)-1]] > 0) {
		return math.NaN(), math.NaN(), math.NaN()
	}
	rank := q * buckets[bounds[len(bounds)-1]]
	below := 0.0
	for _, upper := range bounds {
		n := buckets[upper]
		if n >= rank {
			if math.IsInf(upper, 1) {
				return low, low, upper
			}
			return low + (upper-low)*max(0, rank-below)/max(1, n-below), low, upper
		}
		low, below = upper, n
	}
	return low, low, math.Inf(1)
}

// window is how far back the exporter judges.
const window = 30 * time.Minute

// spacing of the readings that are kept of it.
const spacing = time.Minute

// history is one consumer's readings.
type history struct {
	last *reading
	// counted is what it counted since it was read first, over all its
	// restarts; past are earlier states of that, oldest first.
	counted map[Key]*totals
	past    []kept
}

type kept struct {
	at      time.Time
	counted map[Key]*totals
}

// see takes a reading in.
func (h *history) see(at time.Time, r *reading) {
	if h.last == nil {
		h.counted = map[Key]*totals{}
	} else {
		before := h.last
		if r.restarted(before) {
			before = nil
		}
		counted := make(map[Key]*totals, len(h.counted)) // what is kept does not change
		for k, t := range h.counted {
			counted[k] = t.plus(nil, 0)
		}
		for k, t := range r.sum(before) {
			counted[k] = t.plus(counted[k], 1)
		}
		h.counted = counted
	}
	h.last = r
	if n := len(h.past); n == 0 || at.Sub(h.past[n-1].at) >= spacing {
		h.past = append(h.past, kept{at, h.counted})
	}
	for len(h.past) > 1 && at.Sub(h.past[1].at) >= window {
		h.past = h.past[1:]
	}
}

// inWindow is what was counted since the reading that is a window old, and
// since when; nil where the history does not reach back so far.
func (h *history) inWindow(now time.Time) (map[Key]*totals, time.Duration) {
	if len(h.past) == 0 || now.Sub(h.past[0].at) < window {
		return nil, 0
	}
	out := make(map[Key]*totals, len(h.counted))
	for k, t := range h.counted {
		out[k] = t.plus(h.past[0].counted[k], -1)
	}
	return out, now.Sub(h.past[0].at)
}

// plus is t and the share of another. nil is nothing.
func (t *totals) plus(o *totals, share float64) *totals {
	sum := &totals{maps.Clone(t.counters), maps.Clone(t.buckets)}
	if o != nil {
		for name, v := range o.counters {
			sum.counters[name] += share * v
		}
		for bound, v := range o.buckets {
			sum.buckets[bound] += share * v
		}
	}
	return sum
}
