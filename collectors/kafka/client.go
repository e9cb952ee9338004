// Package kafka reads topics, offsets and consumer groups from a Kafka cluster.
//
// One poll's requests depend on the number of brokers and not on the number of
// groups, topics or partitions: each broker is asked once for everything it
// leads or coordinates. An entity that is denied, leaderless, loading or
// missing costs only its own series.
//
// The two sources, Client.Topics and Client.Groups, share their polls: whoever
// comes first polls, the other takes what it found.
package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/plugin/kslog"
	"golang.org/x/sync/singleflight"
)

// Client is a connection to one cluster and what polls hand on to the next.
type Client struct {
	config Config
	now    func() time.Time
	kgo    *kgo.Client
	// options are those of kgo, for a client of its own.
	options []kgo.Opt
	groups  filter
	topics  filter

	flight singleflight.Group // at most one poll at a time

	mu            sync.Mutex
	latest        *round
	watchedGroups map[string]bool
	watchedTopics map[string]bool

	throttles throttles
	memory    memory // of the poll in flight
}

// New makes a client. It does not connect: brokers may come later. now is the
// clock; nil means time.Now.
func New(config Config, log *slog.Logger, now func() time.Time) (*Client, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	c := &Client{config: config, now: now, memory: newMemory(config)}
	var err error
	if c.groups, err = newFilter("--kafka.group", config.Group, config.GroupExclude); err != nil {
		return nil, err
	}
	if c.topics, err = newFilter("--kafka.topic", config.Topic, config.TopicExclude); err != nil {
		return nil, err
	}
	options, err := config.Options(2*time.Second, now)
	if err != nil {
		return nil, err
	}
	options = append(options,
		kgo.ClientID("oncewatch"),
		kgo.WithHooks(&c.throttles),
		// A poll comes round again soon; better one attempt more than a minute
		// of them.
		kgo.RequestRetries(1),
		kgo.RetryTimeout(requestTimeout),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
		kgo.RequestTimeoutOverhead(requestTimeout),
		kgo.MinVersions(versions(map[kmsg.Key]int16{
			kmsg.OffsetFetch: 8, // many groups in one request
		}, &kversion.Versions{})),
		kgo.MaxVersions(versions(map[kmsg.Key]int16{
			kmsg.OffsetFetch: 9,  // from 10 on it names topics by id only
			kmsg.Fetch:       12, // from 13 on likewise
		}, kversion.Tip())),
	)
	if log != nil && log.Enabled(context.Background(), slog.LevelDebug) {
		// Its own lines come once for every attempt; ours once for every problem.
		options = append(options, kgo.WithLogger(kslog.New(log)))
	}
	c.options = options
	if c.kgo, err = kgo.NewClient(options...); err != nil {
		return nil, fmt.Errorf("--kafka.*: %w", err)
	}
	return c, nil
}

func versions(of map[kmsg.Key]int16, base *kversion.Versions) *kversion.Versions {
	for key, version := range of {
		base.SetMaxKeyVersion(key.Int16(), version)
	}
	return base
}

// Close ends the connections. Polls under way fail.
func (c *Client) Close() { c.kgo.Close() }

// Watch sets what is watched besides the groups that have commits and the
// topics those are on: what the markers tell of. The filters of the
// configuration apply. It replaces what an earlier call set.
func (c *Client) Watch(groups, topics []string) {
	g, t := map[string]bool{}, map[string]bool{}
	for _, name := range groups {
		g[name] = true
	}
	for _, name := range topics {
		t[name] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchedGroups, c.watchedTopics = g, t
}

func (c *Client) watched() (groups, topics map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.watchedGroups), maps.Clone(c.watchedTopics)
}

func (c *Client) requester() *requester {
	return &requester{client: c.kgo, throttles: &c.throttles, down: map[int32]error{}}
}

// after returns a poll that is newer than the one that the caller has had: the
// newest there is, else the one in flight, else its own.
func (c *Client) after(ctx context.Context, had int) *round {
	c.mu.Lock()
	latest := c.latest
	c.mu.Unlock()
	if latest != nil && latest.number > had {
		return latest
	}
	v, _, _ := c.flight.Do("", func() (any, error) {
		r := c.poll(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.latest = r
		return r, nil
	})
	return v.(*round)
}
