package kafka

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Retention is how long a topic keeps its records, as the broker applies it:
// the topic's own setting, else the broker's default, of which log.retention.ms
// wins over .minutes and .hours.
type Retention struct {
	// Seconds is retention.ms; +Inf where it is -1 or where the cleanup policy
	// never deletes.
	Seconds float64
	// Bytes is retention.bytes, for each partition; +Inf likewise.
	Bytes float64
	// WorstCaseSeconds is how long a record can really stay: Kafka deletes
	// whole segments once their newest record has expired, and a segment takes
	// records for segment.ms.
	WorstCaseSeconds float64
}

// The keys that are asked for, and no other: a broker's answer with all keys of
// a thousand topics is megabytes.
var retentionKeys = []string{"cleanup.policy", "retention.ms", "retention.bytes", "segment.ms"}

// retentionOf reads a topic's effective configuration.
func retentionOf(values map[string]string) (Retention, error) {
	number := func(key string) (float64, error) {
		text, ok := values[key]
		if !ok {
			return 0, fmt.Errorf("the broker does not tell its %s", key)
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %q is no whole number", key, text)
		}
		return float64(n), nil
	}
	policy, ok := values["cleanup.policy"]
	if !ok {
		return Retention{}, fmt.Errorf("the broker does not tell its cleanup.policy")
	}
	deletes := slices.ContainsFunc(strings.Split(policy, ","), func(p string) bool { return strings.TrimSpace(p) == "delete" })
	if !deletes {
		return Retention{Seconds: math.Inf(1), Bytes: math.Inf(1), WorstCaseSeconds: math.Inf(1)}, nil
	}
	ms, err := number("retention.ms")
	if err != nil {
		return Retention{}, err
	}
	bytes, err := number("retention.bytes")
	if err != nil {
		return Retention{}, err
	}
	segment, err := number("segment.ms")
	if err != nil {
		return Retention{}, err
	}
	r := Retention{Seconds: ms / 1000, Bytes: bytes, WorstCaseSeconds: (ms + segment) / 1000}
	if ms < 0 {
		r.Seconds, r.WorstCaseSeconds = math.Inf(1), math.Inf(1)
	}
	if bytes < 0 {
		r.Bytes = math.Inf(1)
	}
	return r, nil
}

// topicConfig is what was last read of a topic, and whose it was.
type topicConfig struct {
	id        TopicID
	retention Retention
	err       error
	again     bool // the failure may be over at the next poll
}

// topicConfigs keeps topics' configurations between their slower reads.
type topicConfigs struct {
	interval time.Duration
	readAt   time.Time
	byTopic  map[string]topicConfig
}

// refresh reads what is due: all topics once an interval, otherwise those that
// are new, made anew, or failed on the way.
func (t *topicConfigs) refresh(ctx context.Context, r *requester, meta metadata, now time.Time) {
	all := t.readAt.IsZero() || now.Sub(t.readAt) >= t.interval || now.Before(t.readAt)
	var due []string
	kept := make(map[string]topicConfig, len(meta.topics))
	for name, tm := range meta.topics {
		if tm.err != nil {
			continue
		}
		old, ok := t.byTopic[name]
		if ok && !all && !old.again && old.id == tm.id {
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
	i := slices.IndexFunc(meta.brokers, func(b int32) bool { return !r.isDown(b) })
	if i < 0 {
		return // downProblems tells
	}
	broker := meta.brokers[i]
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range due {
		rr := kmsg.NewDescribeConfigsRequestResource()
		rr.ResourceType = kmsg.ConfigResourceTypeTopic
		rr.ResourceName = name
		rr.ConfigNames = retentionKeys
		req.Resources = append(req.Resources, rr)
	}
	answers := ask[*kmsg.DescribeConfigsResponse](ctx, r, map[int32]kmsg.Request{broker: req})
	resp, ok := answers.ok[broker]
	if !ok {
		if err := answers.refused[broker]; err != nil {
			for _, name := range due {
				t.byTopic[name] = topicConfig{id: meta.topics[name].id, err: err, again: true}
			}
		}
		return
	}
	if all {
		t.readAt = now
	}
	for _, res := range resp.Resources {
		c := topicConfig{id: meta.topics[res.ResourceName].id, err: codeError(res.ErrorCode)}
		if c.err == nil {
			values := map[string]string{}
			for _, v := range res.Configs {
				if v.Value != nil {
					values[v.Name] = *v.Value
				}
			}
			c.retention, c.err = retentionOf(values)
		} else {
			// A denial stays until the next regular read; asking at every poll
			// would fill the broker's authorizer log.
			c.again = kindOf(c.err) != "denied"
		}
		t.byTopic[res.ResourceName] = c
	}
}

func (t *Topics) fillConfigs(meta metadata, configs topicConfigs) {
	for name, topic := range t.Topics {
		if meta.topics[name].err != nil {
			continue
		}
		conf, ok := configs.byTopic[name]
		switch {
		case !ok:
		case conf.err != nil:
			t.problems = append(t.problems, problem("topic "+name+", configuration", conf.err))
		default:
			topic.Retention = known(conf.retention)
		}
	}
}
