package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"oncewatch/collectors/poll"
)

// pickGroups lists the groups, filters them, adds those that are awaited, and
// leaves out what is too many. unlocated are the groups of the last poll whose
// coordinator cannot be found just now.
func (c *Client) pickGroups(ctx context.Context, r *requester, brokers []int32, watched map[string]bool) (picked []listedGroup, left int, unlocated map[string]string, _ []poll.Problem, _ error) {
	unlocated = map[string]string{}
	listed, problems, err := r.listGroups(ctx, brokers)
	if err != nil {
		return nil, 0, c.memory.groups, nil, err
	}
	listed = slices.DeleteFunc(listed, func(g listedGroup) bool { return !c.groups.matches(g.name) })
	awaited := maps.Clone(c.memory.groups)
	for name := range watched {
		if awaited[name] == "" && c.groups.matches(name) {
			awaited[name] = classic
		}
	}
	listed = slices.DeleteFunc(listed, func(g listedGroup) bool {
		if g.kind != classic && g.kind != consumer {
			delete(awaited, g.name)
			return true
		}
		return false
	})
	listed, failed := r.locate(ctx, brokers, listed, awaited)
	for name, err := range failed {
		problems = append(problems, problem("group "+name, fmt.Errorf("find its coordinator: %w", err)))
		if kind, ok := c.memory.groups[name]; ok {
			unlocated[name] = kind
		}
	}
	if left = len(listed) - c.config.MaxGroups; left <= 0 {
		return listed, 0, unlocated, problems, nil
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
	return picked, left, unlocated, problems, nil
}

// withCommits drops groups that there is nothing to say of, unless they have
// markers, or were asked for and are there. A group that its coordinator neither
// lists nor has commits of is dead.
func (c *Client) withCommits(groups []listedGroup, committed map[string]commits, watched map[string]bool) []listedGroup {
	for i, g := range groups {
		if got, ok := committed[g.name]; g.unlisted && ok && got.err == nil {
			groups[i].state = "Dead"
		}
	}
	return slices.DeleteFunc(groups, func(g listedGroup) bool {
		got, ok := committed[g.name]
		return ok && got.err == nil && len(got.topics) == 0 && !watched[g.name] && (c.config.Group == "" || g.unlisted)
	})
}
