// Package stream feeds an inbox from Kafka: a worker per partition, the
// database commit before the offset commit, and the next offset kept in both.
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/telemetry"
)

// Config of Run.
type Config struct {
	// Client holds the options to reach the brokers: seeds, TLS, SASL.
	Client []kgo.Opt
	// Consumer adds options to the consuming client alone.
	Consumer []kgo.Opt
	Topics   []string
	Pool     *pgxpool.Pool
	Inbox    *inbox.Inbox
	// Decode makes an event of a record; what it cannot decode it returns with
	// Event.Err set.
	Decode func(*kgo.Record) inbox.Event

	// BatchSize is the most events one transaction takes; default 200, 1 is
	// one transaction an event. Batches shrink while a transaction takes
	// longer than TargetLatency (default 40 ms).
	BatchSize     int
	TargetLatency time.Duration

	// SessionTimeout (default 30 s), RebalanceTimeout (60 s) and
	// HeartbeatInterval (3 s) of the group.
	SessionTimeout, RebalanceTimeout, HeartbeatInterval time.Duration
	// InstanceID makes the membership static (KIP-345).
	InstanceID string
	// ServerSideBalancing uses the next generation of the group protocol
	// (KIP-848) where the brokers have it.
	ServerSideBalancing bool
	// RevokeTimeout is how long a revoked partition may take to finish its
	// transaction (default half the rebalance timeout), ShutdownTimeout how
	// long everything together may (default 15 s).
	RevokeTimeout, ShutdownTimeout time.Duration
	// PauseFor is how long a partition rests when an event can neither be
	// handled nor passed; default 30 s.
	PauseFor time.Duration
	// CrashLimit is how many batches may begin at one offset without any of
	// them being committed until events are tried one by one; default 3.
	CrashLimit int
	// GapGrace is how long a missing sequence number may still arrive; default
	// one minute.
	GapGrace time.Duration

	// Guard is asserted before the first record, and again every AssertEvery
	// (default one hour).
	Guard       Guard
	AssertEvery time.Duration
	// Redeliver is the share of events that are handed to the inbox a second
	// time, as a broker does after a rebalance; for demos.
	Redeliver float64

	Registerer prometheus.Registerer
	Tracer     *telemetry.Tracer // nil: no traces
	Log        *slog.Logger
	Now        func() time.Time
	// Assigned is called with the partitions that a rebalance added: none for
	// a member that stands by.
	Assigned func(map[string][]int32)
	// Failpoint is called at named boundaries; for crash tests only.
	Failpoint func(name string)

	metrics *telemetry.Consumer
}

func (cfg *Config) defaults() error {
	switch {
	case cfg.Inbox == nil || cfg.Pool == nil || cfg.Decode == nil:
		return errors.New("stream: Inbox, Pool and Decode are required")
	case len(cfg.Topics) == 0:
		return errors.New("stream: no topic to consume")
	}
	positive(&cfg.BatchSize, 200)
	positive(&cfg.TargetLatency, 40*time.Millisecond)
	positive(&cfg.SessionTimeout, 30*time.Second)
	positive(&cfg.RebalanceTimeout, 60*time.Second)
	positive(&cfg.HeartbeatInterval, min(3*time.Second, cfg.SessionTimeout/3))
	positive(&cfg.RevokeTimeout, cfg.RebalanceTimeout/2)
	positive(&cfg.ShutdownTimeout, 15*time.Second)
	positive(&cfg.PauseFor, 30*time.Second)
	positive(&cfg.CrashLimit, 3)
	positive(&cfg.GapGrace, time.Minute)
	positive(&cfg.AssertEvery, time.Hour)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Failpoint == nil {
		cfg.Failpoint = func(string) {}
	}
	if cfg.Assigned == nil {
		cfg.Assigned = func(map[string][]int32) {}
	}
	return nil
}

