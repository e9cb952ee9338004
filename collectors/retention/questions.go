package retention

import (
	"context"
	"fmt"
	"time"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
)

// questions are the offsets that a poll wants of the broker: for each
// partition the first record at or after a time. Those of all groups go
// together, in as many rounds as one partition is asked for different times.
type questions struct {
	rounds  []map[string]map[int32]time.Time
	answers map[question]kafka.ListedOffset
}

type question struct {
	topic     string
	partition int32
	at        int64 // milliseconds
}

// first asks for the first record of a partition.
func (q *questions) first(topic string, partition int32) { q.ask(topic, partition, epoch) }

// epoch is before every record.
var epoch = time.UnixMilli(0)

func (q *questions) ask(topic string, partition int32, at time.Time) {
	for i := 0; ; i++ {
		if i == len(q.rounds) {
			q.rounds = append(q.rounds, map[string]map[int32]time.Time{})
		}
		round := q.rounds[i]
		if round[topic] == nil {
			round[topic] = map[int32]time.Time{}
		}
		was, taken := round[topic][partition]
		if !taken {
			round[topic][partition] = at
			return
		}
		if was.UnixMilli() == at.UnixMilli() {
			return
		}
	}
}

// answer asks all of it. What could not be read is a problem, and has no
// answer.
func (q *questions) answer(ctx context.Context, lister OffsetLister) []poll.Problem {
	q.answers = map[question]kafka.ListedOffset{}
	var problems []poll.Problem
	for _, round := range q.rounds {
		answers, err := lister.ListOffsets(ctx, round)
		if err != nil {
			return append(problems, poll.Problem{Kind: poll.Kind(err), Entity: "offsets by time", Err: err})
		}
		failed := map[string]int{}
		for topic, partitions := range round {
			for id, at := range partitions {
				a, ok := answers[topic][id]
				if ok && a.Err == nil {
					q.answers[question{topic, id, at.UnixMilli()}] = a
					continue
				}
				if !ok {
					a.Err = fmt.Errorf("topic %s, partition %d: no answer", topic, id)
				}
				if failed[topic]++; failed[topic] == 1 { // a topic of a hundred is one problem
					problems = append(problems, poll.Problem{Kind: poll.Kind(a.Err), Entity: "offsets by time, topic " + topic, Err: a.Err})
				}
			}
		}
	}
	return problems
}

// got is an answer: the first record's offset, or end where there is none.
// exact is false where the record is there or after.
func (q *questions) got(topic string, partition int32, at time.Time, end int64) (offset int64, exact, ok bool) {
	a, ok := q.answers[question{topic, partition, at.UnixMilli()}]
	if ok && a.Offset < 0 {
		return end, true, true
	}
	return a.Offset, !a.AtLeast, ok
}
