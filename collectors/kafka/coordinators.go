package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/poll"
)

// offsetsTopic holds the groups: each of its partitions is a coordinator, and
// where one has no leader its groups are in no broker's list.
const offsetsTopic = "__consumer_offsets"

// offline names the partitions of the offsets topic that have no leader. What
// cannot be read of it, since DESCRIBE on it is denied or there is none yet, is
// no problem of its own.
func (m topicMetadata) offline() []poll.Problem {
	found := partitionProblems{}
	for id, l := range m.leaders {
		if l.err != nil {
			found.add(partition{offsetsTopic, id}, fmt.Errorf("%w: the groups that are coordinated there cannot be read", l.err))
		}
	}
	return found.problems()
}

// locate settles which broker coordinates what the lists leave in doubt: groups
// that two brokers list, while their coordinator moves, and groups that are
// awaited and that no broker lists, because they are gone, denied or without a
// coordinator. One request, and none where nothing is in doubt.
func (r *requester) locate(ctx context.Context, brokers []int32, listed []listedGroup, awaited map[string]string) (_ []listedGroup, failed map[string]error) {
	slices.SortStableFunc(listed, func(a, b listedGroup) int { return strings.Compare(a.name, b.name) })
	times := map[string]int{}
	for _, g := range listed {
		times[g.name]++
	}
	var doubted []string
	for name, n := range times {
		if n > 1 {
			doubted = append(doubted, name)
		}
	}
	for name := range awaited {
		if times[name] == 0 {
			doubted = append(doubted, name)
		}
	}
	slices.Sort(doubted)
	found, failed := r.findCoordinators(ctx, brokers, doubted)
	listed = slices.DeleteFunc(listed, func(g listedGroup) bool {
		at, ok := found[g.name]
		return times[g.name] > 1 && ok && at != g.coordinator
	})
	for name, at := range found {
		if !slices.ContainsFunc(listed, func(g listedGroup) bool { return g.name == name }) {
			kind := awaited[name]
			if kind == "" {
				kind = classic
			}
			listed = append(listed, listedGroup{name: name, kind: kind, coordinator: at, unlisted: true})
		}
	}
	slices.SortStableFunc(listed, func(a, b listedGroup) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(listed, func(a, b listedGroup) bool { return a.name == b.name }), failed
}

// findCoordinators asks one broker who coordinates the groups.
func (r *requester) findCoordinators(ctx context.Context, brokers []int32, groups []string) (found map[string]int32, failed map[string]error) {
	found, failed = map[string]int32{}, map[string]error{}
	i := slices.IndexFunc(brokers, func(b int32) bool { return !r.isDown(b) })
	if len(groups) == 0 || i < 0 {
		return found, failed // downProblems tells
	}
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKeys = groups // of type group, the default
	answers := ask[*kmsg.FindCoordinatorResponse](ctx, r, map[int32]kmsg.Request{brokers[i]: req})
	for _, resp := range answers.ok {
		for _, c := range resp.Coordinators {
			if err := codeError(c.ErrorCode); err != nil {
				failed[c.Key] = err
			} else {
				found[c.Key] = c.NodeID
			}
		}
	}
	for _, err := range answers.refused {
		for _, name := range groups {
			failed[name] = err
		}
	}
	return found, failed
}
