package stream

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// assigned starts a worker for each partition, before its first record.
func (c *consumer) assigned(_ context.Context, client *kgo.Client, parts map[string][]int32) {
	c.metrics.Rebalanced()
	c.mu.Lock()
	for topic, ids := range parts {
		for _, id := range ids {
			if c.partitions[topic] == nil {
				c.partitions[topic] = map[int32]*partition{}
			}
			if c.partitions[topic][id] == nil {
				c.partitions[topic][id] = c.startPartition(client, topic, id)
			}
		}
	}
	c.mu.Unlock()
	if len(parts) > 0 {
		c.cfg.Log.Info("partitions assigned", "consumer_group", c.group, "partitions", parts)
		client.ResumeFetchPartitions(parts)
	}
	c.cfg.Assigned(parts)
}

// revoked finishes what the partitions have in flight and commits it; after it
// returns nothing is committed for them any more.
func (c *consumer) revoked(ctx context.Context, _ *kgo.Client, parts map[string][]int32) {
	if len(parts) == 0 {
		return
	}
	c.cfg.Log.Info("partitions revoked", "consumer_group", c.group, "partitions", parts)
	c.cfg.Failpoint("revoke")
	taken := c.take(parts)
	work, cancel := context.WithTimeout(ctx, c.cfg.RevokeTimeout)
	defer cancel()
	c.left(finish(work, taken))
	c.commits.final(ctx, taken)
}

// lost gives the partitions up without a commit: they are already another's.
func (c *consumer) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	taken := c.take(parts)
	for _, p := range taken {
		p.cancel()
	}
	c.left(finish(context.Background(), taken))
	c.commits.forget(taken)
	c.cfg.Log.Warn("partitions lost", "consumer_group", c.group, "partitions", parts)
}

func (c *consumer) partition(topic string, id int32) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partitions[topic][id]
}

// all partitions that are assigned now.
func (c *consumer) all() []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*partition
	for _, m := range c.partitions {
		for _, p := range m {
			all = append(all, p)
		}
	}
	return all
}

// take removes the partitions (nil: all) from the assignment: no record is
// handed to them any more.
func (c *consumer) take(parts map[string][]int32) []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	var taken []*partition
	if parts == nil {
		parts = map[string][]int32{}
		for topic, m := range c.partitions {
			for id := range m {
				parts[topic] = append(parts[topic], id)
			}
		}
	}
	for topic, ids := range parts {
		for _, id := range ids {
			if p := c.partitions[topic][id]; p != nil {
				taken = append(taken, p)
				delete(c.partitions[topic], id)
			}
		}
	}
	return taken
}

// left warns of workers that outlive their partition.
func (c *consumer) left(n int) {
	if n > 0 {
		c.cfg.Log.Warn("handlers did not return in time: their transactions are given up", "consumer_group", c.group, "partitions", n)
	}
}

// cancelGrace is how long a worker may take to notice that its transaction was
// given up: longer than the inbox gives a handler.
const cancelGrace = time.Second

// finish waits for the workers to end their transactions; those that are not
// done in time are rolled back.
func finish(ctx context.Context, taken []*partition) (left int) {
	for _, p := range taken {
		p.stop()
	}
	for _, p := range taken {
		select {
		case <-p.done:
			continue
		case <-ctx.Done():
			p.cancel()
		}
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
	defer cancel()
	for _, p := range taken {
		select {
		case <-p.done:
		case <-grace.Done():
			left++
		}
	}
	return left
}
