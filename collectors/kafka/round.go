package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"oncewatch/collectors/poll"
)

// round is one poll of the cluster, and the two snapshots that it gave or why
// it did not.
type round struct {
	number              int
	topics              *Topics
	groups              *Groups
	topicsErr           error
	groupsErr           error
	requests, timeSteps int // for the tests' figures
}

// memory is what a poll leaves to the next.
type memory struct {
	polls     int
	interest  map[string]bool // topics that groups had commits on
	configs   configs
	timelines map[partition]*timeline
	firstsAt  time.Time         // when first records were last asked for anew
	groups    map[string]string // by name, their types: those that were read, or should have been
	members   map[string]seenMembers
	stable    map[partition]stable
	// apache: the brokers are those of Apache Kafka, once askedFeatures.
	apache, askedFeatures bool
	tails                 tails
}

func newMemory(config Config) memory {
	return memory{
		interest:  map[string]bool{},
		configs:   configs{interval: config.TopicConfigInterval, byTopic: map[string]topicConfig{}},
		timelines: map[partition]*timeline{},
		groups:    map[string]string{},
		members:   map[string]seenMembers{},
		tails:     newTails(),
	}
}

// poll asks the cluster for everything once: commits before ends, so that lag
// is not negative by a race: what arrives in between is lag.
func (c *Client) poll(ctx context.Context) *round {
	c.memory.polls++
	out := &round{number: c.memory.polls}
	now := c.now()
	r := c.requester()
	watchedGroups, watchedTopics := c.watched()
	for name := range watchedTopics {
		if !c.topics.matches(name) {
			delete(watchedTopics, name)
		}
	}

	names := maps.Clone(c.memory.interest)
	maps.Copy(names, watchedTopics)
	names[offsetsTopic], names[transactionsTopic] = true, true
	meta, err := r.loadMetadata(ctx, slices.Sorted(maps.Keys(names)))
	if err != nil {
		err = wrap(fmt.Errorf("Kafka at %s: %w", strings.Join(c.config.Brokers, ","), err))
		out.topicsErr, out.groupsErr = err, err
		out.requests = r.sent
		return out
	}

	groups := &Groups{At: now}
	offline := meta.topics[offsetsTopic].offline()
	c.memory.tails.none = c.noTransactions(ctx, r, meta)
	picked, left, unlocated, groupProblems, err := c.pickGroups(ctx, r, meta.brokers, watchedGroups)
	if err != nil {
		out.groupsErr = wrap(err)
	}
	groups.LeftOut = left
	committed, commitProblems := r.fetchCommits(ctx, picked, c.topics.matches)
	groupProblems = slices.Concat(groupProblems, commitProblems, offline)
	picked = c.withCommits(picked, committed, watchedGroups)

	c.memory.groups = unlocated
	for _, g := range picked {
		c.memory.groups[g.name] = g.kind
	}

	interest := map[string]bool{}
	complete := err == nil && len(r.down) == 0 && len(offline) == 0 && len(unlocated) == 0
	for _, g := range picked {
		complete = complete && committed[g.name].err == nil
		for topic := range committed[g.name].topics {
			interest[topic] = true
		}
	}
	if !complete {
		// Topics of groups that cannot be read just now are still theirs.
		maps.Copy(interest, c.memory.interest)
	}
	c.memory.interest = interest
	wanted := maps.Clone(interest)
	maps.Copy(wanted, watchedTopics)
	if err := c.addMetadata(ctx, r, &meta, wanted); err != nil {
		out.topicsErr = wrap(err)
	}

	var (
		wg           sync.WaitGroup
		starts, ends map[partition]listed
	)
	all := meta.partitions()
	wg.Go(func() { starts = r.listOffsets(ctx, meta, atAll(all, atStart), readUncommitted) })
	wg.Go(func() { ends = r.listOffsets(ctx, meta, atAll(all, atEnd), readUncommitted) })
	wg.Go(func() { c.memory.configs.refresh(ctx, r, meta, now) })
	wg.Go(func() { groupProblems = append(groupProblems, c.members(ctx, r, picked)...) })
	wg.Wait()
	c.askStable(ctx, r, meta, ends)

	topics := &Topics{At: now, Cluster: meta.cluster, Topics: make(map[string]*Topic, len(meta.topics))}
	found := partitionProblems{}
	topics.fill(meta, starts, ends, found)
	topics.fillConfigs(meta, c.memory.configs)
	topics.fillStable(c.memory.stable)
	groups.fill(picked, committed, c.memory.members)
	c.memory.tails.refresh(ctx, r, meta, topics, groups, c.memory.polls == 1, c.config.TopicConfigInterval)
	groups.judge(c.memory.tails, topics)

	out.timeSteps = c.times(ctx, r, meta, topics, groups, found)

	topics.problems = append(topics.problems, found.problems()...)
	topics.problems = append(topics.problems, r.downProblems()...)
	if left > 0 {
		groupProblems = append(groupProblems, poll.Problem{Kind: "max_groups", Entity: "groups past --kafka.max-groups",
			Err: fmt.Errorf("%d groups are left out: raise --kafka.max-groups (%d), or narrow --kafka.group", left, c.config.MaxGroups)})
	}
	groups.problems = append(groupProblems, r.downProblems()...)
	topics.label(c.config.Granularity)
	groups.label(c.config.Granularity)
	if out.topicsErr == nil {
		out.topics = topics
	}
	if out.groupsErr == nil {
		out.groups = groups
	}
	out.requests = r.sent
	return out
}
