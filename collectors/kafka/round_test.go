package kafka_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
)

// three makes topics good and bad with a group each, on three brokers.
func three(t *testing.T) *fake {
	c := cluster(t, kfake.SeedTopics(4, "good", "bad"))
	for _, name := range []string{"good", "bad"} {
		for p := range int32(4) {
			c.produce(name, p, 3, time.Now().Add(-time.Minute))
			c.commit("group-"+name, name, p, 1)
		}
	}
	return c
}

func group(name string) string { return `{consumer_group="` + name + `"` }

// A leaderless partition costs its own series, and no other's.
func TestLeaderlessPartition(t *testing.T) {
	t.Parallel()
	c := three(t)
	b := watch(t, c.ListenAddrs())
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "bad", Partitions: []int32{2}, Err: kerr.LeaderNotAvailable, Count: -1})
	b.mustPoll()
	p := b.scrape()
	for id := range 4 {
		series := lag("consumer_lag", "group-bad", "bad", id)
		if id == 2 {
			p.absent(t, series)
		} else {
			p.want(t, series, 2)
		}
		p.want(t, lag("consumer_lag", "group-good", "good", id), 2)
	}
	p.want(t, `oncewatch_collector_success{collector="topics"}`, 1)
	p.want(t, `oncewatch_errors_total{collector="topics",kind="leaderless"}`, 1)

	// The whole topic, by its metadata and by its answers.
	fault.Remove()
	fault = c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets, kmsg.Metadata}, Topic: "bad", Err: kerr.LeaderNotAvailable, Count: -1})
	b.next()
	p = b.scrape()
	if n := p.count("consumer_lag{") - p.count("consumer_lag"+group("group-good")); n != 0 {
		t.Errorf("%d lag series of a leaderless topic", n)
	}
	p.want(t, lag("consumer_lag", "group-good", "good", 0), 2)
	p.want(t, `consumer_group_topic_info{consumer_group="group-bad",topic="bad"}`, 1)
	fault.Remove()
	b.next()
	b.scrape().want(t, lag("consumer_lag", "group-bad", "bad", 2), 2)
}

// A partition without a leader in the metadata alone.
func TestNoLeaderInMetadata(t *testing.T) {
	t.Parallel()
	c := three(t)
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) { return nil, nil, false })
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.MetadataRequest)
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		for i, address := range c.ListenAddrs() {
			host, port, _ := net.SplitHostPort(address)
			mb := kmsg.NewMetadataResponseBroker()
			mb.NodeID, mb.Host = int32(i), host
			_, _ = fmt.Sscan(port, &mb.Port)
			resp.Brokers = append(resp.Brokers, mb)
		}
		for _, rt := range r.Topics {
			mt := kmsg.NewMetadataResponseTopic()
			mt.Topic = rt.Topic
			info := c.TopicInfo(*rt.Topic)
			if info == nil {
				mt.ErrorCode = kerr.UnknownTopicOrPartition.Code
				resp.Topics = append(resp.Topics, mt)
				continue
			}
			mt.TopicID = info.TopicID
			for id := range int32(4) {
				mp := kmsg.NewMetadataResponseTopicPartition()
				mp.Partition, mp.Leader = id, c.LeaderFor(*rt.Topic, id)
				if *rt.Topic == "bad" && id == 1 {
					mp.Leader, mp.ErrorCode = -1, kerr.LeaderNotAvailable.Code
				}
				mt.Partitions = append(mt.Partitions, mp)
			}
			resp.Topics = append(resp.Topics, mt)
		}
		return resp, nil, true
	})
	b.next()
	p := b.scrape()
	p.absent(t, lag("consumer_lag", "group-bad", "bad", 1))
	p.want(t, lag("consumer_lag", "group-bad", "bad", 0), 2)
	p.want(t, `oncewatch_errors_total{collector="topics",kind="leaderless"}`, 1)
}

