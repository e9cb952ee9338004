package retention

import (
	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// byOffset compares by offset: a record is unprotected where its offset had a
// marker that was seen to vanish and was not written again. It counts markers
// and not offsets, so control records, aborted transactions and events the group
// had met before under another offset are not in it.
type byOffset struct {
	*subject
	history *history
	watched *Watched
}

func (b *byOffset) ask(q *questions) {
	for _, p := range b.parts {
		// The log may have lost its head since the snapshot, by retention,
		// deletion or compaction: look again, now that the markers are read.
		if !b.settled(p) && b.fill(p, p.start.Value, p.Committed) {
			q.first(b.series.Topic, p.Partition.Partition)
		}
	}
}

func (b *byOffset) judge(q *questions) {
	var commits []*kafka.GroupTopic
	for _, p := range b.parts {
		if b.settled(p) {
			continue
		}
		low, top := p.start.Value, known(p.Committed)
		if b.fill(p, low, top.Value) {
			first, _, ok := q.got(b.series.Topic, p.Partition.Partition, epoch, p.end.Value)
			if !ok {
				b.unknown(p, "the broker did not tell the first record's offset")
				continue
			}
			low = max(low, first)
			p.LogStart = known(low)
			if !p.CommitGone {
				if commits == nil {
					commits = b.history.commits(b.series.Group, b.series.Topic, b.markers.ReadAt)
				}
				if top = lowest(commits, p.Partition.Partition); !top.OK {
					b.unknown(p, "the group's commits were not read before the markers yet")
					continue
				}
			}
		}
		b.fill(p, low, top.Value)
		if b.missed() {
			p.Why = "markers have vanished that are still being looked for"
			p.Unseen = all(low, top.Value)
		}
		p.conclude()
	}
}

// fill sets which offsets from low to top have lost their markers, and of which
// nobody can tell. It says whether there are any.
func (b *byOffset) fill(p *part, low, top int64) bool {
	p.Gone, p.Unseen = nil, nil
	if low >= top {
		return false
	}
	id := p.Partition.Partition
	var h *postgres.Handled
	if one, ok := b.marked.Handled[int64(id)]; ok {
		h = &one
	}
	var void int64
	if b.watched != nil {
		if t := b.watched.Topics[b.series.Topic].Anew; !t.IsZero() {
			void = t.UnixMicro()
		}
	}
	if h != nil {
		p.Gone = within(h.Gone, low, top, func(r handled.Range) bool { return r.Newest >= void })
	}
	if began, ok := b.marked.Began[int64(id)]; ok {
		low = max(low, began)
	}
	p.Unseen = b.watched.unverified(Place{b.series.Group, b.series.Topic, id}, h, low, top)
	return len(p.Gone)+len(p.Unseen) > 0
}

// within is the ranges of which something lies between two offsets. Only those
// that top cuts are others than before.
func within(list []handled.Range, low, top int64, keep func(handled.Range) bool) (out []handled.Range) {
	for _, r := range list {
		if _, most := r.Within(low, top); most == 0 || !keep(r) {
			continue
		}
		if r.Last >= top {
			least, most := r.Within(r.First, top)
			r = handled.Range{First: r.First, Last: top - 1, Least: least, Most: most, Newest: r.Newest}
		}
		out = append(out, r)
	}
	return out
}

// all is the offsets from low to top, of which nothing is known.
func all(low, top int64) []handled.Range {
	if low >= top {
		return nil
	}
	return []handled.Range{{First: low, Last: top - 1, Most: top - low}}
}

var _ OffsetLister = (*kafka.Client)(nil)
