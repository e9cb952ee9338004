// Package topicconfig reads the configuration of topics from the brokers.
package topicconfig

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Margin is the factor by which markers must outlive the records they guard
// against.
const Margin = 1.1

// Retention of a topic.
type Retention struct {
	// Time is the effective retention.ms.
	Time time.Duration
	// Worst is how long a record can really stay: a segment goes as a whole,
	// once its newest record has expired.
	Worst time.Duration
	// Unlimited: records are never deleted by age.
	Unlimited bool
}

// Retentions reads the topics' effective retention.
func Retentions(ctx context.Context, admin *kadm.Client, topics ...string) (map[string]Retention, error) {
	configs, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("read the topics' configuration: %w", err)
	}
	out := map[string]Retention{}
	for _, rc := range configs {
		if errors.Is(rc.Err, kerr.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("topic %s does not exist: create it first (`reference-consumer produce --partitions=N` does, for a trial)", rc.Name)
		}
		if rc.Err != nil {
			return nil, fmt.Errorf("read the configuration of topic %s: %w", rc.Name, rc.Err)
		}
		values := map[string]string{}
		for _, kv := range rc.Configs {
			values[kv.Key] = kv.MaybeValue()
		}
		ms, err := strconv.ParseInt(values["retention.ms"], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("topic %s: retention.ms is %q: %w", rc.Name, values["retention.ms"], err)
		}
		r := Retention{Time: time.Duration(ms) * time.Millisecond}
		r.Unlimited = ms < 0 || ms > int64(1<<62)/int64(time.Millisecond) || !strings.Contains(values["cleanup.policy"], "delete")
		r.Worst = r.Time
		if segment, err := strconv.ParseInt(values["segment.ms"], 10, 64); err == nil && segment < int64(1<<62)/int64(time.Millisecond) {
			r.Worst += time.Duration(segment) * time.Millisecond
		}
		out[rc.Name] = r
	}
	for _, t := range topics {
		if _, ok := out[t]; !ok {
			return nil, fmt.Errorf("the brokers did not describe topic %s", t)
		}
	}
	return out, nil
}