// A denial costs the denied entity's series, is counted, and is named
// once in the log.
func TestDenials(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault     kfake.Fault
		gone      []string // beginnings of series
		stays     []string
		collector string
		entity    string
	}{
		"DescribeConfigs": {
			kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: "bad", Err: kerr.TopicAuthorizationFailed},
			[]string{`kafka_topic_retention_seconds{topic="bad"}`, `kafka_topic_worst_case_retention_seconds{topic="bad"}`},
			[]string{"consumer_lag" + group("group-bad"), `kafka_topic_retention_seconds{topic="good"}`}, "topics", "topic bad, configuration",
		},
		"ListOffsets": {
			kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "bad", Err: kerr.TopicAuthorizationFailed},
			[]string{"consumer_lag" + group("group-bad"), `kafka_topic_oldest_record_age_seconds{partition="0",topic="bad"}`},
			[]string{`kafka_topic_retention_seconds{topic="bad"}`, "consumer_lag" + group("group-good")}, "topics", "topic bad, 4 partitions from 0",
		},
		"Metadata": {
			kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "bad", Err: kerr.TopicAuthorizationFailed},
			[]string{"consumer_lag" + group("group-bad"), `kafka_topic_retention_seconds{topic="bad"}`},
			[]string{`consumer_group_topic_info{consumer_group="group-bad",topic="bad"}`, "consumer_lag" + group("group-good")}, "topics", "topic bad",
		},
		"OffsetFetch": {
			kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: "group-bad", Err: kerr.GroupAuthorizationFailed},
			[]string{"consumer_lag" + group("group-bad"), "consumer_group_topic_info" + group("group-bad")},
			[]string{"consumer_lag" + group("group-good"), `kafka_topic_retention_seconds{topic="bad"}`}, "groups", "group group-bad",
		},
		"DescribeGroups": {
			kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeGroups}, Group: "group-bad", Err: kerr.GroupAuthorizationFailed},
			[]string{"consumer_group_members" + group("group-bad")},
			[]string{"consumer_lag" + group("group-bad"), "consumer_group_state" + group("group-bad"), "consumer_group_members" + group("group-good")}, "groups", "group group-bad, members",
		},
		"ListGroups": { // Kafka leaves out what the principal may not see
			kfake.Fault{Keys: []kmsg.Key{kmsg.ListGroups}, Group: "group-bad", Err: kerr.GroupAuthorizationFailed},
			[]string{"consumer_lag" + group("group-bad")},
			[]string{"consumer_lag" + group("group-good")}, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := three(t)
			for _, g := range []string{"bad", "good"} { // with members, so that they are described
				consume(t, c.ListenAddrs(), "group-"+g, g)
			}
			b := watch(t, c.ListenAddrs())
			b.client.Watch(nil, []string{"bad", "good"})
			tt.fault.Count = -1
			fault := c.Fault(tt.fault)
			for range 3 {
				b.next()
			}
			p := b.scrape()
			for _, series := range tt.gone {
				if p.count(series) != 0 {
					t.Errorf("%s… is there", series)
				}
			}
			for _, series := range tt.stays {
				if p.count(series) == 0 {
					t.Errorf("%s… is gone", series)
				}
			}
			if tt.collector != "" {
				p.want(t, fmt.Sprintf(`oncewatch_errors_total{collector=%q,kind="denied"}`, tt.collector), 3)
				if n := strings.Count(b.log.String(), fmt.Sprintf("entity=%q", tt.entity)) + strings.Count(b.log.String(), "entity="+tt.entity+" "); n != 1 {
					t.Errorf("named %d times in the log, want once:\n%s", n, b.log)
				}
				if !strings.Contains(b.log.String(), "grant DESCRIBE") {
					t.Errorf("the log has no remedy:\n%s", b.log)
				}
			}
			fault.Remove()
			b.clock.add(5 * time.Minute)
			for range 4 { // members are asked for every fourth poll
				b.next()
			}
			for _, series := range tt.gone {
				if b.scrape().count(series) == 0 {
					t.Errorf("%s… does not come back", series)
				}
			}
		})
	}
}

