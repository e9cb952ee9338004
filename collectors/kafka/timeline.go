package kafka

import (
	"cmp"
	"math"
	"slices"
)

// timeline is what is known of when the records of one partition were written,
// from real record timestamps: answers of ListOffsets, which finds the first
// record at or after a time. A few answers for each poll, kept where groups
// stand, tell how old the records are that wait there, without fetching any.
//
// Records need not be in order of their timestamps; what the broker's answers
// bound is the running maximum of the timestamps, and that is what after tells.
type timeline struct {
	id    TopicID
	start int64 // log start when first was asked
	first mark  // the first record; offset unset: not known
	gone  int64 // milliseconds: where first is not known, a record before start was as late as this; or unset
	marks []mark
	step  int // takes turns between interpolation and halving
	// remote: the broker has records, and none of them in its own log, which is
	// all that it looks into for the newest. Those in the remote tier are found
	// by time.
	remote bool
}

// mark is one fact: every record before offset is older than before. Where
// timestamp is set, it is the record's at offset, and no earlier one is as late.
type mark struct {
	offset    int64
	before    int64 // milliseconds
	timestamp int64 // milliseconds; unset: -1
}

const unset = -1

func newTimeline(id TopicID) *timeline {
	return &timeline{id: id, start: unset, first: mark{offset: unset, timestamp: unset}, gone: unset}
}

// reset forgets everything when the topic was made anew.
func (t *timeline) reset(id TopicID) {
	if t.id != id {
		*t = *newTimeline(id)
	}
}

// wantsFirst says whether the first record must be asked for: nothing is known
// of it, or the log has lost its head since.
func (t *timeline) wantsFirst(start, end int64) bool {
	return start < end && t.start != start
}

// sawFirst notes the answer to a question for the first record of a log that is
// not empty. No record is no answer: until a broker deletes the segments before
// a log start that DeleteRecords has moved, it looks for times in those alone.
func (t *timeline) sawFirst(start int64, a listed) {
	for _, m := range append(t.marks, t.first) {
		if m.offset < start {
			t.gone = max(t.gone, m.timestamp)
		}
	}
	t.marks = slices.DeleteFunc(t.marks, func(m mark) bool { return m.offset < start })
	t.start = start
	t.first = mark{offset: a.offset, timestamp: a.timestamp}
	if a.offset >= 0 {
		t.gone = unset
	}
}

// sawNewest notes the record with the greatest timestamp of a log that ended at
// end or later. It says whether that tells anything: one before the log start
// hides those that are there. Where there is a first record and no newest, all
// is in the remote tier, and was written before now.
func (t *timeline) sawNewest(end, now int64, a listed) bool {
	if t.remote = a.offset < 0 && t.first.offset >= 0; t.remote {
		t.add(mark{offset: end, before: now + clockSlack.Milliseconds(), timestamp: unset})
		return true
	}
	if a.offset < 0 || a.offset < t.start {
		return false
	}
	t.add(mark{offset: a.offset, before: a.timestamp + 1, timestamp: a.timestamp})
	if end > a.offset {
		t.add(mark{offset: end, before: a.timestamp + 1, timestamp: unset})
	}
	return true
}

// saw notes the first record at or after asked.
func (t *timeline) saw(asked int64, a listed) {
	switch {
	case a.offset >= 0:
		t.add(mark{offset: a.offset, before: asked, timestamp: a.timestamp})
	case t.remote:
		for i := range t.marks {
			if m := &t.marks[i]; m.timestamp == unset {
				m.before = min(m.before, asked)
			}
		}
	case slices.ContainsFunc(t.marks, func(m mark) bool { return m.timestamp >= asked }):
		// One is known: the broker has looked before the log start.
		t.gone = max(t.gone, asked)
	default:
		// Perhaps there is none. The newest record tells: ask for it again.
		t.marks = slices.DeleteFunc(t.marks, func(m mark) bool { return m.timestamp == unset })
	}
}

func (t *timeline) add(m mark) {
	i, found := slices.BinarySearchFunc(t.marks, m.offset, func(m mark, offset int64) int {
		return cmp.Compare(m.offset, offset)
	})
	if !found {
		t.marks = slices.Insert(t.marks, i, m)
		return
	}
	t.marks[i].before = min(t.marks[i].before, m.before)
	t.marks[i].timestamp = max(t.marks[i].timestamp, m.timestamp)
}

// bracket is where the record at an offset lies in time: from low, the
// timestamp of a record at or before it, to below high, which a later one
// bounds.
type bracket struct {
	low, high             int64 // milliseconds; unset low, MaxInt64 high: not known
	lowOffset, highOffset int64
	exact                 bool
}

