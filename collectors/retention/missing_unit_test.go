package retention

import (
	"testing"

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
