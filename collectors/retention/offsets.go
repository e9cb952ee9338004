package retention

import (
	"slices"
	"time"

	"oncewatch/collectors/kafka"
)

// byOffset is exact: a record is unprotected where its offset had a marker that
// was seen to vanish and was not written again. It counts markers and not
// offsets, so control records, aborted transactions and events the group had
// met before under another offset are not in it.
type byOffset struct {
	history *history
}

func (b *byOffset) ask(s *subject, q *questions) {
	for _, p := range s.parts {
		if s.settled(p) {
			continue
		}
		// The log may have lost its head since the snapshot, by retention,
		// deletion or compaction: look again, now that the markers are read.
		if count, unseen, _ := b.count(s, p, p.start.Value, p.Committed); count > 0 || unseen > 0 {
			q.first(s.series.Topic, p.Partition.Partition)
		}
	}
}

func (b *byOffset) judge(s *subject, q *questions) {
	var commits []*kafka.GroupTopic
	for _, p := range s.parts {
		if s.settled(p) {
			continue
		}
		low, top := p.start.Value, known(p.Committed)
		count, unseen, _ := b.count(s, p, low, top.Value)
		if count > 0 || unseen > 0 {
			first, _, ok := q.got(s.series.Topic, p.Partition.Partition, time.UnixMilli(0), p.end.Value)
			if !ok {
				p.Why = "the broker did not tell the first record's offset"
				continue
			}
			low = first
			p.LogStart = known(low)
		}
		if count > 0 {
			if commits == nil {
				commits = b.history.commits(s.series.Group, s.series.Topic, s.markers.ReadAt)
			}
			if top = lowest(commits, p.Partition.Partition); !top.OK {
				p.Why = "the group's commits were not read before the markers yet"
				continue
			}
		}
		count, p.Unseen, p.Gone = b.count(s, p, low, top.Value)
		s.conclude(p, count)
	}
}

// count is how many markers are gone of the offsets from low to top, of how
// many no marker was ever seen, and where the gone ones were.
func (b *byOffset) count(s *subject, p *part, low, top int64) (count, unseen int64, gone []Range) {
	if low >= top {
		return 0, 0, nil
	}
	h, ok := s.marked.Handled[int64(p.Partition.Partition)]
	if !ok {
		return 0, top - low, nil
	}
	void := b.history.voidBefore(s.series.Database, s.series.Topic)
	for _, g := range h.Gone {
		n := g.Within(low, top)
		if n == 0 || !g.Newest.IsZero() && g.Newest.Before(void) {
			continue
		}
		count += n
		r := Range{max(low, g.First), min(top-1, g.Last)}
		if i := len(gone) - 1; i >= 0 && gone[i].Last+1 >= r.First {
			gone[i].Last = max(gone[i].Last, r.Last)
		} else {
			gone = append(gone, r)
		}
	}
	return min(count, top-low), max(0, min(h.From, top)-low), fewer(gone)
}

// maxRanges is how many ranges a person is shown.
const maxRanges = 8

// fewer joins ranges across the smallest gaps until they can be shown.
func fewer(ranges []Range) []Range {
	for len(ranges) > maxRanges {
		at := 1
		for i := 2; i < len(ranges); i++ {
			if ranges[i].First-ranges[i-1].Last < ranges[at].First-ranges[at-1].Last {
				at = i
			}
		}
		ranges[at-1].Last = max(ranges[at-1].Last, ranges[at].Last)
		ranges = slices.Delete(ranges, at, at+1)
	}
	return ranges
}

var _ OffsetLister = (*kafka.Client)(nil)
