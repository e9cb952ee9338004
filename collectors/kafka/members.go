package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/poll"
)

type seenMembers struct {
	state string // as listed when it was described
	poll  int    // in which the subscription was read
	description
}

// describeEvery is how many polls apart the members of all groups are asked
// for; a group whose state has changed is described at once. The two types take
// turns, so that no poll has both.
const describeEvery = 4

var describeAt = map[string]int{classic: 1, consumer: 3}

// members describes the groups that are due.
func (c *Client) members(ctx context.Context, r *requester, groups []listedGroup) []poll.Problem {
	kept := make(map[string]seenMembers, len(groups))
	var due []listedGroup
	for _, g := range groups {
		if g.state == "Empty" || g.state == "Dead" {
			kept[g.name] = seenMembers{g.state, 0, description{state: g.state}}
			continue
		}
		seen, ok := c.memory.members[g.name]
		passing := seen.err != nil && kindOf(seen.err) != "denied"
		if !ok || passing || g.state == "" || seen.state != g.state || c.memory.polls%describeEvery == describeAt[g.kind] {
			due = append(due, g)
		} else {
			kept[g.name] = seen
		}
	}
	for _, kind := range []string{classic, consumer} {
		described := r.describe(ctx, due, kind)
		for _, g := range due {
			if d, ok := described[g.name]; ok {
				kept[g.name] = c.memory.members[g.name].then(seenMembers{g.state, c.memory.polls, d})
			}
		}
	}
	c.memory.members = kept
	var problems []poll.Problem
	for name, seen := range kept {
		if seen.err != nil {
			problems = append(problems, problem("group "+name+", members", fmt.Errorf("describe it: %w", seen.err)))
		}
	}
	return problems
}

// then is what is known after a group was described again. While its members
// join, a classic group does not tell what they subscribe to: it is taken to be
// what it was, for a while.
func (s seenMembers) then(now seenMembers) seenMembers {
	if now.err == nil && now.members > 0 && now.subscription == nil && s.subscription != nil && now.poll-s.poll <= 3*describeEvery {
		now.subscription, now.poll = s.subscription, s.poll
	}
	return now
}

// description is what only describing a group tells.
type description struct {
	state   string
	members int
	// subscription is nil where the group has no members or does not tell.
	subscription *subscription
	err          error
}

// describe asks each coordinator once for all its groups of one type.
func (r *requester) describe(ctx context.Context, groups []listedGroup, kind string) map[string]description {
	names := map[int32][]string{}
	for _, g := range groups {
		if g.kind == kind {
			names[g.coordinator] = append(names[g.coordinator], g.name)
		}
	}
	out := map[string]description{}
	var refused map[int32]error
	if kind == consumer {
		requests := map[int32]kmsg.Request{}
		for broker, groups := range names {
			req := kmsg.NewPtrConsumerGroupDescribeRequest()
			req.Groups = groups
			requests[broker] = req
		}
		answers := ask[*kmsg.ConsumerGroupDescribeResponse](ctx, r, requests)
		for _, resp := range answers.ok {
			for _, g := range resp.Groups {
				out[g.Group] = description{g.State, len(g.Members), subscriptionOf(g.Members), codeError(g.ErrorCode)}
			}
		}
		refused = answers.refused
	} else {
		requests := map[int32]kmsg.Request{}
		for broker, groups := range names {
			req := kmsg.NewPtrDescribeGroupsRequest()
			req.Groups = groups
			requests[broker] = req
		}
		answers := ask[*kmsg.DescribeGroupsResponse](ctx, r, requests)
		for _, resp := range answers.ok {
			for _, g := range resp.Groups {
				d := description{g.State, len(g.Members), classicSubscriptionOf(g.Members), codeError(g.ErrorCode)}
				if d.err == nil && g.State == "Dead" {
					// What versions below 6 answer for a group that is not theirs.
					d.err = kerr.GroupIDNotFound
				}
				out[g.Group] = d
			}
		}
		refused = answers.refused
	}
	for broker, err := range refused {
		for _, name := range names[broker] {
			out[name] = description{err: err}
		}
	}
	return out
}
