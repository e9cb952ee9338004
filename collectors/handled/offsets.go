package handled

import (
	"cmp"
	"math"
	"slices"
)

// Offsets is what is known of one partition. The zero value has seen nothing.
type Offsets struct {
	// From and To are the lowest and the highest offset of which a marker was
	// ever seen; To is -1 where none was.
	From, To int64
	// Gone are the markers that were seen to vanish and were not written again,
	// by First. Ranges may overlap; none has Most 0.
	Gone []Range
	// Unseen are the offsets of which no marker was ever seen, by First and
	// apart; Least is not used. They reach to the end of all offsets.
	Unseen []Range
	// Looked is up to where Unseen tells every gap; above it may be coarse.
	Looked int64

	floor  int64 // Present tells of offsets from here on
	coarse bool  // the last of Unseen stands for whatever lies there
	shared bool  // the ranges belong to a snapshot too
}

// Bounds on what is kept of one partition.
const (
	maxGone   = 256
	maxUnseen = 256
	maxAbove  = 64 // of Unseen, above Looked
)

// New has seen nothing yet.
func New() *Offsets {
	return &Offsets{To: -1, Unseen: []Range{everything(0)}, Looked: end}
}

// end is the last of all offsets.
const end = math.MaxInt64 - 1

func everything(from int64) Range {
	r := Range{First: from, Last: end}
	r.Most = r.width()
	return r
}

// Snapshot is what is known now; it does not change.
func (o *Offsets) Snapshot() Offsets {
	o.shared = true
	return *o
}

func (o *Offsets) own() {
	if o.shared {
		o.Gone, o.Unseen, o.shared = slices.Clone(o.Gone), slices.Clone(o.Unseen), false
	}
}

func (o *Offsets) saw(first, last int64) {
	if o.To < 0 {
		o.From, o.To = first, last
	}
	o.From, o.To = min(o.From, first), max(o.To, last)
}

// Looks says that every marker that was there has been written down: gaps from
// here on are of what came while somebody watched.
func (o *Offsets) Looks() { o.Looked = o.To }

// Again forgets what is told coarsely of the offsets above the last look, to be
// written down anew from every marker that is there: Present, then Looks.
func (o *Offsets) Again() {
	o.own()
	from, list := int64(0), []Range(nil)
	if o.Looked < end {
		from = o.Looked + 1
	}
	for _, u := range o.Unseen {
		if part, ok := u.cut(0, from-1); ok {
			list = append(list, part)
		}
	}
	o.Unseen, o.floor, o.coarse, o.Looked = append(list, everything(from)), from, false, end
	for _, g := range o.Gone {
		if part, ok := g.cut(from, end); ok && part.Least > 0 {
			o.unsee(part, 0)
		}
	}
}

// Present notes markers that are there and that nobody saw come.
func (o *Offsets) Present(c Count) {
	o.own()
	o.saw(c.Min, c.Max)
	if part, ok := c.All().cut(o.floor, end); ok {
		o.unsee(part, 0)
	}
}

// Lose adds markers that have vanished.
func (o *Offsets) Lose(r Range) {
	if r.Most <= 0 {
		return
	}
	o.own()
	o.saw(r.First, r.Last)
	o.Gone = bound(insert(o.Gone, r), maxGone)
}

// Wrote notes markers that have come: they had vanished, or are the first of
// their offsets.
func (o *Offsets) Wrote(r Range) { o.WroteAfter(r, math.MinInt64) }

