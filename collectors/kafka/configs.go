package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicConfig is what was last read of a topic, and whose it was.
type topicConfig struct {
	id      TopicID
	holders []int32 // the brokers that have replicas of it
	read    bool    // retention holds what could be read
	Retention
	err   error
	again bool // the failure may be over at the next poll
}

// configs keeps configurations between their slower reads.
type configs struct {
	interval time.Duration
	readAt   time.Time
	byTopic  map[string]topicConfig
	// offsets is how long the brokers keep the offsets of a group without
	// members, the shortest of them.
	offsets Known[time.Duration]
}

// offsetsRetentionKey is the only setting of the brokers themselves that is
// asked for. It needs DESCRIBE_CONFIGS on the cluster, and is not known without.
const offsetsRetentionKey = "offsets.retention.minutes"

// refresh reads what is due: all topics once an interval, otherwise those that
// are new, made anew, moved to other brokers, or failed on the way. Each broker
// is asked for the topics of which it has replicas: what a topic does not set
// itself is each broker's own default, by which it deletes from its replicas.
func (t *configs) refresh(ctx context.Context, r *requester, meta metadata, now time.Time) {
	all := t.readAt.IsZero() || now.Sub(t.readAt) >= t.interval || now.Before(t.readAt)
	var due []string
	kept := make(map[string]topicConfig, len(meta.topics))
	for name, tm := range meta.topics {
		if tm.err != nil {
			continue
		}
		old, ok := t.byTopic[name]
		if ok && !all && !old.again && old.id == tm.id && slices.Equal(old.holders, tm.holders) {
			kept[name] = old
			continue
		}
		due = append(due, name)
	}
	t.byTopic = kept
	if len(due) == 0 {
		return
	}
	slices.Sort(due)
	away := map[string]bool{} // topics of which a broker with replicas was not asked
	requests := map[int32]*kmsg.DescribeConfigsRequest{}
	add := func(broker int32, name string) {
		if requests[broker] == nil {
			requests[broker] = kmsg.NewPtrDescribeConfigsRequest()
			if all {
				requests[broker].Resources = append(requests[broker].Resources, resource(kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(broker)), offsetsRetentionKey))
			}
		}
		requests[broker].Resources = append(requests[broker].Resources, resource(kmsg.ConfigResourceTypeTopic, name, retentionKeys...))
	}
	for _, name := range due {
		asked := false
		for _, broker := range meta.topics[name].holders {
			if r.isDown(broker) || !slices.Contains(meta.brokers, broker) {
				away[name] = true
				continue
			}
			add(broker, name)
			asked = true
		}
		if i := slices.IndexFunc(meta.brokers, func(b int32) bool { return !r.isDown(b) }); !asked && i >= 0 {
			add(meta.brokers[i], name)
		}
	}
	plain := make(map[int32]kmsg.Request, len(requests))
	for broker, req := range requests {
		plain[broker] = req
	}
	answers := ask[*kmsg.DescribeConfigsResponse](ctx, r, plain)
	found := map[string]topicConfig{}
	for broker, err := range answers.refused {
		for _, res := range requests[broker].Resources {
			if res.ResourceType == kmsg.ConfigResourceTypeTopic {
				found[res.ResourceName] = longest(found[res.ResourceName], topicConfig{err: err, again: true})
			}
		}
	}
	offsets := Known[time.Duration]{}
	for broker, resp := range answers.ok {
		for _, res := range resp.Resources {
			values := map[string]string{}
			for _, v := range res.Configs {
				if v.Value != nil {
					values[v.Name] = *v.Value
				}
			}
			err := codeError(res.ErrorCode)
			if res.ResourceType == kmsg.ConfigResourceTypeBroker {
				if n, bad := strconv.ParseInt(values[offsetsRetentionKey], 10, 32); err == nil && bad == nil {
					if d := time.Duration(n) * time.Minute; !offsets.OK || d < offsets.Value {
						offsets = known(d)
					}
				}
				continue
			}
			c := topicConfig{err: err}
			if err == nil {
				c.read = true
				c.Retention, c.err = retentionOf(values)
			} else {
				// A denial stays until the next regular read; asking at every poll
				// would fill the broker's authorizer log.
				c.again = kindOf(err) != "denied"
			}
			if c.err != nil {
				c.err = fmt.Errorf("broker %d: %w", broker, c.err)
			}
			found[res.ResourceName] = longest(found[res.ResourceName], c)
		}
	}
	for name, c := range found {
		c.id, c.holders, c.again = meta.topics[name].id, meta.topics[name].holders, c.again || away[name]
		t.byTopic[name] = c
	}
	if all && len(answers.ok) > 0 {
		t.readAt, t.offsets = now, offsets
	}
}

func resource(kind kmsg.ConfigResourceType, name string, keys ...string) kmsg.DescribeConfigsRequestResource {
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, keys
	return r
}

// longest is what two brokers' answers tell together: a record is there for as
// long as the one that keeps it longer has it, since that one may lead.
func longest(a, b topicConfig) topicConfig {
	out := topicConfig{read: a.read || b.read, err: errors.Join(a.err, b.err), again: a.again || b.again}
	switch {
	case a.read && b.read:
		out.Retention = a.Retention.or(b.Retention)
	case a.read:
		out.Retention = a.Retention
	default:
		out.Retention = b.Retention
	}
	return out
}

func (t *Topics) fillConfigs(meta metadata, c configs) {
	t.OffsetsRetention = c.offsets
	for name, topic := range t.Topics {
		if meta.topics[name].err != nil {
			continue
		}
		conf, ok := c.byTopic[name]
		if !ok {
			continue
		}
		if conf.err != nil {
			t.problems = append(t.problems, problem("topic "+name+", configuration", conf.err))
		}
		if conf.read {
			topic.Retention = known(conf.Retention)
		}
	}
}
