package retention

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
)

// descs are a gauge by partition, or by topic where that is all that is wanted.
func descs(name, help string) [2]*prometheus.Desc {
	return [2]*prometheus.Desc{
		prometheus.NewDesc(name, help, []string{"database", "consumer_group", "topic", "partition"}, nil),
		prometheus.NewDesc(name, help, []string{"database", "consumer_group", "topic"}, nil),
	}
}

var (
	unprotectedDescs = descs("processed_events_unprotected_records",
		"Records still on the broker, below the group's committed offset (below the highest handled one where the commit is gone), whose marker is known to be gone: a reset to earliest applies each of them twice. Exact where processed_events_unverified_records is 0. Absent where the log or the commits could not be read.")
	unverifiedDescs = descs("processed_events_unverified_records",
		"Of the same records, those of which nobody knows whether they ever had a marker. The truth lies between processed_events_unprotected_records and the sum of both. Absent where the log or the commits could not be read.")
	safeDesc = prometheus.NewDesc("processed_events_safe_reset_offset",
		"The lowest offset to which a reset applies nothing twice. Absent where the log or the commits could not be read.", []string{"database", "consumer_group", "topic", "partition"}, nil)
	rewindDesc = prometheus.NewDesc("processed_events_safe_rewind_seconds",
		"How far back in time the group may be reset on the topic without applying anything twice: the least of its partitions. Absent where one of them is not known.", []string{"database", "consumer_group", "topic"}, nil)
)

func describe(ch chan<- *prometheus.Desc, byTopic bool) {
	ch <- missingDesc
	if ch <- rewindDesc; byTopic {
		ch <- unprotectedDescs[1]
		ch <- unverifiedDescs[1]
		return
	}
	ch <- unprotectedDescs[0]
	ch <- unverifiedDescs[0]
	ch <- safeDesc
}

// Snapshot is what one poll found. Nothing in it changes.
type Snapshot struct {
	// At is when the poll began, by our clock.
	At time.Time
	// Series by database, group and topic: those that have markers and commits.
	Series []*Series
	// Missing by group and topic: those that have markers.
	Missing []Missing

	byTopic  bool
	problems []poll.Problem
}

// Series is a consumer group on a topic, with its markers in one database.
type Series struct {
	Database, Group, Topic string
	// Exact says that markers and records were compared by offset; else by
	// time, within a margin for clocks.
	Exact bool
	// Partitions that the group has a commit on, in order.
	Partitions []*Partition
	// Numbers are the five retention numbers; Margins compares them, the
	// smallest first; Changes would each mend the smallest.
	Numbers Numbers
	Margins []Margin
	Changes []Change
	// SafeRewind is the earliest time to which the group may be reset without
	// applying anything twice. Not known where one of its partitions is not.
	SafeRewind kafka.Known[time.Time]

	at time.Time
}

// Partition is one of a Series.
type Partition struct {
	Partition int32
	// LogStart is the first offset that is still there, Committed the group's
	// next one; where CommitGone, the one behind the highest handled.
	LogStart   kafka.Known[int64]
	Committed  int64
	CommitGone bool
	// Unprotected is how many records a reset to earliest would apply twice at
	// least; Unverified how many more it may be. Both are known or neither.
	Unprotected, Unverified kafka.Known[int64]
	// Safe is the lowest offset to which a reset applies nothing twice.
	Safe kafka.Known[int64]
	// Gone are the offsets whose markers are known to be gone, Unseen those of
	// which nobody can tell.
	Gone, Unseen []handled.Range
	// Why says in words why nothing, or not all, is known.
	Why string
}

// conclude sets the numbers from the ranges.
func (p *Partition) conclude() {
	gone, unverified := p.Between(math.MinInt64, math.MaxInt64)
	p.Unprotected, p.Unverified = known(gone), known(unverified)
	safe := p.LogStart.Value
	for _, list := range [][]handled.Range{p.Gone, p.Unseen} {
		for _, r := range list {
			if _, most := r.Within(p.LogStart.Value, p.Committed); most > 0 {
				safe = max(safe, min(r.Last+1, p.Committed))
			}
		}
	}
	p.Safe = known(safe)
	if unverified > 0 && p.Why == "" {
		p.Why = fmt.Sprintf("of %d of the records from offset %d on nobody knows whether they ever had a marker: never handled, or pruned before oncewatch looked", unverified, p.LogStart.Value)
	}
}

// Between is how many of the group's records with lo <= offset < hi a reset to
// lo would apply twice at least, and how many more it may be.
func (p *Partition) Between(lo, hi int64) (gone, unverified int64) {
	lo, hi = max(lo, p.LogStart.Value), min(hi, p.Committed)
	if lo >= hi {
		return 0, 0
	}
	for _, r := range p.Gone {
		least, most := r.Within(lo, hi)
		gone, unverified = gone+least, unverified+most-least
	}
	for _, r := range p.Unseen {
		_, most := r.Within(lo, hi)
		unverified += most
	}
	gone = min(gone, hi-lo)
	return gone, min(unverified, hi-lo-gone)
}

