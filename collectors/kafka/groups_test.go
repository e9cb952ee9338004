package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
)

func TestLag(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(20, "payments"))
	at := time.Now().Add(-time.Hour)
	c.produce("payments", 0, 10, at)
	c.commit("ledger", "payments", 0, 4)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	p := b.scrape()
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 6)
	p.near(t, lag("consumer_lag_seconds", "ledger", "payments", 0), 3600, 2)
	p.want(t, lag("consumer_records_expired", "ledger", "payments", 0), 0)
	p.want(t, lag("consumer_offset_out_of_range", "ledger", "payments", 0), 0)
	p.want(t, `consumer_group_topic_info{consumer_group="ledger",topic="payments"}`, 1)
	p.want(t, `consumer_group_members{consumer_group="ledger"}`, 0)
	p.want(t, `consumer_group_state{consumer_group="ledger",state="Empty"}`, 1)
	p.want(t, `oncewatch_kafka_groups_left_out`, 0)
	// A commit on 1 of 20 partitions gives 1 series.
	if n := p.count("consumer_lag{"); n != 1 {
		t.Errorf("%d lag series, want 1", n)
	}
	// Caught up: nothing waits.
	c.commit("ledger", "payments", 0, 10)
	b.next()
	p = b.scrape()
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 0)
	p.want(t, lag("consumer_lag_seconds", "ledger", "payments", 0), 0)
}

// A commit past the log end is out of range, and no negative lag.
func TestCommitPastTheLogEnd(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.produce("payments", 0, 10, time.Now())
	c.commit("ledger", "payments", 0, 17)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	p := b.scrape()
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 0)
	p.want(t, lag("consumer_lag_seconds", "ledger", "payments", 0), 0)
	p.want(t, lag("consumer_records_expired", "ledger", "payments", 0), 0)
	p.want(t, lag("consumer_offset_out_of_range", "ledger", "payments", 0), 1)
}

// Commits are read before ends, so that records that arrive in between
// are lag and never its negative.
func TestCommitsAreReadBeforeEnds(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.commit("ledger", "payments", 0, 0)
	var order []kmsg.Key
	c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if l, ok := req.(*kmsg.ListOffsetsRequest); ok && l.Topics[0].Partitions[0].Timestamp == -1 && l.IsolationLevel == 0 || req.Key() == int16(kmsg.OffsetFetch) {
			order = append(order, kmsg.Key(req.Key()))
		}
		return nil, nil, false
	})
	watch(t, c.ListenAddrs()).mustPoll()
	if fmt.Sprint(order) != fmt.Sprint([]kmsg.Key{kmsg.OffsetFetch, kmsg.ListOffsets}) {
		t.Errorf("read in the order %v, want OffsetFetch, ListOffsets", order)
	}
}

// A commit below the log start is lost records and not lag.
func TestCommitBelowTheLogStart(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.produce("payments", 0, 10, time.Now().Add(-time.Minute))
	c.commit("ledger", "payments", 0, 4)
	if err := c.DeleteRecords("payments", 0, 9); err != nil {
		t.Fatal(err)
	}
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	p := b.scrape()
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 1)
	p.want(t, lag("consumer_records_expired", "ledger", "payments", 0), 5)
	p.want(t, lag("consumer_offset_out_of_range", "ledger", "payments", 0), 1)
	p.near(t, lag("consumer_lag_seconds", "ledger", "payments", 0), 60, 2)
}

// The age of what waits comes from the records' own timestamps: a
// producer that stopped two hours ago shows two hours, and a second a second.
func TestLagSecondsOfAnIdleProducer(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(2, "payments"))
	c.produce("payments", 0, 50, time.Now().Add(-9*24*time.Hour))
	c.produce("payments", 0, 50, time.Now().Add(-2*time.Hour))
	for i := range 50 { // and one that has just stopped
		c.produce("payments", 1, 1, time.Now().Add(time.Duration(i-50)*time.Minute))
	}
	c.commit("ledger", "payments", 0, 70)
	c.commit("ledger", "payments", 1, 20)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	idle, recent := lag("consumer_lag_seconds", "ledger", "payments", 0), lag("consumer_lag_seconds", "ledger", "payments", 1)
	b.scrape().near(t, idle, 7200, 2)
	b.scrape().near(t, recent, 1800, 20)
	for range 10 {
		before := b.scrape()[idle]
		b.clock.add(7 * time.Second) // between polls too
		b.scrape().near(t, idle, before+7, 0.01)
		b.clock.add(8 * time.Second)
		b.mustPoll()
		b.scrape().near(t, idle, before+15, 0.01)
	}
	b.scrape().near(t, recent, 1800+150, 20)
}

