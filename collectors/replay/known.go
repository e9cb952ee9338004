package replay

import (
	"cmp"
	"fmt"
	"slices"

	"oncewatch/collectors/handled"
)

// Known is what is known of one partition's offsets without reading them, from
// the log's start to the group's own offset.
type Known struct {
	// Gone had a marker that vanished; of Unverified nobody knows whether they
	// ever had one.
	Gone, Unverified []handled.Range
	// Why says why something is not known.
	Why string
}

// Know completes the answer by what is known of the partitions; what known has
// nothing of is not known. It says nothing of times: see SafeTimes.
func (a *Answer) Know(known func(topic string, partition int32) (Known, bool)) {
	for i := range a.Topics {
		t := &a.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			k, ok := known(t.Topic, p.Partition)
			if !ok && p.LogStart < p.Committed {
				n := p.Committed - p.LogStart
				k = Known{Unverified: []handled.Range{{First: p.LogStart, Last: p.Committed - 1, Most: n}}, Why: fmt.Sprintf("no marker of group %s on it was ever seen", a.Group)}
			}
			p.know(k)
		}
	}
	a.conclude()
}

func (p *Partition) know(k Known) {
	lo, hi := max(p.Target, p.LogStart), p.Committed
	p.Counts = Counts{Skipped: p.Skipped, Again: max(0, hi-lo)}
	p.SafeOffset = min(p.LogStart, hi)
	var atMost int64
	sum := func(spans []handled.Range, into *[]Range) (least, most int64) {
		for _, s := range spans {
			if _, any := s.Within(p.LogStart, hi); any > 0 {
				p.SafeOffset = max(p.SafeOffset, min(s.Last+1, hi))
			}
			l, m := s.Within(lo, hi)
			if m > 0 {
				*into = append(*into, Range{max(s.First, lo), min(s.Last, hi-1)})
			}
			least, most = least+l, most+m
		}
		*into = fewer(*into)
		return least, most
	}
	p.Twice, atMost = sum(k.Gone, &p.Gone)
	_, unverified := sum(k.Unverified, &p.Unverified)
	p.Twice = min(p.Twice, p.Again)
	p.Unknown = min(atMost-p.Twice+unverified, p.Again-p.Twice)
	p.Protected = p.Again - p.Twice - p.Unknown
	if p.Unknown > 0 {
		p.Why = cmp.Or(k.Why, "whether these records ever had a marker was not seen: they were handled before the first look, or while nobody looked")
	}
}

// mostRanges is how many ranges of a partition are told.
const mostRanges = 8

// fewer joins ranges across the smallest gaps until they can be shown.
func fewer(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	for len(ranges) > mostRanges {
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
