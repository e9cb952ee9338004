package retention

import (
	"testing"
	"time"

	"oncewatch/collectors/handled"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// Whose commits are gone, case by case; and where nothing can be said.
func TestMissingCommits(t *testing.T) {
	t.Parallel()
	topics := func() *kafka.Topics {
		return &kafka.Topics{Topics: map[string]*kafka.Topic{
			"payments": {Name: "payments", Partitions: make([]kafka.Partition, 2)}, "unread": {Name: "unread"}}}
	}
	series := func(topic string, partitions ...int64) *postgres.Series {
		s := &postgres.Series{Group: "ledger", Topic: topic, Oldest: t0, Handled: map[int64]postgres.Handled{}}
		for _, id := range partitions {
			s.Handled[id] = postgres.Handled{To: 9}
		}
		return s
	}
	group := func(readable bool, partitions ...int32) *kafka.Group {
		g := &kafka.Group{Name: "ledger", Readable: readable}
		if len(partitions) > 0 {
			gt := kafka.GroupTopic{Topic: "payments"}
			for _, id := range partitions {
				gt.Partitions = append(gt.Partitions, kafka.GroupPartition{Partition: id, Committed: 10})
			}
			g.Topics = []kafka.GroupTopic{gt}
		}
		return g
	}
	full := postgres.Columns{Group: "g", Topic: "t", Partition: "p", Offset: "o"}
	for name, tt := range map[string]struct {
		has      postgres.Columns
		marked   *postgres.Series
		group    *kafka.Group
		ok, gone bool
	}{
		"all there":                             {full, series("payments", 0, 1), group(true, 0, 1), true, false},
		"none":                                  {full, series("payments", 0, 1), group(true), true, true},
		"one partition":                         {full, series("payments", 0, 1), group(true, 1), true, true},
		"a partition without markers":           {full, series("payments", 1), group(true, 1), true, false},
		"a partition that is no more":           {full, series("payments", 1, 7), group(true, 1), true, false},
		"the group could not be read":           {full, series("payments", 0), group(false), false, false},
		"no such group":                         {full, series("payments", 0), nil, false, false},
		"the topic is not on this cluster":      {full, series("elsewhere", 0), group(true), false, false},
		"the topic could not be read":           {full, series("unread", 0), group(true), false, false},
		"no offsets in the table":               {postgres.Columns{Group: "g", Topic: "t"}, series("payments"), group(true), true, true},
		"no topic in the table, no commits":     {postgres.Columns{Group: "g"}, series(""), group(true), true, true},
		"no topic in the table, commits on one": {postgres.Columns{Group: "g"}, series(""), group(true, 0), false, false},
		"no markers":                            {full, &postgres.Series{Group: "ledger", Topic: "payments"}, group(true), false, false},
	} {
		m := &postgres.Markers{Table: &postgres.Table{Has: tt.has}}
		if got, ok := missing(m, tt.marked, tt.group, topics()); ok != tt.ok || got.Gone != tt.gone {
			t.Errorf("%s: %+v, %v; want %v, %v", name, got, ok, tt.gone, tt.ok)
		}
	}
}

// A group whose offsets are gone is in nobody's list at the first look, and is
// found by the name that its markers have at the second: what it had handled
// before is unverified, and no beginning that was seen.
func TestAGroupFoundByItsMarkersBeganBefore(t *testing.T) {
	t.Parallel()
	topics := &kafka.Topics{Topics: map[string]*kafka.Topic{"payments": {Name: "payments", Partitions: make([]kafka.Partition, 1)}}}
	at := func(minutes int, to int64) []*postgres.Markers {
		s := postgres.Series{Group: "ledger", Topic: "payments", Oldest: t0, Handled: map[int64]postgres.Handled{}}
		if to >= 0 {
			s.Handled[0] = postgres.Handled{To: to, Unseen: []handled.Range{{First: 0, Last: 2, Most: 3}}}
		}
		return []*postgres.Markers{{Database: "db", Ready: true, ReadAt: t0.Add(time.Duration(minutes) * time.Minute), Series: []postgres.Series{s},
			Table: &postgres.Table{Has: postgres.Columns{Group: "g", Topic: "t", Partition: "p", Offset: "o"}}}}
	}
	unlisted, found := &kafka.Groups{}, &kafka.Groups{Groups: []*kafka.Group{{Name: "ledger", State: "Dead", Readable: true}}}
	place := Place{"ledger", "payments", 0}
	for name, tt := range map[string]struct {
		first int64
		began bool
	}{"markers at the first look": {9, false}, "no markers yet": {-1, true}} {
		w := watch{}
		w.see(topics, unlisted, at(0, tt.first))
		for minutes := range 3 {
			w.see(topics, found, at(1+minutes, 9))
		}
		one := w["db"]
		if one.began(place) != tt.began {
			t.Errorf("%s: began while watched: %v, passed unseen %v", name, one.began(place), one.Blind[place])
		}
		h := at(0, 9)[0].Series[0].Handled[0]
		if n := len(one.unverified(place, &h, 0, 10)); n != 1 && !tt.began || n != 0 && tt.began {
			t.Errorf("%s: %d ranges are unverified", name, n)
		}
	}
}
