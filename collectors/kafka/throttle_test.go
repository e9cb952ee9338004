package kafka_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// throttled is what is said of throttling, by a problem or as the reason why a
// whole poll failed.
func (b *bundle) throttled() string {
	for _, s := range []struct {
		text string
		kind string
	}{{errorText(b.groups.Status().Err), ""}, {errorText(b.topics.Status().Err), ""}} {
		if strings.Contains(s.text, "throttled by a quota") {
			return s.text
		}
	}
	for _, p := range append(b.groups.Status().Problems, b.topics.Status().Problems...) {
		if p.Kind == "throttled" {
			return p.Err.Error()
		}
	}
	return ""
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A broker that makes the client wait for a quota is not one that hangs: it is
// named, and by how much.
func TestThrottledByAQuota(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "payments"))
	c.commit("ledger", "payments", 0, 0)
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	c.ControlKey(int16(kmsg.ListGroups), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
		resp.ThrottleMillis = 8000
		return resp, nil, true
	})
	b.next()
	if said := b.throttled(); !strings.Contains(said, "broker 0, last by 8s") {
		t.Errorf("said %q; problems %v", said, b.groups.Status().Problems)
	}
}

func TestRealThrottledByAQuota(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{"quota.window.size.seconds": "30", "quota.window.num": "2"}})
	client, admin, topic := real(t, s, "payments", 1, nil)
	produce(t, client, topic, 0, 10, time.Now())
	commitAt(t, admin, "ledger", topic, 0, 4)
	b := watch(t, s.Brokers())
	series := lag("consumer_lag", "ledger", topic, 0)
	b.until("lag", has(series))
	name := "oncewatch"
	if _, err := admin.AlterClientQuotas(context.Background(), []kadm.AlterClientQuotaEntry{{
		Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &name}},
		Ops:    []kadm.AlterClientQuotaOp{{Key: "request_percentage", Value: 0.01}},
	}}); err != nil {
		t.Fatal(err)
	}
	b.until("the broker throttles", func(page) bool { return b.throttled() != "" })
	t.Log(b.throttled())
}
