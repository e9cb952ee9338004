// Package stream feeds an inbox from Kafka: a worker per partition, the
// database commit before the offset commit, and the next offset kept in both.
package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/semaphore"

	"oncewatch/reference-consumer/telemetry"
)

// consumer is one member of the group.
type consumer struct {
	cfg     Config
	group   string
	metrics *telemetry.Consumer
	topics  map[string]*telemetry.Topic
	client  *kgo.Client
	plain   *kgo.Client // in no group
	admin   *kadm.Client

	mu         sync.Mutex
	partitions map[string]map[int32]*partition

	commits *committer
	fatal   chan error
	// trials lets many batches run, or one event alone that may end the
	// process: a death then has one suspect.
	trials *semaphore.Weighted

	// unknown is since when the brokers have not known a topic's id; poll's own.
	unknown map[string]time.Time
}

// Run consumes until ctx ends, then finishes the transactions in flight,
// commits their offsets, leaves the group and returns nil, all within
// ShutdownTimeout; what it could not do in time it warns of. It returns an
// error if it cannot go on, a *RefusedError if it does not start.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.defaults(); err != nil {
		return err
	}
	group := cfg.Inbox.Group()
	metrics := telemetry.NewConsumer(cfg.Registerer, group, cfg.Now())
	defer metrics.Unregister()
	c := &consumer{cfg: cfg, group: group, metrics: metrics, topics: map[string]*telemetry.Topic{}, partitions: map[string]map[int32]*partition{},
		unknown: map[string]time.Time{}, fatal: make(chan error, 1), trials: semaphore.NewWeighted(everybody)}
	for _, t := range cfg.Topics {
		c.topics[t] = metrics.Topic(t)
	}
	// What the group's callbacks use must be there before the client is: it
	// joins at once. And the assertions come first, so that a consumer that
	// will not start does not make the group rebalance.
	if err := c.refuse(c.clientViolations()); err != nil {
		return err
	}
	plain, err := kgo.NewClient(cfg.Client...)
	if err != nil {
		return fmt.Errorf("create the Kafka client: %w", err)
	}
	defer plain.Close()
	c.plain, c.admin = plain, kadm.NewClient(plain)
	c.commits = newCommitter(cfg.Log.With("consumer_group", group), cfg.Tracer, cfg.Now, cfg.Failpoint)
	if err := c.assertSurroundings(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it began
		}
		return err
	}
	// Closing waits for a join in progress unless the client's context ends.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	c.client, err = kgo.NewClient(append(c.options(), kgo.WithContext(life))...)
	if err != nil {
		end()
		return fmt.Errorf("create the Kafka client: %w", err)
	}
	defer c.client.CloseAllowingRebalance()
	defer end()
	defer telemetry.NewCommitLag(cfg.Registerer, group, c.commits.lags)()
	defer telemetry.NewHandlerAge(cfg.Registerer, group, c.handlerAges)()
	c.commits.start(c.client, c.fail)
	watching, stopWatching := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { c.watch(watching) })
	watch.Go(func() { c.watchLogStarts(watching) })
	defer watch.Wait()
	defer stopWatching()

	err = c.poll(ctx)
	return errors.Join(err, c.shutdown(context.WithoutCancel(ctx)))
}

// poll hands records to the workers until ctx ends.
func (c *consumer) poll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case err := <-c.fatal:
			cancel(err)
		case <-stop:
		}
	}()
	for {
		began := time.Now()
		fetches := c.client.PollRecords(ctx, 50*c.cfg.BatchSize)
		if ctx.Err() != nil {
			// Records of this poll were handed to nobody: they are below no
			// committed offset.
			c.client.AllowRebalance()
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return nil
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			if errors.Is(err, kerr.UnknownTopicID) {
				c.unknownID(topic, cancel)
				return
			}
			c.cfg.Log.Warn("fetch failed", "consumer_group", c.group, "topic", topic, "partition", partition, "error", err)
			if fenced(err) {
				cancel(fmt.Errorf("consume %s: %w", topic, err))
			}
		})
		polled := map[string]int{}
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			if len(f.Records) == 0 {
				return
			}
			polled[f.Topic] += len(f.Records)
			delete(c.unknown, f.Topic)
			if p := c.partition(f.Topic, f.Partition); p != nil {
				p.fetched(f.Records, f.LogStartOffset)
			}
		})
		c.client.AllowRebalance()
		for topic, n := range polled {
			c.cfg.Tracer.Polled(topic, began, n)
		}
	}
}

