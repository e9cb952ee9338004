package inbox

import (
	"errors"
	"slices"
	"strings"
)

// plan is what is known about the events of a batch before an attempt; each
// failed attempt adds to it.
type plan struct {
	hashes []int64
	dead   map[int]Handled
	// oneByOne sends each event's statements on their own: slower, and an
	// error is then certain to be that event's.
	oneByOne bool
	// noSet leaves out the batch handler.
	noSet bool
	// attempt is the number of the attempt that runs, from 1.
	attempt int
	// repeated are the events whose id came again within the batch.
	repeated map[int]bool
}

func newPlan(b Batch) *plan {
	p := &plan{hashes: make([]int64, len(b.Events)), dead: map[int]Handled{}}
	for i, ev := range b.Events {
		p.hashes[i] = hash(ev.Value)
		if ev.Err != nil {
			p.dead[i] = Handled{Outcome: DeadLettered, Reason: ReasonDecode, Err: ev.Err, Attempts: 1}
		} else if err := checkID(ev.ID); err != nil {
			p.dead[i] = Handled{Outcome: DeadLettered, Reason: ReasonDecode, Err: err, Attempts: 1}
		}
	}
	for i, err := range b.Blame {
		p.deadLetter(i, err, 1)
	}
	return p
}

// deadLetter sends an event to the dead letters.
func (p *plan) deadLetter(i int, err error, attempts int) {
	p.dead[i] = Handled{Outcome: DeadLettered, Reason: reason(err), Err: err, Attempts: attempts}
}

// repeat notes that an event's id came again: its repetition was taken for a
// duplicate of it, and is none should the event turn out bad.
func (p *plan) repeat(i int) {
	if p.repeated == nil {
		p.repeated = map[int]bool{}
	}
	p.repeated[i] = true
}

// unsure says whether another attempt, done more carefully, could tell which
// event is to blame.
func (p *plan) unsure(err error) bool {
	var pe *pipelineError
	if !errors.As(err, &pe) || pe.sure {
		return false
	}
	switch {
	case pe.index == setBased && !p.noSet:
		p.noSet = true
		return true
	case !p.oneByOne:
		p.oneByOne = true
		return true
	}
	return false
}

// setBased is the owner of a batch handler's statements.
const setBased = -1

// markers is the column-wise form of the markers to insert: the living events,
// each id once, sorted. Sorting makes concurrent inserts of overlapping ids
// queue up instead of deadlocking. A marker's place in the columns is its slot.
type markers struct {
	ids     []string
	offsets []int64
	hashes  []int64
	first   []int // the first event with the slot's id
	slot    []int // of each event; -1 for dead ones
}

func (p *plan) markers(b Batch) *markers {
	m := &markers{slot: make([]int, len(b.Events))}
	order := make([]int, 0, len(b.Events))
	for i := range b.Events {
		m.slot[i] = -1
		if _, dead := p.dead[i]; !dead {
			order = append(order, i)
		}
	}
	byID := func(x, y int) int { return strings.Compare(b.Events[x].ID, b.Events[y].ID) }
	if !slices.IsSortedFunc(order, byID) { // UUIDv7 ids mostly come sorted
		slices.SortStableFunc(order, byID)
	}
	n := len(order)
	m.ids, m.offsets, m.hashes, m.first = make([]string, 0, n), make([]int64, 0, n), make([]int64, 0, n), make([]int, 0, n)
	for _, i := range order {
		ev := &b.Events[i]
		if k := len(m.ids) - 1; k >= 0 && m.ids[k] == ev.ID {
			m.slot[i] = k // the sort is stable: the first in the batch is there already
			continue
		}
		m.slot[i] = len(m.ids)
		m.ids, m.offsets, m.hashes, m.first = append(m.ids, ev.ID), append(m.offsets, ev.Offset), append(m.hashes, p.hashes[i]), append(m.first, i)
	}
	return m
}

// find the slot of an id that came back from the server.
func (m *markers) find(id []byte) (int, bool) {
	return slices.BinarySearchFunc(m.ids, id, func(have string, want []byte) int {
		switch w := string(want); { // compared without being copied
		case have < w:
			return -1
		case have > w:
			return 1
		}
		return 0
	})
}

// only is the columns of some slots.
func (m *markers) only(want func(slot int) bool) (ids []string, offsets, hashes []int64) {
	for k := range m.ids {
		if want(k) {
			ids, offsets, hashes = append(ids, m.ids[k]), append(offsets, m.offsets[k]), append(hashes, m.hashes[k])
		}
	}
	return ids, offsets, hashes
}