// A denial of a group of the new protocol, which has a request of its own.
func TestDenialOfAGroupOfTheNewProtocol(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.produce("payments", 0, 5, time.Now())
	for _, name := range []string{"denied", "allowed"} {
		consume(t, c.ListenAddrs(), name, "payments", kgo.ServerSideBalancer())
	}
	consume(t, c.ListenAddrs(), "classic", "payments")
	fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ConsumerGroupDescribe}, Group: "denied", Err: kerr.GroupAuthorizationFailed, Count: -1})
	defer fault.Remove()
	members := func(name string) string { return fmt.Sprintf("consumer_group_members{consumer_group=%q}", name) }
	b := watch(t, c.ListenAddrs())
	for range 3 {
		b.next()
	}
	p := b.scrape()
	p.absent(t, members("denied"))
	p.want(t, members("allowed"), 1)
	p.want(t, members("classic"), 1)
	for _, name := range []string{"denied", "allowed", "classic"} {
		p.want(t, lag("consumer_lag", name, "payments", 0), 0)
		p.want(t, lag("consumer_lag_seconds", name, "payments", 0), 0)
		// The listing tells the state.
		p.want(t, fmt.Sprintf("consumer_group_state{consumer_group=%q,state=\"Stable\"}", name), 1)
	}
	p.want(t, `oncewatch_errors_total{collector="groups",kind="denied"}`, 3)
	if n := strings.Count(b.log.String(), `entity="group denied, members"`); n != 1 {
		t.Errorf("named %d times in the log, want once:\n%s", n, b.log)
	}
	fault.Remove()
	for range 4 { // members are asked for every fourth poll
		b.next()
	}
	b.scrape().want(t, members("denied"), 1)
}

// A coordinator that loads costs its groups, for as long as it loads.
func TestLoadingCoordinator(t *testing.T) {
	t.Parallel()
	c := three(t)
	b := watch(t, c.ListenAddrs())
	defer c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: "group-bad", Err: kerr.CoordinatorLoadInProgress, Count: 1}).Remove()
	begin := time.Now()
	b.mustPoll()
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("the poll took %v", took)
	}
	p := b.scrape()
	if p.count("consumer_lag"+group("group-bad")) != 0 || p.count("consumer_lag"+group("group-good")) != 4 {
		t.Errorf("series: %v", p)
	}
	p.want(t, `oncewatch_errors_total{collector="groups",kind="loading"}`, 1)
	b.next()
	if b.scrape().count("consumer_lag"+group("group-bad")) != 4 {
		t.Error("the group does not come back")
	}
}

// A broker that takes requests and answers none costs what it leads and
// coordinates, and one timeout.
func TestBrokerThatHangs(t *testing.T) {
	t.Parallel()
	c := three(t)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	release := make(chan struct{})
	defer close(release)
	hung := c.LeaderFor("bad", 0)
	for _, key := range []kmsg.Key{kmsg.ListGroups, kmsg.OffsetFetch, kmsg.ListOffsets} {
		c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if c.CurrentNode() == hung {
				c.SleepControl(func() { <-release })
			}
			return nil, nil, false
		})
	}
	begin := time.Now()
	b.next()
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("the poll took %v", took)
	}
	if err := b.topics.Status().Err; err != nil {
		t.Fatal(err)
	}
	p := b.scrape()
	for id := range int32(4) {
		series := fmt.Sprintf(`kafka_topic_partition_log_end_offset{partition="%d",topic="bad"}`, id)
		if c.LeaderFor("bad", id) == hung {
			p.absent(t, series)
		} else {
			p.want(t, series, 3)
		}
	}
	p.want(t, `oncewatch_errors_total{collector="topics",kind="timeout"}`, 1)
	if !strings.Contains(b.log.String(), fmt.Sprintf("entity=\"broker %d\"", hung)) {
		t.Errorf("the log does not name the broker:\n%s", b.log)
	}
}

// With every broker gone a scrape still answers at once, from the last snapshot
// up to the staleness bound, and the success series tells; then there is a gap,
// and the time of the last success.
func TestBrokersGone(t *testing.T) {
	t.Parallel()
	c := three(t)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	last := b.scrape()[`oncewatch_collector_last_success_timestamp_seconds{collector="groups"}`]
	series := lag("consumer_lag", "group-good", "good", 0)
	c.Close()
	fast := func() page {
		begin := time.Now()
		p := b.scrape()
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("a scrape took %v", took)
		}
		return p
	}
	for range 3 {
		b.next()
		p := fast()
		p.want(t, series, 2)
		p.want(t, `oncewatch_collector_success{collector="groups"}`, 0)
		p.want(t, `oncewatch_collector_success{collector="topics"}`, 0)
	}
	b.next()
	p := fast()
	p.absent(t, series)
	if n := p.count("consumer_") + p.count("kafka_"); n != 0 {
		t.Errorf("%d series are served past the staleness bound", n)
	}
	p.want(t, `oncewatch_collector_last_success_timestamp_seconds{collector="groups"}`, last)
	if p[`oncewatch_errors_total{collector="groups",kind="unreachable"}`] < 4 {
		t.Errorf("errors are not counted: %v", p)
	}
	if n := strings.Count(b.log.String(), "cannot read"); n != 2 {
		t.Errorf("%d lines for two collectors:\n%s", n, b.log)
	}
}

