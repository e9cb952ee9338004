package kafka_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
	"oncewatch/deploy/testenv"
)

func subscribed(group, topic string) string {
	return fmt.Sprintf("consumer_group_topic_subscribed{consumer_group=%q,topic=%q}", group, topic)
}

// A group that consumes another topic now has left the one that its old commits
// are on; one without members has left nothing.
func TestRealGroupsThatLeftATopic(t *testing.T) {
	t.Parallel()
	s := testenv.Kafka(t)
	client, admin, left := real(t, s, "left", 1, nil)
	_, _, now := real(t, s, "now", 1, nil)
	produce(t, client, left, 0, 5, time.Now())
	produce(t, client, now, 0, 5, time.Now())
	ways := map[string][]kgo.Opt{
		"classic":       nil,
		"classic-regex": {kgo.ConsumeRegex(), kgo.ConsumeTopics("^" + now + "$")},
		"consumer":      {kgo.ServerSideBalancer()},
		"stopped":       nil,
	}
	var stopped *kgo.Client
	for name, options := range ways {
		group := name + "-" + left
		commitAt(t, admin, group, left, 0, 2)
		member := consume(t, s.Brokers(), group, now, options...)
		if name == "stopped" {
			stopped = member
		}
	}
	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Group = ".*-" + left })
	p := b.until("every group's subscriptions", func(p page) bool {
		return p.count("consumer_group_topic_subscribed{") == 2*len(ways)
	})
	for name := range ways {
		p.want(t, subscribed(name+"-"+left, left), 0)
		p.want(t, subscribed(name+"-"+left, now), 1)
		p.want(t, lag("consumer_lag", name+"-"+left, left, 0), 3)
	}
	stopped.Close()
	p = b.until("one stopped", func(p page) bool { return p.count("consumer_group_topic_subscribed{") == 2*len(ways)-2 })
	p.absent(t, subscribed("stopped-"+left, left))
	p.absent(t, subscribed("stopped-"+left, now))
}

// While a classic group's members join, the coordinator tells no subscriptions:
// they are what they were, for a while and not for ever. A pattern of the new
// protocol is matched against whole names.
func TestSubscriptionsWhileMembersJoin(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments", "payments-old"))
	c.produce("payments", 0, 5, time.Now())
	c.commit("ledger", "payments-old", 0, 0)
	consume(t, c.ListenAddrs(), "ledger", "payments")
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	b.scrape().want(t, subscribed("ledger", "payments-old"), 0)
	c.ControlKey(int16(kmsg.DescribeGroups), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
		for _, name := range req.(*kmsg.DescribeGroupsRequest).Groups {
			g := kmsg.NewDescribeGroupsResponseGroup()
			g.Group, g.State, g.ProtocolType = name, "PreparingRebalance", "consumer"
			g.Members = []kmsg.DescribeGroupsResponseGroupMember{kmsg.NewDescribeGroupsResponseGroupMember()}
			resp.Groups = append(resp.Groups, g)
		}
		return resp, nil, true
	})
	for range 12 {
		b.next()
		b.scrape().want(t, subscribed("ledger", "payments-old"), 0)
		b.scrape().want(t, subscribed("ledger", "payments"), 1)
	}
	for range 4 {
		b.next()
	}
	b.scrape().absent(t, subscribed("ledger", "payments-old"))
}

func TestSubscriptionByPattern(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments", "payments-old", "other"))
	for _, topic := range []string{"payments", "payments-old", "other"} {
		c.produce(topic, 0, 1, time.Now())
		c.commit("ledger", topic, 0, 0)
	}
	consume(t, c.ListenAddrs(), "ledger", "other", kgo.ServerSideBalancer())
	c.ControlKey(int16(kmsg.ConsumerGroupDescribe), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.ConsumerGroupDescribeResponse)
		for _, name := range req.(*kmsg.ConsumerGroupDescribeRequest).Groups {
			g := kmsg.NewConsumerGroupDescribeResponseGroup()
			g.Group, g.State = name, "Stable"
			m := kmsg.NewConsumerGroupDescribeResponseGroupMember()
			m.SubscribedTopicRegex = kmsg.StringPtr("pay.*s|oth")
			g.Members = append(g.Members, m)
			resp.Groups = append(resp.Groups, g)
		}
		return resp, nil, true
	})
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	for topic, want := range map[string]float64{"payments": 1, "payments-old": 0, "other": 0} {
		b.scrape().want(t, subscribed("ledger", topic), want)
	}
}