// A topic whose records are all in the remote tier has no newest record by the
// broker's own log; the age of what waits is found all the same.
func TestLagSecondsInTheRemoteTier(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	for i := range 60 {
		c.produce("payments", 0, 1, time.Now().Add(time.Duration(i-180)*time.Minute))
	}
	c.commit("ledger", "payments", 0, 30)
	c.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.ListOffsetsRequest)
		if r.Topics[0].Partitions[0].Timestamp != -3 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt, rp := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		rt.Topic, rp.Offset, rp.Timestamp = "payments", -1, -1
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	waiting := lag("consumer_lag_seconds", "ledger", "payments", 0)
	b.scrape().near(t, waiting, 150*60, 90)
	c.commit("ledger", "payments", 0, 50)
	for range 8 { // a step a poll
		b.next()
	}
	b.scrape().near(t, waiting, 130*60+120, 390)
}

// A record stamped with tomorrow's date has no age.
func TestRecordsOfTheFutureHaveNoAge(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.produce("payments", 0, 2, time.Now().Add(24*time.Hour))
	c.commit("ledger", "payments", 0, 1)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	p := b.scrape()
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 1)
	p.absent(t, lag("consumer_lag_seconds", "ledger", "payments", 0))
	p.absent(t, `kafka_topic_oldest_record_age_seconds{partition="0",topic="payments"}`)
}

// consume joins a group and returns once it has the topic's records.
func consume(t *testing.T, brokers []string, group, topic string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.FetchMaxWait(200 * time.Millisecond)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		fetches := c.PollFetches(ctx)
		if fetches.NumRecords() > 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("no records: %v", fetches.Err())
		}
	}
	if err := c.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

// Groups of the new protocol are described by their own request.
func TestGroupOfTheNewProtocol(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.produce("payments", 0, 5, time.Now())
	consume(t, c.ListenAddrs(), "new", "payments", kgo.ServerSideBalancer())
	old := consume(t, c.ListenAddrs(), "old", "payments")
	c.produce("payments", 0, 2, time.Now())
	asked := map[string][]string{}
	c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		switch r := req.(type) {
		case *kmsg.DescribeGroupsRequest:
			asked["classic"] = append(asked["classic"], r.Groups...)
		case *kmsg.ConsumerGroupDescribeRequest:
			asked["consumer"] = append(asked["consumer"], r.Groups...)
		}
		return nil, nil, false
	})
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	p := b.scrape()
	for _, group := range []string{"old", "new"} {
		p.want(t, lag("consumer_lag", group, "payments", 0), 2)
		p.want(t, fmt.Sprintf("consumer_group_members{consumer_group=%q}", group), 1)
		p.want(t, fmt.Sprintf("consumer_group_state{consumer_group=%q,state=\"Stable\"}", group), 1)
	}
	if fmt.Sprint(asked) != "map[classic:[old] consumer:[new]]" {
		t.Errorf("described %v", asked)
	}
	// A stopped group stays, with its lag and its state.
	old.Close()
	b.next()
	p = b.scrape()
	p.want(t, lag("consumer_lag", "old", "payments", 0), 2)
	p.want(t, `consumer_group_members{consumer_group="old"}`, 0)
	p.want(t, `consumer_group_state{consumer_group="old",state="Empty"}`, 1)
	p.absent(t, `consumer_group_state{consumer_group="old",state="Stable"}`)
}