// Started before the broker, it keeps trying and comes up with it.
func TestStartedBeforeTheBroker(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().(*net.TCPAddr)
	_ = l.Close()
	b := watch(t, []string{address.String()})
	b.next()
	p := b.scrape()
	p.want(t, `oncewatch_collector_success{collector="groups"}`, 0)
	p.want(t, `oncewatch_collector_last_success_timestamp_seconds{collector="groups"}`, 0)
	if err := b.groups.Status().Err; err == nil || !strings.Contains(err.Error(), address.String()) {
		t.Errorf("the error does not name the broker: %v", err)
	}
	c := cluster(t, kfake.NumBrokers(1), kfake.Ports(address.Port), kfake.SeedTopics(1, "payments"))
	c.commit("ledger", "payments", 0, 0)
	b.next()
	p = b.scrape()
	p.want(t, `oncewatch_collector_success{collector="groups"}`, 1)
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 0)
}

// Both sources live of one poll, each poll is a new one, and a source alone
// polls by itself.
func TestSourcesShareTheirPolls(t *testing.T) {
	t.Parallel()
	c := three(t)
	b := watch(t, c.ListenAddrs())
	count := c.counting()
	b.mustPoll()
	count.take()
	lists := func() int { n, _ := count.take(); return n[kmsg.ListGroups] }
	for range 3 {
		b.next()
		if n := lists(); n != 3 {
			t.Errorf("%d ListGroups for a poll of both sources on 3 brokers, want 3", n)
		}
	}
	for range 3 {
		if err := b.topics.Once(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := lists(); n != 3 {
			t.Errorf("%d ListGroups for a poll of one source, want 3", n)
		}
	}
}

// Requests depend on the brokers alone, and stay within the budget,
// whatever moves.
func TestRequestsPerPoll(t *testing.T) {
	if testing.Short() {
		t.Skip("commits of a thousand groups")
	}
	const topics, partitions = 50, 20
	var undated [2][]int // each poll's requests without those that date records
	for i, groups := range []int{100, 1000} {
		names := names(topics)
		c := cluster(t, kfake.SeedTopics(partitions, names...))
		load(t, c, names, partitions, groups)
		// Groups of both protocols with members, so that all are described.
		for m := range 6 {
			consume(t, c.ListenAddrs(), fmt.Sprintf("classic-%d", m), names[0])
			consume(t, c.ListenAddrs(), fmt.Sprintf("new-%d", m), names[0], kgo.ServerSideBalancer())
		}
		b := watch(t, c.ListenAddrs(), func(conf *kafka.Config) { conf.MaxGroups = 2000 })
		b.client.Watch([]string{"gone"}, nil) // asked for though nobody lists it
		count := c.counting()
		b.mustPoll()
		kinds, first := count.take()
		t.Logf("%d groups: %d requests in the first poll, which knows nothing: %v", groups, first, kinds)
		most, sum := 0, 0
		const polls = 24
		for poll := range polls {
			// Producers and consumers move on between polls.
			for p := range int32(partitions) {
				c.produce(names[poll], p, 2, time.Now())
				c.commit("group-0000", names[0], p, int64(poll%8))
			}
			count.take()
			b.next()
			kinds, n := count.take()
			most, sum = max(most, n), sum+n
			undated[i] = append(undated[i], n-kinds[kmsg.ListOffsets])
		}
		if mean := float64(sum) / polls; mean > 20 {
			t.Errorf("%d groups: %.1f requests in a poll, want 20 at most", groups, mean)
		}
		if n := b.scrape().count("consumer_lag{"); n < groups*partitions {
			t.Errorf("%d lag series, want %d and more", n, groups*partitions)
		}
		t.Logf("%d groups: %.1f requests in a poll, at most %d", groups, float64(sum)/polls, most)
		if most > 20 && !starved {
			t.Errorf("%d groups: %d requests in a poll, want 20 at most", groups, most)
		}
	}
	// The least, since a member that a busy machine delays is described anew.
	if slices.Min(undated[0]) != slices.Min(undated[1]) && !starved {
		t.Errorf("requests for 100 groups %v, for 1,000 %v: want the same", undated[0], undated[1])
	}
}