func positive[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// options of the group consumer. Auto-commit is off and both offsets are
// explicit; Assert reads them back from the client.
func (c *consumer) options() []kgo.Opt {
	cfg := c.cfg
	opts := append([]kgo.Opt{
		kgo.ConsumerGroup(cfg.Inbox.Group()),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.DisableAutoCommit(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(cfg.SessionTimeout),
		kgo.RebalanceTimeout(cfg.RebalanceTimeout),
		kgo.HeartbeatInterval(cfg.HeartbeatInterval),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(c.assigned),
		kgo.OnPartitionsRevoked(c.revoked),
		kgo.OnPartitionsLost(c.lost),
		kgo.AdjustFetchOffsetsFn(c.reconcile),
	}, slices.Concat(cfg.Client, cfg.Consumer)...)
	if cfg.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(cfg.InstanceID))
	}
	if cfg.ServerSideBalancing {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	return opts
}

// consumer is one member of the group.
type consumer struct {
	cfg    Config
	client *kgo.Client
	plain  *kgo.Client // in no group
	admin  *kadm.Client
	topics map[string]*telemetry.Topic

	mu         sync.Mutex
	partitions map[string]map[int32]*partition

	commits *committer
	fatal   chan error

	// unknown is since when the brokers have not known a topic's id; poll's own.
	unknown map[string]time.Time
}

// Run consumes until ctx ends, then finishes the transactions in flight,
// commits their offsets, leaves the group and returns nil, all within
// ShutdownTimeout; what it could not do in time it warns of. It returns an
// error if it cannot go on.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.defaults(); err != nil {
		return err
	}
	cfg.metrics = telemetry.NewConsumer(cfg.Registerer, cfg.Inbox.Group(), cfg.Now())
	defer cfg.metrics.Unregister()
	c := &consumer{cfg: cfg, topics: map[string]*telemetry.Topic{}, partitions: map[string]map[int32]*partition{}, unknown: map[string]time.Time{}, fatal: make(chan error, 1)}
	for _, t := range cfg.Topics {
		c.topics[t] = cfg.metrics.Topic(t)
	}
	// What the group's callbacks use must be there before the client is: it
	// joins at once. And the assertions come first, so that a consumer that
	// will not start does not make the group rebalance.
	plain, err := kgo.NewClient(cfg.Client...)
	if err != nil {
		return fmt.Errorf("create the Kafka client: %w", err)
	}
	defer plain.Close()
	c.plain, c.admin = plain, kadm.NewClient(plain)
	c.commits = newCommitter(c)
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
	if err := c.refuse(clientViolations(c.client)); err != nil {
		return err
	}
	defer telemetry.NewCommitLag(cfg.Registerer, cfg.Inbox.Group(), c.commits.lags)()
	c.commits.start()
	watching, stopWatching := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { c.watch(watching) })
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
			c.cfg.Log.Warn("fetch failed", "consumer_group", c.cfg.Inbox.Group(), "topic", topic, "partition", partition, "error", err)
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
				p.add(f.Records)
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
// time. The next start begins the new topic at its beginning (case C20).
func (c *consumer) unknownID(topic string, cancel context.CancelCauseFunc) {
	now := c.cfg.Now()
	since, seen := c.unknown[topic]
	switch {
	case !seen:
		c.unknown[topic] = now
		c.cfg.Log.Warn("the brokers do not know the topic's id: it was deleted, or created anew", "consumer_group", c.cfg.Inbox.Group(), "topic", topic)
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

func (c *consumer) partition(topic string, id int32) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partitions[topic][id]
}

// assigned starts a worker for each partition, before its first record.
func (c *consumer) assigned(_ context.Context, client *kgo.Client, parts map[string][]int32) {
	c.cfg.metrics.Rebalanced()
	c.mu.Lock()
	for topic, ids := range parts {
		for _, id := range ids {
			if c.partitions[topic] == nil {
				c.partitions[topic] = map[int32]*partition{}
			}
			if c.partitions[topic][id] == nil {
				c.partitions[topic][id] = startPartition(c, topic, id)
			}
		}
	}
	c.mu.Unlock()
	if len(parts) > 0 {
		c.cfg.Log.Info("partitions assigned", "consumer_group", c.cfg.Inbox.Group(), "partitions", parts)
		client.ResumeFetchPartitions(parts)
	}
	c.cfg.Assigned(parts)
}

// take removes the partitions from the assignment: no record is handed to them
// any more.
func (c *consumer) take(parts map[string][]int32) []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	var taken []*partition
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

func (c *consumer) all() map[string][]int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := map[string][]int32{}
	for topic, m := range c.partitions {
		for id := range m {
			parts[topic] = append(parts[topic], id)
		}
	}
	return parts
}

// revoked finishes what the partitions have in flight and commits it; after it
// returns nothing is committed for them any more.
func (c *consumer) revoked(ctx context.Context, _ *kgo.Client, parts map[string][]int32) {
	if len(parts) == 0 {
		return
	}
	c.cfg.Log.Info("partitions revoked", "consumer_group", c.cfg.Inbox.Group(), "partitions", parts)
	c.cfg.Failpoint("revoke")
	taken := c.take(parts)
	work, cancel := context.WithTimeout(ctx, c.cfg.RevokeTimeout)
	defer cancel()
	c.left(finish(work, taken))
	c.commits.final(ctx, taken)
}

// left warns of handlers that outlive their partition.
func (c *consumer) left(n int) {
	if n > 0 {
		c.cfg.Log.Warn("handlers did not return in time: their transactions are given up", "consumer_group", c.cfg.Inbox.Group(), "partitions", n)
	}
}

// lost gives the partitions up without a commit: they are already another's.
func (c *consumer) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	taken := c.take(parts)
	for _, p := range taken {
		p.cancel()
	}
	c.left(finish(context.Background(), taken))
	c.commits.forget(taken)
	c.cfg.Log.Warn("partitions lost", "consumer_group", c.cfg.Inbox.Group(), "partitions", parts)
}

// cancelGrace is how long a worker may take to notice that its transaction was
// given up.
const cancelGrace = time.Second

// finish waits for the workers to end their transactions; those that are not
// done in time are rolled back. A handler that does not even notice that is
// left behind: its transaction cannot commit any more.
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

// shutdown: finish the transactions, commit, leave. Each has its share of the
// deadline.
func (c *consumer) shutdown(ctx context.Context) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ShutdownTimeout)
	defer cancel()
	work, cancelWork := context.WithTimeout(ctx, c.cfg.ShutdownTimeout*2/3)
	taken := c.take(c.all())
	c.left(finish(work, taken))
	cancelWork()
	c.commits.stop()
	commit, cancelCommit := context.WithTimeout(ctx, (c.cfg.ShutdownTimeout-time.Since(start))/2)
	c.commits.final(commit, taken)
	cancelCommit()
	// What is not committed and not left is in the database all the same.
	if err := c.leave(ctx); err != nil {
		c.cfg.Log.Warn("could not leave the group", "consumer_group", c.cfg.Inbox.Group(), "error", err)
	}
	c.cfg.Log.Info("stopped", "consumer_group", c.cfg.Inbox.Group(), "took", time.Since(start))
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
	if member != "" && c.cfg.InstanceID == "" && !c.cfg.ServerSideBalancing { // a static member keeps its place
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group, req.MemberID = c.cfg.Inbox.Group(), member
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = member
		req.Members = append(req.Members, m)
		if resp, err := req.RequestWith(ctx, c.plain); err != nil {
			return err
		} else if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return err
		}
		return nil
	}
	return err
}
