package kafka

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"oncewatch/collectors/poll"
)

// partitionProblems gathers partitions' failures, so that a topic of a hundred
// leaderless partitions is one problem.
type partitionProblems map[string]map[string][]failure // by topic, by kind

type failure struct {
	id  int32
	err error
}

func (f partitionProblems) add(p partition, err error) {
	if f[p.topic] == nil {
		f[p.topic] = map[string][]failure{}
	}
	kind := kindOf(err)
	f[p.topic][kind] = append(f[p.topic][kind], failure{p.id, err})
}

func (f partitionProblems) problems() []poll.Problem {
	var out []poll.Problem
	for topic, kinds := range f {
		for _, failures := range kinds {
			slices.SortFunc(failures, func(a, b failure) int { return cmp.Compare(a.id, b.id) })
			failures = slices.CompactFunc(failures, func(a, b failure) bool { return a.id == b.id })
			entity := fmt.Sprintf("topic %s, partition %d", topic, failures[0].id)
			if len(failures) > 1 {
				entity = fmt.Sprintf("topic %s, %d partitions from %d", topic, len(failures), failures[0].id)
			}
			out = append(out, problem(entity, failures[0].err))
		}
	}
	slices.SortFunc(out, func(a, b poll.Problem) int { return strings.Compare(a.Entity, b.Entity) })
	return out
}