// Range is the offsets From <= offset < To: so many of them a reset would apply
// twice at least, and so many more perhaps.
type Range struct {
	From       int64 `json:"from"`
	To         int64 `json:"to"`
	Gone       int64 `json:"gone"`
	Unverified int64 `json:"unverified"`
}

// Ranges is where the records are, in at most so many ranges; 0: in all.
func (p *Partition) Ranges(most int) []Range {
	var out []Range
	for _, list := range [][]handled.Range{p.Gone, p.Unseen} {
		for _, r := range list {
			lo, hi := max(r.First, p.LogStart.Value), min(r.Last+1, p.Committed)
			if l, m := r.Within(lo, hi); m > 0 {
				out = append(out, Range{From: lo, To: hi, Gone: l, Unverified: m - l})
			}
		}
	}
	slices.SortFunc(out, func(a, b Range) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	join := func(i int) {
		a, b := out[i-1], out[i]
		a.To = max(a.To, b.To)
		a.Gone = min(a.Gone+b.Gone, a.To-a.From)
		a.Unverified = min(a.Unverified+b.Unverified, a.To-a.From-a.Gone)
		out[i-1] = a
		out = slices.Delete(out, i, i+1)
	}
	for i := 1; i < len(out); { // those that overlap, and neighbours of one kind
		a, b := out[i-1], out[i]
		if b.From < a.To || b.From == a.To && (a.Gone == 0) == (b.Gone == 0) && (a.Unverified == 0) == (b.Unverified == 0) {
			join(i)
		} else {
			i++
		}
	}
	for most > 0 && len(out) > most { // across the smallest gap
		at := 1
		for i := 2; i < len(out); i++ {
			if out[i].From-out[i-1].To < out[at].From-out[at-1].To {
				at = i
			}
		}
		join(at)
	}
	return out
}

// Unprotected adds the partitions up; not known where one of them is not and
// the others have none.
func (s *Series) Unprotected() kafka.Known[int64] {
	return s.sum(func(p *Partition) kafka.Known[int64] { return p.Unprotected })
}

// Unverified adds the partitions up; not known where one of them is not.
func (s *Series) Unverified() kafka.Known[int64] {
	if !s.Complete() {
		return kafka.Known[int64]{}
	}
	return s.sum(func(p *Partition) kafka.Known[int64] { return p.Unverified })
}

// Complete says that every partition is known at least within bounds.
func (s *Series) Complete() bool {
	return len(s.Partitions) > 0 && !slices.ContainsFunc(s.Partitions, func(p *Partition) bool {
		return !p.Unprotected.OK || !p.Unverified.OK || p.Unprotected.Value < 0 || p.Unverified.Value < 0
	})
}

func (s *Series) sum(of func(*Partition) kafka.Known[int64]) kafka.Known[int64] {
	n := int64(0)
	for _, p := range s.Partitions {
		n += min(max(0, of(p).Value), math.MaxInt64-n)
	}
	if n == 0 && !s.Complete() {
		return kafka.Known[int64]{}
	}
	return known(n)
}

// Find returns the series of a database, group and topic; nil where there is
// none.
func (s *Snapshot) Find(database, group, topic string) *Series {
	for _, one := range s.Series {
		if one.Database == database && one.Group == group && one.Topic == topic {
			return one
		}
	}
	return nil
}

// Problems implements poll.Snapshot.
func (s *Snapshot) Problems() []poll.Problem { return s.problems }

// Collect implements poll.Snapshot.
func (s *Snapshot) Collect(now time.Time, ch chan<- prometheus.Metric) {
	s.collectMissing(ch)
	for _, one := range s.Series {
		if at := one.SafeRewind; at.OK {
			poll.Age(ch, rewindDesc, now.Sub(at.Value).Seconds(), one.Database, one.Group, one.Topic)
		}
		if s.byTopic {
			if n := one.Unprotected(); n.OK {
				poll.Gauge(ch, unprotectedDescs[1], float64(n.Value), one.Database, one.Group, one.Topic)
			}
			if n := one.Unverified(); n.OK {
				poll.Gauge(ch, unverifiedDescs[1], float64(n.Value), one.Database, one.Group, one.Topic)
			}
			continue
		}
		for _, p := range one.Partitions {
			id := strconv.Itoa(int(p.Partition))
			if p.Unprotected.OK {
				poll.Gauge(ch, unprotectedDescs[0], float64(p.Unprotected.Value), one.Database, one.Group, one.Topic, id)
				poll.Gauge(ch, unverifiedDescs[0], float64(p.Unverified.Value), one.Database, one.Group, one.Topic, id)
				poll.Gauge(ch, safeDesc, float64(p.Safe.Value), one.Database, one.Group, one.Topic, id)
			}
		}
	}
}
