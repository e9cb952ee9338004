package inbox

import (
	"errors"
	"slices"
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
		p.bury(i, err, 1)
	}
	return p
}

// bury sends an event to the dead letters.
func (p *plan) bury(i int, err error, attempts int) {
	p.dead[i] = Handled{Outcome: DeadLettered, Reason: reason(err), Err: err, Attempts: attempts}
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
// queue up instead of deadlocking.
type markers struct {
	ids     []string
	offsets []int64
	hashes  []int64
	first   map[string]int // index of the first living event with the id
}

func (p *plan) markers(b Batch) markers {
	m := markers{first: make(map[string]int, len(b.Events))}
	order := make([]int, 0, len(b.Events))
	for i, ev := range b.Events {
		if _, dead := p.dead[i]; dead {
			continue
		}
		if _, repeated := m.first[ev.ID]; !repeated {
			m.first[ev.ID] = i
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(x, y int) int {
		if b.Events[x].ID < b.Events[y].ID {
			return -1
		}
		return 1
	})
	m.ids = make([]string, len(order))
	m.offsets = make([]int64, len(order))
	m.hashes = make([]int64, len(order))
	for k, i := range order {
		m.ids[k], m.offsets[k], m.hashes[k] = b.Events[i].ID, b.Events[i].Offset, p.hashes[i]
	}
	return m
}
