package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
	"oncewatch/deploy/kafkaserver"
)

// While a coordinator moves, a group is in the lists of two brokers, in either
// order: the one that coordinates it is asked.
func TestAGroupThatTwoBrokersList(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.produce("payments", 0, 5, time.Now())
	c.commit("ledger", "payments", 0, 2)
	c.ControlKey(int16(kmsg.ListGroups), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
		g := kmsg.NewListGroupsResponseGroup()
		g.Group, g.ProtocolType, g.GroupState, g.GroupType = "ledger", "consumer", "Empty", "classic"
		resp.Groups = append(resp.Groups, g)
		return resp, nil, true
	})
	b := watch(t, c.ListenAddrs())
	for range 20 {
		b.next()
		b.scrape().want(t, lag("consumer_lag", "ledger", "payments", 0), 3)
	}
	if problems := b.groups.Status().Problems; len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

// A group of which there are markers is read although nobody lists it: it may be
// gone, denied, or without a coordinator, which are three different things.
func TestAGroupThatNobodyLists(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.commit("ledger", "payments", 0, 0)
	b := watch(t, c.ListenAddrs())
	b.client.Watch([]string{"ledger"}, []string{"payments"})
	b.mustPoll()
	ledger := func() *kafka.Group { return b.groups.Latest().(*kafka.Groups).Group("ledger") }
	if g := ledger(); !g.Readable || g.Topic("payments") == nil {
		t.Fatalf("before: %+v", g)
	}
	for kind, err := range map[string]*kerr.Error{"denied": kerr.GroupAuthorizationFailed, "loading": kerr.CoordinatorNotAvailable} {
		hidden := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListGroups}, Group: "ledger", Err: kerr.GroupAuthorizationFailed, Count: -1})
		fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator, kmsg.OffsetFetch}, Group: "ledger", Err: err, Count: -1})
		for range 3 {
			b.next()
			if g := ledger(); g != nil && (g.Readable || g.State == "Dead") {
				t.Errorf("%s: %+v, want not readable", kind, g)
			}
		}
		b.scrape().want(t, fmt.Sprintf("oncewatch_errors_total{collector=\"groups\",kind=%q}", kind), 3)
		fault.Remove()
		hidden.Remove()
		b.next()
		b.scrape().want(t, lag("consumer_lag", "ledger", "payments", 0), 0)
	}
	if _, err := c.admin.DeleteGroups(context.Background(), "ledger"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.next()
		if g := ledger(); g == nil || !g.Readable || g.State != "Dead" || len(g.Topics) != 0 {
			t.Errorf("deleted: %+v, want readable, dead and without commits", g)
		}
	}
	b.scrape().want(t, `consumer_group_members{consumer_group="ledger"}`, 0)
}

// A broker dies that holds the only replica of partitions of the offsets topic:
// the groups coordinated there are in nobody's list, and are errors by name.
func offsetsPartitionsWithoutALeader(t *testing.T, s *kafkaserver.Server) {
	admin := kadm.NewClient(producer(t, s.Internal()))
	const topic = "payments"
	assign(t, s, map[string][]int32{topic: {1}})
	var groups []string
	for i := range 12 {
		group := fmt.Sprintf("group-%d", i)
		commitAt(t, admin, group, topic, 0, 0)
		groups = append(groups, group)
	}
	coordinators := admin.FindGroupCoordinators(context.Background(), groups...)
	b := watch(t, s.Brokers()[:1])
	b.client.Watch([]string{"never-seen"}, nil)
	fresh := watch(t, s.Brokers()[:1])
	b.mustPoll()
	if err := s.KillBroker(2); err != nil {
		t.Fatal(err)
	}
	offline := func(b *bundle) (partitions int, groups map[string]bool) {
		groups = map[string]bool{}
		for _, p := range b.groups.Status().Problems {
			if strings.HasPrefix(p.Entity, "topic __consumer_offsets") && p.Kind == "leaderless" {
				partitions++
			}
			if name, ok := strings.CutPrefix(p.Entity, "group "); ok {
				groups[name] = true
			}
		}
		return partitions, groups
	}
	for name, b := range map[string]*bundle{"running": b, "fresh": fresh} {
		b.until(name+": offsets partitions without a leader", func(page) bool { n, _ := offline(b); return n == 1 })
	}
	b.poll()
	p := b.scrape()
	_, named := offline(b)
	lost := 0
	for _, group := range groups {
		series := lag("consumer_lag", group, topic, 0)
		if coordinators[group].NodeID == 3 {
			lost++
			p.absent(t, series)
			if !named[group] {
				t.Errorf("%s, whose coordinator is gone, is not named: %v", group, named)
			}
		} else {
			p.want(t, series, 0)
		}
	}
	if lost == 0 || lost == len(groups) {
		t.Fatalf("%d of %d groups were coordinated by the broker that was killed", lost, len(groups))
	}
}
