package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

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
	configs   topicConfigs
	timelines map[partition]*timeline
	firstsAt  time.Time // when first records were last asked for anew
	members   map[string]seenMembers
}

type seenMembers struct {
	state string // as listed when it was described
	description
}

func newMemory(config Config) memory {
	return memory{
		interest:  map[string]bool{},
		configs:   topicConfigs{interval: config.TopicConfigInterval, byTopic: map[string]topicConfig{}},
		timelines: map[partition]*timeline{},
		members:   map[string]seenMembers{},
	}
}

// poll asks the cluster for everything once: commits before ends, so that lag
// is not negative by a race (case K1).
func (c *Client) poll(ctx context.Context) *round {
	c.memory.polls++
	out := &round{number: c.memory.polls}
	now := c.now()
	r := c.requester()
	watchedGroups, watchedTopics := c.watched()
	for name := range watchedTopics {
		if !c.topics.lets(name) {
			delete(watchedTopics, name)
		}
	}

	names := maps.Clone(c.memory.interest)
	maps.Copy(names, watchedTopics)
	meta, err := r.loadMetadata(ctx, slices.Sorted(maps.Keys(names)))
	if errors.Is(err, kerr.SaslAuthenticationFailed) {
		c.rejected()
	}
	if err != nil {
		err = wrap(fmt.Errorf("Kafka at %s: %w", strings.Join(c.config.Brokers, ","), err))
		out.topicsErr, out.groupsErr = err, err
		out.requests = r.sent
		return out
	}

	groups := &Groups{At: now}
	picked, left, groupProblems, err := c.pickGroups(ctx, r, meta.brokers, watchedGroups)
	if err != nil {
		out.groupsErr = wrap(err)
	}
	groups.LeftOut = left
	committed, commitProblems := r.fetchCommits(ctx, picked, c.topics.lets)
	groupProblems = append(groupProblems, commitProblems...)
	picked = c.withCommits(picked, committed, watchedGroups)

	interest := map[string]bool{}
	complete := err == nil && len(r.down) == 0
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
	wg.Go(func() { starts = r.listOffsets(ctx, meta, atAll(all, atStart)) })
	wg.Go(func() { ends = r.listOffsets(ctx, meta, atAll(all, atEnd)) })
	wg.Go(func() { c.memory.configs.refresh(ctx, r, meta, now) })
	wg.Go(func() { groupProblems = append(groupProblems, c.members(ctx, r, picked)...) })
	wg.Wait()

	topics := &Topics{At: now, Topics: make(map[string]*Topic, len(meta.topics))}
	found := partitionProblems{}
	topics.fill(meta, starts, ends, found)
	topics.fillConfigs(meta, c.memory.configs)
	groups.fill(picked, committed, c.memory.members, topics)

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

// pickGroups lists the groups, filters them, and leaves out what is too many.
func (c *Client) pickGroups(ctx context.Context, r *requester, brokers []int32, watched map[string]bool) (picked []listedGroup, left int, _ []poll.Problem, _ error) {
	listed, problems, err := r.listGroups(ctx, brokers)
	if err != nil {
		return nil, 0, nil, err
	}
	listed = slices.DeleteFunc(listed, func(g listedGroup) bool { return !c.groups.lets(g.name) })
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

// addMetadata makes meta's topics exactly the wanted ones: it asks for those
// that commits revealed, which is rare, and forgets those nobody has commits
// on any more.
func (c *Client) addMetadata(ctx context.Context, r *requester, meta *metadata, wanted map[string]bool) error {
	var missing []string
	for name := range wanted {
		if _, ok := meta.topics[name]; !ok {
			missing = append(missing, name)
		}
	}
	maps.DeleteFunc(meta.topics, func(name string, _ topicMetadata) bool { return !wanted[name] })
	if len(missing) == 0 {
		return nil
	}
	more, err := r.loadMetadata(ctx, missing)
	if err != nil {
		return fmt.Errorf("metadata of %d topics: %w", len(missing), err)
	}
	maps.Copy(meta.topics, more.topics)
	return nil
}

func (m metadata) partitions() []partition {
	var out []partition
	for name, t := range m.topics {
		for id := range t.leaders {
			out = append(out, partition{name, id})
		}
	}
	return out
}

func atAll(partitions []partition, timestamp int64) map[partition]int64 {
	at := make(map[partition]int64, len(partitions))
	for _, p := range partitions {
		at[p] = timestamp
	}
	return at
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
			kept[g.name] = seenMembers{g.state, description{state: g.state}}
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
				kept[g.name] = seenMembers{g.state, d}
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

// fill copies the log's bounds.
func (t *Topics) fill(meta metadata, starts, ends map[partition]listed, found partitionProblems) {
	for name, tm := range meta.topics {
		topic := &Topic{Name: name, ID: tm.id}
		t.Topics[name] = topic
		if tm.err != nil {
			t.problems = append(t.problems, problem("topic "+name, tm.err))
			continue
		}
		for id := range tm.leaders {
			p := partition{name, id}
			for int(id) >= len(topic.Partitions) {
				topic.Partitions = append(topic.Partitions, Partition{})
			}
			// A broker that is down has no answer here; it is named itself.
			start, gotStart := starts[p]
			end, gotEnd := ends[p]
			if err := cmp.Or(start.err, end.err); err != nil {
				found.add(p, err)
			}
			if !gotStart || !gotEnd || start.err != nil || end.err != nil || start.offset < 0 || end.offset < 0 {
				continue
			}
			topic.Partitions[id] = Partition{
				// Retention may move the start between the two answers.
				Start: known(min(start.offset, end.offset)),
				End:   known(end.offset),
			}
		}
	}
}

func (t *Topics) fillConfigs(meta metadata, configs topicConfigs) {
	for name, topic := range t.Topics {
		if meta.topics[name].err != nil {
			continue
		}
		conf, ok := configs.byTopic[name]
		switch {
		case !ok:
		case conf.err != nil:
			t.problems = append(t.problems, problem("topic "+name+", configuration", conf.err))
		default:
			topic.Retention = known(conf.retention)
		}
	}
}

func (g *Groups) fill(picked []listedGroup, committed map[string]commits, members map[string]seenMembers, topics *Topics) {
	for _, l := range picked {
		group := &Group{Name: l.name, Type: l.kind, State: l.state}
		g.Groups = append(g.Groups, group)
		if seen, ok := members[l.name]; ok && seen.err == nil {
			group.Members = known(seen.members)
			if group.State == "" {
				group.State = seen.description.state
			}
		}
		got, ok := committed[l.name]
		group.Readable = ok && got.err == nil
		if !group.Readable {
			continue
		}
		for _, topic := range slices.Sorted(maps.Keys(got.topics)) {
			gt := GroupTopic{Topic: topic, Partitions: make([]GroupPartition, 0, len(got.topics[topic]))}
			for _, cm := range got.topics[topic] {
				p := GroupPartition{Partition: cm.partition, Committed: cm.offset}
				judge(&p, topics.partition(topic, cm.partition))
				gt.Partitions = append(gt.Partitions, p)
			}
			slices.SortFunc(gt.Partitions, func(a, b GroupPartition) int { return cmp.Compare(a.Partition, b.Partition) })
			gt.Partitions = slices.CompactFunc(gt.Partitions, func(a, b GroupPartition) bool { return a.Partition == b.Partition })
			group.Topics = append(group.Topics, gt)
		}
	}
}

// partition is what is known of one; the zero value where nothing is.
func (t *Topics) partition(topic string, id int32) Partition {
	if one := t.Topics[topic]; one != nil && int(id) < len(one.Partitions) {
		return one.Partitions[id]
	}
	return Partition{}
}

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
