package retention

import (
	"maps"
	"slices"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// watch is what was passed unseen, by database. A record that a group passed
// while somebody watched has a marker, had one, or never got one, and which of
// the three is known. Of a record that it passed before the first look, or while
// oncewatch was away, and that shows no marker, nobody can tell.
type watch map[string]*Watched

// Watched is what was passed unseen of the records of one store's groups.
type Watched struct {
	// Identity is the table's, Cluster the id of Kafka's.
	Identity, Cluster string
	// At is when the store was last looked at, by our clock.
	At time.Time
	// Whole says that all groups there are were seen then.
	Whole bool
	// Last is the groups' commits then.
	Last map[Place]int64
	// Blind are the offsets that were passed unseen. A place without an entry
	// was not there.
	Blind map[Place][]Span
	// Topics are those that were there.
	Topics map[string]Topic
}

// Topic is what tells a topic from an earlier one of its name.
type Topic struct {
	ID kafka.TopicID
	// Anew is the column's time at which it was found to be another than before:
	// earlier markers are of that one. Zero where nothing of the kind was seen.
	Anew time.Time
	// Unseen says that this was while nobody watched: what is known of markers
	// may be of the earlier one.
	Unseen bool
}

// Place is a group on a partition.
type Place struct {
	Group, Topic string
	Partition    int32
}

// Span is the offsets From <= offset < To.
type Span struct{ From, To int64 }

// maxBlind bounds the spans of one partition.
const maxBlind = 8

// addBlind adds a span.
func addBlind(spans []Span, add Span) []Span {
	if add.From >= add.To {
		return spans
	}
	spans = append(slices.Clone(spans), add)
	slices.SortFunc(spans, func(a, b Span) int {
		if a.From < b.From {
			return -1
		}
		return 1
	})
	out := spans[:1]
	for _, s := range spans[1:] {
		if last := &out[len(out)-1]; s.From <= last.To {
			last.To = max(last.To, s.To)
		} else {
			out = append(out, s)
		}
	}
	for len(out) > maxBlind { // join across the smallest gap
		at := 1
		for i := 2; i < len(out); i++ {
			if out[i].From-out[i-1].To < out[at].From-out[at-1].To {
				at = i
			}
		}
		out[at-1].To = out[at].To
		out = slices.Delete(out, at, at+1)
	}
	return out
}

// shortAbsence is how long a poll may be away without anything being unknown,
// where markers live longer than twice that.
const shortAbsence = time.Hour

// absence says what can have been missed since the last poll: nothing; markers
// that vanished but for those that a pruner takes by their age; or any.
type absence int

const (
	none absence = iota
	short
	long
)

// absent judges by how long markers are known to live.
func absent(gap time.Duration, m *postgres.Markers, marked []postgres.Series) absence {
	lives := time.Duration(0)
	shorter := func(d time.Duration) {
		if d > 0 && (lives == 0 || d < lives) {
			lives = d
		}
	}
	for i := range marked {
		s := &marked[i]
		shorter(m.ConfiguredRetention(s.Group))
		switch {
		case s.Pruning:
			shorter(s.ObservedRetention)
		case !s.Oldest.IsZero():
			shorter(m.Age(s.Oldest, m.ReadAt))
		}
	}
	switch {
	case gap <= min(shortAbsence, lives/2) || lives == 0 && gap <= shortAbsence:
		return none
	case gap < lives-lives/10:
		return short
	}
	return long
}

// see learns from the newest snapshots, once a poll.
func (w watch) see(topics *kafka.Topics, groups *kafka.Groups, stores []*postgres.Markers) {
	commits := map[Place]int64{}
	byName := map[string]*kafka.Group{}
	whole := groups.LeftOut == 0 && len(groups.Problems()) == 0
	for _, g := range groups.Groups {
		byName[g.Name] = g
		whole = whole && g.Readable // what could not be read may be there all the same
		for i := range g.Topics {
			for _, p := range g.Topics[i].Partitions {
				commits[Place{g.Name, g.Topics[i].Topic, p.Partition}] = p.Committed
			}
		}
	}
	for _, m := range stores {
		if !m.Ready {
			continue // what is passed until it is, is passed unseen
		}
		one := w[m.Database]
		if one == nil || one.Identity != m.Identity {
			one = &Watched{Identity: m.Identity, Blind: map[Place][]Span{}, Topics: map[string]Topic{}}
			w[m.Database] = one
		}
		one.see(m, topics, maps.Clone(commits), whole, func(s *postgres.Series) *kafka.Group { return groupOf(m, s, groups, byName) })
	}
}

func (w *Watched) see(m *postgres.Markers, topics *kafka.Topics, commits map[Place]int64, whole bool, group func(*postgres.Series) *kafka.Group) {
	missed, gap := long, m.ReadAt.Sub(w.At)
	if !w.At.IsZero() && gap >= 0 {
		missed = absent(gap, m, m.Series)
	}
	// Where the last poll, a moment ago, saw no such group, it began since.
	began := missed == none && w.Whole
	for p, committed := range commits {
		last, was := w.Last[p]
		switch {
		case missed == long, !was && !began: // a first look, or as good as one
			w.Blind[p] = addBlind(w.Blind[p], Span{0, committed})
		case missed == short && was:
			w.Blind[p] = addBlind(w.Blind[p], Span{last, committed})
		case !was:
			w.Blind[p] = slices.Clip(w.Blind[p]) // began while we watched
		}
	}
	marked := map[Place]bool{}
	for i := range m.Series {
		s := &m.Series[i]
		// Kafka may not list a group whose offsets are gone, until it is asked for
		// by the name that the markers have.
		name := s.Group
		if g := group(s); g != nil {
			name = g.Name
		}
		if name == "" || s.Topic == "" {
			continue
		}
		for id, h := range s.Handled {
			p := Place{name, s.Topic, int32(id)}
			marked[p] = true
			if _, ok := w.Blind[p]; ok {
				continue
			}
			if w.Blind[p] = nil; !began {
				w.Blind[p] = addBlind(nil, Span{0, h.To + 1})
			}
		}
	}
	moved := w.Cluster != "" && topics.Cluster != "" && w.Cluster != topics.Cluster
	if w.Cluster = topics.Cluster; moved {
		for name := range w.Topics { // all are others, whatever their ids
			w.anew(name, Topic{Anew: m.ServerTime, Unseen: true}, commits)
		}
	}
	for name, t := range topics.Topics {
		was, ok := w.Topics[name]
		if t.ID == (kafka.TopicID{}) || ok && was.ID == t.ID {
			continue // not known, or the same
		}
		w.Topics[name] = Topic{ID: t.ID, Anew: was.Anew, Unseen: was.Unseen}
		if ok && was.ID != (kafka.TopicID{}) {
			w.anew(name, Topic{ID: t.ID, Anew: m.ServerTime, Unseen: missed != none}, commits)
		}
	}
	for p, committed := range w.Last {
		if _, ok := commits[p]; !ok && !whole { // not read this time
			commits[p] = committed
		}
	}
	if whole {
		for p := range w.Blind {
			if _, ok := commits[p]; !ok && !marked[p] {
				delete(w.Blind, p) // the group is gone, and so are its markers
			}
		}
	}
	w.At, w.Last, w.Whole = m.ReadAt, commits, whole
}

// groupOf is the group that a series of markers is of: by name, and the only
// one where the table has no such column.
func groupOf(m *postgres.Markers, s *postgres.Series, groups *kafka.Groups, byName map[string]*kafka.Group) *kafka.Group {
	if m.Table.Has.Group == "" && len(groups.Groups) == 1 {
		return groups.Groups[0]
	}
	return byName[s.Group]
}

// anew notes that a topic was made anew under its name: what was passed of the
// old one says nothing.
func (w *Watched) anew(name string, t Topic, commits map[Place]int64) {
	w.Topics[name] = t
	for p := range w.Blind {
		if p.Topic != name {
			continue
		}
		if w.Blind[p] = nil; t.Unseen {
			w.Blind[p] = addBlind(nil, Span{0, commits[p]})
		}
	}
}

// began says that the group's beginning was seen.
func (w *Watched) began(p Place) bool {
	if w == nil {
		return false
	}
	blind, ok := w.Blind[p]
	return ok && len(blind) == 0
}

// unverified are the offsets that a group passed unseen and that never showed a
// marker, of those from lo to top.
func (w *Watched) unverified(p Place, h *handled.Offsets, lo, top int64) (out []handled.Range) {
	blind := []Span{{0, top}}
	if w != nil { // else the markers are still being counted
		if known, ok := w.Blind[p]; ok {
			blind = known
		}
		if w.Topics[p.Topic].Unseen {
			h = nil
		}
	}
	for _, b := range blind {
		from, to := max(b.From, lo), min(b.To, top)
		if from >= to {
			continue
		}
		if h == nil {
			out = append(out, handled.Range{First: from, Last: to - 1, Most: to - from})
			continue
		}
		for _, u := range h.Unseen {
			if u.First >= to {
				break
			}
			if _, most := u.Within(from, to); most > 0 {
				out = append(out, handled.Range{First: max(from, u.First), Last: min(to-1, u.Last), Most: most})
			}
		}
	}
	return out
}
