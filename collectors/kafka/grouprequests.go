package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/poll"
)

// The group types that are watched. Share and streams groups, and groups that
// are no consumers, are left out.
const (
	classic  = "classic"
	consumer = "consumer" // KIP-848
)

// listedGroup is a group as its coordinator lists it.
type listedGroup struct {
	name        string
	kind        string
	state       string // empty before Kafka 2.6
	coordinator int32
	// unlisted: it is awaited, and its coordinator does not list it.
	unlisted bool
}

// listGroups asks every broker for the groups it coordinates; while a
// coordinator moves, two brokers may list the same one. An error means that no
// broker answered.
func (r *requester) listGroups(ctx context.Context, brokers []int32) ([]listedGroup, []poll.Problem, error) {
	requests := make(map[int32]kmsg.Request, len(brokers))
	for _, b := range brokers {
		requests[b] = kmsg.NewPtrListGroupsRequest()
	}
	answers := ask[*kmsg.ListGroupsResponse](ctx, r, requests)
	var (
		groups   []listedGroup
		problems []poll.Problem
		last     error
	)
	answered := 0
	for broker, err := range answers.refused {
		last = err
		problems = append(problems, problem(fmt.Sprintf("groups of broker %d", broker), err))
	}
	for broker, resp := range answers.ok {
		if err := codeError(resp.ErrorCode); err != nil {
			last = fmt.Errorf("ListGroups: %w", err)
			problems = append(problems, problem(fmt.Sprintf("groups of broker %d", broker), last))
			continue
		}
		answered++
		for _, g := range resp.Groups {
			kind := strings.ToLower(g.GroupType)
			if kind == "" {
				kind = classic // before Kafka 3.7 there was no other
			}
			// Commits without a consumer leave the protocol empty; Connect's
			// workers and schema registries have one of their own.
			if kind == classic && g.ProtocolType != "consumer" && g.ProtocolType != "" {
				kind = g.ProtocolType
			}
			groups = append(groups, listedGroup{name: g.Group, kind: kind, state: g.GroupState, coordinator: broker})
		}
	}
	if answered == 0 {
		if last == nil {
			for _, err := range r.down {
				last = err
			}
		}
		if last == nil {
			last = fmt.Errorf("the cluster has no broker")
		}
		return nil, nil, fmt.Errorf("list consumer groups: %w", last)
	}
	return groups, problems, nil
}

// commit is a group's next offset on a partition.
type commit struct {
	partition int32
	offset    int64
}

// commits are one group's, by topic. A partition that could not be read is in
// none of them; a group that could not has an error.
type commits struct {
	topics map[string][]commit
	err    error
}

// fetchCommits asks each coordinator once for all its groups.
func (r *requester) fetchCommits(ctx context.Context, groups []listedGroup, watched func(topic string) bool) (map[string]commits, []poll.Problem) {
	requests := map[int32]kmsg.Request{}
	for _, g := range groups {
		req, _ := requests[g.coordinator].(*kmsg.OffsetFetchRequest)
		if req == nil {
			req = kmsg.NewPtrOffsetFetchRequest()
			requests[g.coordinator] = req
		}
		rg := kmsg.NewOffsetFetchRequestGroup()
		rg.Group = g.name // all its topics
		req.Groups = append(req.Groups, rg)
	}
	answers := ask[*kmsg.OffsetFetchResponse](ctx, r, requests)
	out := make(map[string]commits, len(groups))
	var problems []poll.Problem
	for _, resp := range answers.ok {
		for _, g := range resp.Groups {
			c := commits{topics: map[string][]commit{}, err: codeError(g.ErrorCode)}
			if errors.Is(c.err, kerr.GroupIDNotFound) {
				c.err = nil // a group that is gone has no commits
			}
			failed := map[string]error{}
			for _, t := range g.Topics {
				if !watched(t.Topic) {
					continue
				}
				for _, p := range t.Partitions {
					if err := codeError(p.ErrorCode); err != nil {
						failed[t.Topic] = err
						continue
					}
					if p.Offset >= 0 { // -1: no commit, which is no lag of the whole log
						c.topics[t.Topic] = append(c.topics[t.Topic], commit{p.Partition, p.Offset})
					}
				}
			}
			for topic, err := range failed {
				problems = append(problems, problem(fmt.Sprintf("group %s, commits on topic %s", g.Group, topic), err))
			}
			out[g.Group] = c
		}
	}
	for _, g := range groups {
		if err := answers.refused[g.coordinator]; err != nil {
			out[g.name] = commits{err: err}
		}
		if c, ok := out[g.name]; ok && c.err != nil {
			problems = append(problems, problem("group "+g.name, fmt.Errorf("fetch its commits: %w", c.err)))
		}
	}
	return out, problems
}