// fenced: another process uses the same static member's name, or this one may
// not read at all. Going on would not help.
func fenced(err error) bool {
	return errors.Is(err, kerr.FencedInstanceID) || errors.Is(err, kerr.GroupAuthorizationFailed) || errors.Is(err, kerr.TopicAuthorizationFailed)
}

// unknownID ends the consumer when a topic's id stays unknown to the brokers:
// the topic was deleted and created anew, which the client does not follow
// while it runs. Brokers that have just started say so too, so it is given
// time. The next start begins the new topic at its beginning.
func (c *consumer) unknownID(topic string, cancel context.CancelCauseFunc) {
	now := c.cfg.Now()
	since, seen := c.unknown[topic]
	switch {
	case !seen:
		c.unknown[topic] = now
		c.cfg.Log.Warn("the brokers do not know the topic's id: it was deleted, or created anew", "consumer_group", c.group, "topic", topic)
	case now.Sub(since) >= c.cfg.PauseFor:
		cancel(fmt.Errorf("topic %s was deleted or created anew: start the consumer again, it then begins the new topic at its start", topic))
	}
}

func (c *consumer) fail(err error) {
	select {
	case c.fatal <- err:
	default:
	}
}

// handlerAges is how long each assigned partition's handler has been running.
func (c *consumer) handlerAges() []telemetry.Age {
	var ages []telemetry.Age
	for _, p := range c.all() {
		ages = append(ages, telemetry.Age{Topic: p.topic, Partition: p.id, Age: p.running.Oldest()})
	}
	return ages
}

// shutdown: finish the transactions, commit, leave. Each has its share of the
// deadline.
func (c *consumer) shutdown(ctx context.Context) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ShutdownTimeout)
	defer cancel()
	work, cancelWork := context.WithTimeout(ctx, c.cfg.ShutdownTimeout*2/3)
	taken := c.take(nil)
	c.left(finish(work, taken))
	cancelWork()
	c.commits.stop()
	commit, cancelCommit := context.WithTimeout(ctx, (c.cfg.ShutdownTimeout-time.Since(start))/2)
	c.commits.final(commit, taken)
	cancelCommit()
	// What is not committed and not left is in the database all the same.
	if err := c.leave(ctx); err != nil {
		c.cfg.Log.Warn("could not leave the group", "consumer_group", c.group, "error", err)
	}
	c.cfg.Log.Info("stopped", "consumer_group", c.group, "took", time.Since(start))
	return nil
}

// leaveGrace is how long leaving may take until it is taken to wait for a join.
const leaveGrace = time.Second

// leave the group. The client does not leave while it waits for others to join,
// which may take a whole rebalance timeout; the group then hears it from
// another connection, and that ends the join.
func (c *consumer) leave(ctx context.Context) error {
	grace, cancel := context.WithTimeout(ctx, leaveGrace)
	defer cancel()
	err := c.client.LeaveGroupContext(grace)
	if grace.Err() == nil {
		return err
	}
	member, _ := c.client.GroupMetadata()
	if member == "" || c.cfg.InstanceID != "" || c.cfg.ServerSideBalancing { // a static member keeps its place
		return err
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = c.group, member
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID = member
	req.Members = append(req.Members, m)
	resp, err := req.RequestWith(ctx, c.plain)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}
