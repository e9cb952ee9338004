package kafka

import (
	"context"
	"slices"
	"strings"

	"oncewatch/collectors/poll"
)

// pickGroups lists the groups, filters them, and leaves out what is too many.
func (c *Client) pickGroups(ctx context.Context, r *requester, brokers []int32, watched map[string]bool) (picked []listedGroup, left int, _ []poll.Problem, _ error) {
	listed, problems, err := r.listGroups(ctx, brokers)
	if err != nil {
		return nil, 0, nil, err
	}
	listed = slices.DeleteFunc(listed, func(g listedGroup) bool { return !c.groups.matches(g.name) })
	if left = len(listed) - c.config.MaxGroups; left <= 0 {
		return listed, 0, problems, nil
	}
	byName := func(a, b listedGroup) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(listed, func(a, b listedGroup) int {
		if watched[a.name] != watched[b.name] {
			if watched[a.name] {
				return -1
			}
			return 1
		}
		return byName(a, b)
	})
	picked = listed[:c.config.MaxGroups]
	slices.SortFunc(picked, byName)
	return picked, left, problems, nil
}

// withCommits drops groups that there is nothing to say of, unless they were
// asked for.
func (c *Client) withCommits(groups []listedGroup, committed map[string]commits, watched map[string]bool) []listedGroup {
	if c.config.Group != "" {
		return groups
	}
	return slices.DeleteFunc(groups, func(g listedGroup) bool {
		got, ok := committed[g.name]
		return ok && got.err == nil && len(got.topics) == 0 && !watched[g.name]
	})
}
