package kafka

import (
	"context"
	"math"
	"time"
)

// coldSteps is how many steps the first poll may take, which knows nothing.
const coldSteps = 16

// times dates the first record of every partition and the records that groups
// wait at, by asking leaders for the first record at or after a time: all
// partitions in one step, a few steps a poll, each starting from what is known.
func (c *Client) times(ctx context.Context, r *requester, meta metadata, topics *Topics, groups *Groups, found partitionProblems) (steps int) {
	now := topics.At.UnixMilli()
	waiting := groups.waiting()
	lines := c.timelines(meta, topics.At)
	failed := map[partition]bool{}
	for {
		asks := map[partition]int64{}
		for p, line := range lines {
			bounds := topics.partition(p.topic, p.id)
			if failed[p] || !bounds.Start.OK || !bounds.End.OK {
				continue
			}
			if line.wantsFirst(bounds.Start.Value, bounds.End.Value) {
				asks[p] = 0
			} else if timestamp, more := line.next(line.open(waiting[p]), now); more {
				asks[p] = timestamp
			}
		}
		if len(asks) == 0 || ctx.Err() != nil {
			break
		}
		if c.memory.polls == 1 {
			if steps == coldSteps {
				break
			}
		} else if !r.affords(len(meta.brokers)) {
			break
		}
		steps++
		answers := r.listOffsets(ctx, meta, asks, readUncommitted)
		for p, asked := range asks {
			a, ok := answers[p]
			if !ok || a.err != nil {
				failed[p] = true // in this poll
				if a.err != nil {
					found.add(p, a.err)
				}
				continue
			}
			bounds := topics.partition(p.topic, p.id)
			switch line := lines[p]; {
			case line.wantsFirst(bounds.Start.Value, bounds.End.Value):
				line.sawFirst(bounds.Start.Value, a)
			case asked == atNewest:
				failed[p] = !line.sawNewest(bounds.End.Value, now, a)
			default:
				line.saw(asked, a)
			}
		}
	}
	topics.date(lines, now)
	groups.date(lines, now)
	for p, line := range lines {
		line.prune(line.open(waiting[p]))
	}
	return steps
}

// timelines are those of the partitions there are, without what an earlier
// topic of the same name left. Once a while first records are asked for again:
// compaction takes them away without moving the log start. Those not known are
// asked for each time.
func (c *Client) timelines(meta metadata, now time.Time) map[partition]*timeline {
	again := now.Sub(c.memory.firstsAt) >= c.config.TopicConfigInterval || now.Before(c.memory.firstsAt)
	if again {
		c.memory.firstsAt = now
	}
	lines := make(map[partition]*timeline, len(c.memory.timelines))
	for _, p := range meta.partitions() {
		line := c.memory.timelines[p]
		if line == nil {
			line = newTimeline(meta.topics[p.topic].id)
		}
		line.reset(meta.topics[p.topic].id)
		if again || line.first.offset < 0 {
			line.start = unset
		}
		lines[p] = line
	}
	c.memory.timelines = lines
	return lines
}

// waiting is where groups stand with records still to come: for each partition
// the offsets of the oldest record not yet committed past.
func (g *Groups) waiting() map[partition][]int64 {
	seen := map[partition]map[int64]bool{}
	out := map[partition][]int64{}
	for _, group := range g.Groups {
		for _, t := range group.Topics {
			for _, gp := range t.Partitions {
				p := partition{t.Topic, gp.Partition}
				if !gp.waits() || seen[p][gp.Next] {
					continue
				}
				if seen[p] == nil {
					seen[p] = map[int64]bool{}
				}
				seen[p][gp.Next] = true
				out[p] = append(out[p], gp.Next)
			}
		}
	}
	return out
}

// date sets the timestamps of first records.
func (t *Topics) date(lines map[partition]*timeline, now int64) {
	for name, topic := range t.Topics {
		for id := range topic.Partitions {
			p := &topic.Partitions[id]
			line := lines[partition{name, int32(id)}]
			if line == nil || !p.Start.OK || line.start != p.Start.Value || p.Start.Value >= p.End.Value {
				continue
			}
			if ms, ok := line.after(p.Start.Value, now); ok {
				p.Oldest = known(time.UnixMilli(ms))
			}
		}
	}
}

// date sets the timestamps of the records that groups wait at.
func (g *Groups) date(lines map[partition]*timeline, now int64) {
	for _, group := range g.Groups {
		for _, t := range group.Topics {
			for i := range t.Partitions {
				gp := &t.Partitions[i]
				if !gp.Lag.OK {
					continue
				}
				if !gp.waits() {
					gp.Waiting = known(time.Time{})
					continue
				}
				if line := lines[partition{t.Topic, gp.Partition}]; line != nil {
					if ms, ok := line.after(gp.Next, now); ok && ms != math.MaxInt64 {
						gp.Waiting = known(time.UnixMilli(ms))
					}
				}
			}
		}
	}
}