// What a broker says of a group that is not of the described type is
// not a group without members.
func TestDescribingTheWrongTypeIsNotZeroMembers(t *testing.T) {
	t.Parallel()
	for _, answer := range []func(*kmsg.DescribeGroupsResponseGroup){
		func(g *kmsg.DescribeGroupsResponseGroup) { g.ErrorCode, g.State = kerr.GroupIDNotFound.Code, "Dead" },
		func(g *kmsg.DescribeGroupsResponseGroup) { g.State = "Dead" },
	} {
		c := cluster(t, kfake.SeedTopics(1, "payments"))
		c.produce("payments", 0, 5, time.Now())
		consume(t, c.ListenAddrs(), "ledger", "payments")
		c.ControlKey(int16(kmsg.DescribeGroups), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
			for _, name := range req.(*kmsg.DescribeGroupsRequest).Groups {
				g := kmsg.NewDescribeGroupsResponseGroup()
				g.Group = name
				answer(&g)
				resp.Groups = append(resp.Groups, g)
			}
			return resp, nil, true
		})
		b := watch(t, c.ListenAddrs())
		b.mustPoll()
		p := b.scrape()
		p.want(t, lag("consumer_lag", "ledger", "payments", 0), 0)
		p.absent(t, `consumer_group_members{consumer_group="ledger"}`)
		p.want(t, `oncewatch_errors_total{collector="groups",kind="missing"}`, 1)
	}
}

// A deleted group is gone at the next poll.
func TestDeletedGroup(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.commit("ledger", "payments", 0, 0)
	c.commit("other", "payments", 0, 0)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	if n := b.scrape().count(`consumer_lag{consumer_group="ledger"`); n != 1 {
		t.Fatalf("%d series before", n)
	}
	if _, err := c.admin.DeleteGroups(context.Background(), "ledger"); err != nil {
		t.Fatal(err)
	}
	b.next()
	for series := range b.scrape() {
		if strings.Contains(series, `"ledger"`) {
			t.Errorf("%s outlives its group", series)
		}
	}
	if n := b.scrape().count(`consumer_lag{consumer_group="other"`); n != 1 {
		t.Errorf("the other group has %d series", n)
	}
}

// Filters apply before any request that names a group or a topic.
func TestFiltersApplyBeforeRequests(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "a.b", "aXb", "orders"))
	for _, group := range []string{"g.1", "gX1", "g.1-test"} {
		for _, topic := range []string{"a.b", "aXb", "orders"} {
			c.commit(group, topic, 0, 0)
		}
	}
	named := map[string]bool{}
	c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		switch r := req.(type) {
		case *kmsg.OffsetFetchRequest:
			for _, g := range r.Groups {
				named[g.Group] = true
			}
		case *kmsg.ListOffsetsRequest:
			for _, topic := range r.Topics {
				named[topic.Topic] = true
			}
		case *kmsg.MetadataRequest:
			for _, topic := range r.Topics {
				named[*topic.Topic] = true
			}
		case *kmsg.DescribeConfigsRequest:
			for _, res := range r.Resources {
				if res.ResourceType == kmsg.ConfigResourceTypeTopic { // not the brokers' own settings
					named[res.ResourceName] = true
				}
			}
		}
		return nil, nil, false
	})
	b := watch(t, c.ListenAddrs(), func(conf *kafka.Config) {
		conf.Group, conf.GroupExclude = `g\.1.*`, `.*-test`
		conf.Topic, conf.TopicExclude = `a\.b|ord.*`, `orders`
	})
	b.client.Watch([]string{"gX1"}, []string{"aXb"}) // not past the filters
	b.mustPoll()
	delete(named, "__consumer_offsets")  // whether the groups have coordinators
	delete(named, "__transaction_state") // whether there are transactions
	if fmt.Sprint(named) != "map[a.b:true g.1:true]" {
		t.Errorf("asked for %v, want a.b and g.1 alone", named)
	}
	if n := b.scrape().count("consumer_lag{"); n != 1 {
		t.Errorf("%d lag series, want 1", n)
	}
}

func TestMaxGroupsCountsWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	for i := range 7 {
		c.commit(fmt.Sprintf("g%d", i), "payments", 0, 0)
	}
	b := watch(t, c.ListenAddrs(), func(conf *kafka.Config) { conf.MaxGroups = 3 })
	b.client.Watch([]string{"g6"}, nil) // it has markers: it stays
	b.mustPoll()
	p := b.scrape()
	p.want(t, "oncewatch_kafka_groups_left_out", 4)
	for i, want := range []int{1, 1, 0, 0, 0, 0, 1} {
		if n := p.count(fmt.Sprintf(`consumer_lag{consumer_group="g%d"`, i)); n != want {
			t.Errorf("g%d has %d series, want %d", i, n, want)
		}
	}
	var said bool
	for _, problem := range b.groups.Status().Problems {
		said = said || problem.Kind == "max_groups" && strings.Contains(problem.Err.Error(), "4 groups are left out")
	}
	if !said {
		t.Errorf("problems do not tell: %v", b.groups.Status().Problems)
	}
}

func TestGroupsWithoutCommits(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments", "other"))
	c.commit("ledger", "payments", 0, 0)
	c.commit("elsewhere", "other", 0, 0)
	onlyPayments := func(conf *kafka.Config) { conf.Topic = "payments" }
	state := func(p page, group string) int { return p.count(`consumer_group_state{consumer_group="` + group + `"`) }

	b := watch(t, c.ListenAddrs(), onlyPayments)
	b.mustPoll()
	if state(b.scrape(), "elsewhere") != 0 {
		t.Error("a group with nothing to tell of is watched")
	}
	b.client.Watch([]string{"elsewhere"}, nil)
	b.next()
	if state(b.scrape(), "elsewhere") != 1 {
		t.Error("a group with markers is not watched")
	}
	b = watch(t, c.ListenAddrs(), onlyPayments, func(conf *kafka.Config) { conf.Group = ".*" })
	b.mustPoll()
	if state(b.scrape(), "elsewhere") != 1 {
		t.Error("a group that was asked for is not watched")
	}
}

func TestGranularityTopic(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(3, "payments"))
	now := time.Now()
	c.produce("payments", 0, 10, now.Add(-time.Hour))
	c.produce("payments", 1, 10, now.Add(-2*time.Hour))
	c.commit("ledger", "payments", 0, 4)
	c.commit("ledger", "payments", 1, 2)
	c.commit("ledger", "payments", 2, 0)
	if err := c.DeleteRecords("payments", 1, 5); err != nil {
		t.Fatal(err)
	}
	b := watch(t, c.ListenAddrs(), func(conf *kafka.Config) { conf.Granularity = kafka.ByTopic })
	b.mustPoll()
	p := b.scrape()
	const of = `{consumer_group="ledger",topic="payments"}`
	p.want(t, "consumer_lag"+of, 6+5)
	p.want(t, "consumer_records_expired"+of, 3)
	p.want(t, "consumer_offset_out_of_range"+of, 1)
	p.near(t, "consumer_lag_seconds"+of, 7200, 2)
	p.want(t, `kafka_topic_partition_log_start_offset{topic="payments"}`, 5)
	p.want(t, `kafka_topic_partition_log_end_offset{topic="payments"}`, 20)
	p.near(t, `kafka_topic_oldest_record_age_seconds{topic="payments"}`, 7200, 2)
	for series := range p {
		if strings.Contains(series, "partition=") {
			t.Errorf("%s has a partition label", series)
		}
	}
	// A partition that cannot be read is not 0 in a sum.
	defer c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "payments", Partitions: []int32{1}, Err: kerr.LeaderNotAvailable, Count: -1}).Remove()
	b.next()
	p = b.scrape()
	for _, name := range []string{"consumer_lag" + of, "consumer_lag_seconds" + of, "consumer_records_expired" + of,
		`kafka_topic_partition_log_end_offset{topic="payments"}`, `kafka_topic_oldest_record_age_seconds{topic="payments"}`} {
		p.absent(t, name)
	}
	p.want(t, "consumer_group_topic_info"+of, 1)
}
