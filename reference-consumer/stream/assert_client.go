package stream

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clientViolations reads the consuming client's options back: those that were
// added must not have replaced what the consumer rests on. The client it asks
// never connects.
func (c *consumer) clientViolations() []Violation {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client, err := kgo.NewClient(append(c.options(), kgo.WithContext(ctx))...)
	if err != nil {
		return []Violation{{AssertClientOptions, fmt.Sprintf("the client's options do not go together: %v", err)}}
	}
	defer client.CloseAllowingRebalance()
	var vs []Violation
	is := func(assertion string, opt, want any, text string) {
		if !reflect.DeepEqual(client.OptValue(opt), want) {
			vs = append(vs, Violation{assertion, text})
		}
	}
	is(AssertAutoCommit, kgo.DisableAutoCommit, true, "the client commits offsets by itself: remove the option that enables auto-commit")
	start := kgo.NewOffset().AtStart()
	is(AssertOffsetPolicy, kgo.ConsumeStartOffset, start, "ConsumeStartOffset is not the log's start: events between there and the start would be skipped")
	is(AssertOffsetPolicy, kgo.ConsumeResetOffset, start, "ConsumeResetOffset is not the log's start: events between there and the start would be skipped")
	option := func(name string, opt, want any) {
		is(AssertClientOptions, opt, want, name+" is among the extra options: it would replace the consumer's own; set it in stream.Config, or leave it out")
	}
	option("ConsumerGroup", kgo.ConsumerGroup, c.group)
	topics := slices.Clone(c.cfg.Topics)
	slices.Sort(topics)
	option("ConsumeTopics", kgo.ConsumeTopics, slices.Compact(topics))
	option("ConsumePartitions", kgo.ConsumePartitions, map[string]map[int32]kgo.Offset(nil))
	option("ConsumeRegex", kgo.ConsumeRegex, false)
	option("FetchIsolationLevel", kgo.FetchIsolationLevel, int8(1)) // read committed
	option("SessionTimeout", kgo.SessionTimeout, c.cfg.SessionTimeout)
	option("RebalanceTimeout", kgo.RebalanceTimeout, c.cfg.RebalanceTimeout)
	option("ServerSideBalancer", kgo.ServerSideBalancer, c.cfg.ServerSideBalancing)
	if id, _ := client.OptValue(kgo.InstanceID).(string); id != c.cfg.InstanceID {
		option("InstanceID", kgo.InstanceID, c.cfg.InstanceID)
	}
	if got := reflect.ValueOf(client.OptValue(kgo.AdjustFetchOffsetsFn)); got.Kind() != reflect.Func || got.Pointer() != reflect.ValueOf(c.reconcile).Pointer() {
		vs = append(vs, Violation{AssertClientOptions, "AdjustFetchOffsetsFn is among the extra options: partitions would begin without a look at the database's own offsets; leave it out"})
	}
	// The client wraps the group's callbacks, so that they cannot be compared;
	// but without a group it takes none.
	if err := kgo.ValidateOpts(append(slices.Concat(c.cfg.Client, c.cfg.Consumer), kgo.ConsumerGroup(""))...); err != nil {
		vs = append(vs, Violation{AssertClientOptions, fmt.Sprintf("the group's own callbacks (OnPartitionsAssigned, …Revoked, …Lost) or commits are among the extra options: the consumer would hear nothing of its partitions; stream.Config.Assigned tells of assignments (%v)", err)})
	}
	return vs
}