func (b bracket) width() int64 {
	if b.low == unset || b.high == math.MaxInt64 {
		return math.MaxInt64
	}
	if b.exact {
		return 0
	}
	return b.high - b.low
}

// find brackets the oldest record at or after offset.
func (t *timeline) find(offset int64) bracket {
	// Before the first record lie only offsets whose records are gone.
	if t.first.offset >= 0 && offset <= t.first.offset {
		return bracket{low: t.first.timestamp, high: t.first.timestamp, exact: true}
	}
	b := bracket{low: unset, high: math.MaxInt64}
	if t.first.offset >= 0 {
		b.low, b.lowOffset = t.first.timestamp, t.first.offset
	} else if t.gone != unset {
		b.low, b.lowOffset = t.gone, t.start
	}
	for _, m := range t.marks {
		if m.offset <= offset {
			if m.timestamp >= b.low && m.timestamp != unset {
				b.low, b.lowOffset = m.timestamp, m.offset
				b.exact = m.offset == offset
			}
		} else if m.before < b.high {
			b.high, b.highOffset = m.before, m.offset
		}
	}
	// At most the millisecond of a bound that one record has to itself.
	if b.low != unset && b.high-b.low <= 1 {
		b.exact = true
	}
	return b
}

// good is how wide a bracket may be for nothing more to be asked: a second, or
// 1 % of the age.
func (b bracket) good(now int64) int64 { return max(1000, (now-b.high)/100) }

// usable is how wide it may be for a value to be told: 15 seconds, or 5 % of
// the age.
func (b bracket) usable(now int64) int64 { return max(15_000, (now-b.high)/20) }

// after is the timestamp of the oldest record at or after offset, in
// milliseconds; ok is false where it is not known closely enough.
func (t *timeline) after(offset, now int64) (ms int64, ok bool) {
	b := t.find(offset)
	if b.low > b.high || b.width() > b.usable(now) {
		return 0, false
	}
	if b.exact {
		return b.low, true
	}
	// Between two records' own timestamps, which are close together here.
	share := float64(offset-b.lowOffset) / float64(b.highOffset-b.lowOffset)
	return b.low + int64(share*float64(b.high-1-b.low)), true
}

// next is the timestamp to ask for to learn more about where the groups stand,
// or false when enough is known of all the offsets.
func (t *timeline) next(offsets []int64, now int64) (timestamp int64, more bool) {
	var (
		worst bracket
		at    int64
		most  = -1.0
	)
	for _, offset := range offsets {
		b := t.find(offset)
		if b.width() <= b.good(now) {
			continue
		}
		if b.high == math.MaxInt64 {
			return atNewest, true
		}
		// The widest for its age matters most.
		if share := float64(b.high-b.low) / float64(max(1, now-b.high)+1000); share > most {
			worst, at, most = b, offset, share
		}
	}
	if most < 0 {
		return 0, false
	}
	guess := worst.low + (worst.high-worst.low)/2
	// Interpolating finds a steady producer's record in a step, and keeping a
	// tolerance away from both ends lets the next one prove it; halving every
	// third time bounds the steps for any other producer. Where the first record
	// is not known there is nothing to interpolate from.
	if t.step++; t.step%3 != 0 && worst.low > t.gone {
		share := float64(at-worst.lowOffset) / float64(worst.highOffset-worst.lowOffset)
		margin := min(worst.good(now), (worst.high-worst.low)/2)
		guess = worst.low + int64(share*float64(worst.high-worst.low))
		guess = min(max(guess, worst.low+margin), worst.high-margin)
	}
	return min(max(guess, worst.low+1), worst.high-1), true
}

// open is what offsets to date: those where groups wait, and the log start
// where its record could not be asked for.
func (t *timeline) open(waiting []int64) []int64 {
	if t.start == unset || t.first.offset >= 0 {
		return waiting
	}
	return append(slices.Clip(waiting), t.start)
}

// maxMarks bounds the memory of one partition.
const maxMarks = 32

// prune keeps the marks from the last group onwards, which the groups will
// come by, and thins them out where they are many.
func (t *timeline) prune(offsets []int64) {
	if len(offsets) == 0 {
		t.marks = nil
		return
	}
	keep := make(map[int64]bool, 2*len(offsets))
	lowest := int64(math.MaxInt64)
	for _, offset := range offsets {
		b := t.find(offset)
		keep[b.lowOffset], keep[b.highOffset] = true, true
		lowest = min(lowest, b.lowOffset)
	}
	t.marks = slices.DeleteFunc(t.marks, func(m mark) bool { return m.offset < lowest })
	if len(t.marks) > maxMarks {
		i := 0
		t.marks = slices.DeleteFunc(t.marks, func(m mark) bool { i++; return i%2 == 0 && !keep[m.offset] })
	}
}