// WroteAfter does so for markers that were written at a time or later: they do
// not stand for such as vanished with a later time.
func (o *Offsets) WroteAfter(r Range, at int64) {
	if r.Most <= 0 {
		return
	}
	o.own()
	o.saw(r.First, r.Last)
	restorable := func(g Range) bool { return at == math.MinInt64 || g.Newest < at }
	// What can have taken up the written ones.
	var gone, unseen int64
	for _, g := range o.Gone {
		if _, most := g.Within(r.First, r.Last+1); restorable(g) {
			gone += most
		}
	}
	for _, u := range o.Unseen {
		_, most := u.Within(r.First, r.Last+1)
		unseen += most
	}
	if gone > 0 {
		var left []Range
		touched := Range{First: -1}
		for _, g := range o.Gone {
			_, most := g.Within(r.First, r.Last+1)
			switch {
			case most == 0 || !restorable(g):
				left = append(left, g)
			case r.full():
				left = append(left, g.without(r)...)
			case touched.First < 0:
				touched = g
			default: // which of them is not known, but how many of all
				touched = join(touched, g)
			}
		}
		if touched.First >= 0 {
			touched.Least = max(0, touched.Least-r.Most)
			if touched.Most -= max(0, r.Least-unseen); touched.Most > 0 {
				left = append(left, touched)
			}
		}
		slices.SortStableFunc(left, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
		o.Gone = bound(left, maxGone)
	}
	o.unsee(r, gone)
}

// without takes markers that were all written out of a range of vanished ones.
func (g Range) without(w Range) []Range {
	inside, _ := g.cut(w.First, w.Last)
	return g.outside(inside, g.Least-inside.Most, g.Most-inside.Least)
}

// outside is what is left of a range without a part of it, when so many of its
// offsets are meant there.
func (g Range) outside(inside Range, least, most int64) (left []Range) {
	below := Range{First: g.First, Last: inside.First - 1, Newest: g.Newest}
	above := Range{First: inside.Last + 1, Last: g.Last, Newest: g.Newest}
	wb, wa := inside.First-g.First, int64(0)
	if inside.Last < g.Last {
		wa = above.width()
	}
	if below.Least, below.Most = max(0, least-wa), min(most, wb); below.Most > 0 {
		left = append(left, below)
	}
	if above.Least, above.Most = max(0, least-wb), min(most, wa); above.Most > 0 {
		left = append(left, above)
	}
	return left
}

// unsee takes offsets out of those never seen, when at most so many of the
// markers stand for such as had vanished.
func (o *Offsets) unsee(r Range, gone int64) {
	i, _ := slices.BinarySearchFunc(o.Unseen, r.First, func(u Range, first int64) int {
		if u.Last < first {
			return -1
		}
		return 1
	})
	j, room := i, int64(0)
	for ; j < len(o.Unseen) && o.Unseen[j].First <= r.Last; j++ {
		_, most := o.Unseen[j].Within(r.First, r.Last+1)
		room += most
	}
	if o.coarse && j == len(o.Unseen) {
		j--
	}
	if i >= j {
		return
	}
	var left []Range
	for _, u := range o.Unseen[i:j] {
		inside, ok := u.cut(r.First, r.Last)
		if !ok {
			left = append(left, u)
			continue
		}
		dense := u.Most >= u.width()
		here := r.Least - gone - (room - inside.Most) // so many at least
		switch {
		case dense:
			pieces := u.outside(inside, u.width()-inside.width(), u.width()-inside.width())
			if inside.Least, inside.Most = 0, inside.width()-max(0, here); r.full() {
				inside.Most = 0
			}
			for _, p := range pieces {
				p.Least = 0
				if p.First > inside.Last && inside.Most > 0 {
					left = append(left, inside)
					inside.Most = 0
				}
				left = append(left, p)
			}
			if inside.Most > 0 {
				left = append(left, inside)
			}
		case r.full() && (inside.First == u.First || inside.Last == u.Last):
			left = append(left, u.outside(inside, 0, u.Most)...)
		default:
			if u.Most -= max(0, here); u.Most > 0 {
				left = append(left, u)
			}
		}
	}
	o.Unseen = slices.Replace(o.Unseen, i, j, left...)
	o.boundUnseen()
}

// boundUnseen keeps what is told of the offsets never seen within its size.
func (o *Offsets) boundUnseen() {
	if len(o.Unseen) <= maxAbove {
		return
	}
	n := slices.IndexFunc(o.Unseen, func(u Range) bool { return u.Last > o.Looked || u.Last == end })
	if n > maxUnseen {
		o.Unseen = append(bound(slices.Clone(o.Unseen[:n]), maxUnseen), o.Unseen[n:]...)
		n = maxUnseen
	}
	if above := o.Unseen[n:]; len(above) > maxAbove+1 {
		o.Unseen, o.coarse = append(o.Unseen[:n+maxAbove:n+maxAbove], everything(above[maxAbove].First)), true
	}
}
