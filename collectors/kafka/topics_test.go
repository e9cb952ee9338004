package kafka_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
)

// What retention a topic's settings and policies make, and the worst case.
func TestRetention(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	inf := math.Inf(1)
	day := 86_400.0
	tests := map[string]struct {
		configs                 map[string]string
		seconds, bytes, atWorst float64
	}{
		"default":       {nil, 7 * day, inf, 14 * day},
		"own":           {map[string]string{"retention.ms": "3600000", "retention.bytes": "1000", "segment.ms": "60000"}, 3600, 1000, 3660},
		"unlimited":     {map[string]string{"retention.ms": "-1"}, inf, inf, inf},
		"longest":       {map[string]string{"retention.ms": "9223372036854775807", "segment.ms": "1"}, math.MaxInt64 / 1000.0, inf, math.MaxInt64 / 1000.0},
		"compacted":     {map[string]string{"cleanup.policy": "compact", "retention.ms": "3600000", "retention.bytes": "5"}, inf, inf, inf},
		"both-policies": {map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "3600000"}, 3600, inf, inf},
	}
	var topics []string
	for name, tt := range tests {
		if err := c.CreateTopic(name, 1, tt.configs); err != nil {
			t.Fatal(err)
		}
		topics = append(topics, name)
	}
	b := watch(t, c.ListenAddrs())
	b.client.Watch(nil, topics)
	b.mustPoll()
	p := b.scrape()
	for name, tt := range tests {
		p.want(t, fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", name), tt.seconds)
		p.want(t, fmt.Sprintf("kafka_topic_retention_bytes{topic=%q}", name), tt.bytes)
		p.want(t, fmt.Sprintf("kafka_topic_worst_case_retention_seconds{topic=%q}", name), tt.atWorst)
	}
}

func TestLogBoundsAndOldestRecord(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(3, "payments"))
	c.produce("payments", 0, 5, time.Now().Add(-time.Hour))
	c.produce("payments", 0, 5, time.Now().Add(-time.Minute))
	c.produce("payments", 1, 1, time.Now().Add(-time.Hour))
	if err := c.DeleteRecords("payments", 1, 1); err != nil {
		t.Fatal(err)
	}
	b := watch(t, c.ListenAddrs())
	b.client.Watch(nil, []string{"payments"})
	b.mustPoll()
	of := func(partition int) string { return fmt.Sprintf(`{partition="%d",topic="payments"}`, partition) }
	p := b.scrape()
	p.want(t, "kafka_topic_partition_log_start_offset"+of(0), 0)
	p.want(t, "kafka_topic_partition_log_end_offset"+of(0), 10)
	p.near(t, "kafka_topic_oldest_record_age_seconds"+of(0), 3600, 2)
	p.want(t, "kafka_topic_partition_log_start_offset"+of(1), 1)
	p.want(t, "kafka_topic_partition_log_end_offset"+of(1), 1)
	for _, empty := range []int{1, 2} { // emptied, and never written to
		p.absent(t, "kafka_topic_oldest_record_age_seconds"+of(empty))
	}
	// The head goes, and with it the age.
	if err := c.DeleteRecords("payments", 0, 5); err != nil {
		t.Fatal(err)
	}
	b.next()
	b.scrape().near(t, "kafka_topic_oldest_record_age_seconds"+of(0), 60+15, 2)
	b.clock.add(5 * time.Second)
	b.scrape().near(t, "kafka_topic_oldest_record_age_seconds"+of(0), 60+20, 2)
}

// Asking for a topic never makes it.
func TestADeletedTopicStaysGone(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.AllowAutoTopicCreation(), kfake.SeedTopics(1, "payments", "other"))
	b := watch(t, c.ListenAddrs())
	b.client.Watch(nil, []string{"payments", "other"})
	b.mustPoll()
	if err := c.DeleteTopic("payments"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.next()
	}
	if c.TopicInfo("payments") != nil {
		t.Error("the deleted topic is there again")
	}
	p := b.scrape()
	if n := p.count(`kafka_topic_retention_seconds{topic="payments"`); n != 0 {
		t.Error("the deleted topic still has series")
	}
	p.want(t, `kafka_topic_retention_seconds{topic="other"}`, 7*86_400)
	p.want(t, `oncewatch_errors_total{collector="topics",kind="missing"}`, 3)
}

// Configurations are read on their own interval, and only the keys needed.
func TestTopicConfigsAreReadSeldom(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "a", "b", "c"))
	var asked [][]string
	c.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		var topics []string
		for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
			if r.ResourceType == kmsg.ConfigResourceTypeBroker {
				if fmt.Sprint(r.ConfigNames) != "[offsets.retention.minutes]" {
					t.Errorf("asked a broker for keys %v", r.ConfigNames)
				}
				continue
			}
			topics = append(topics, r.ResourceName)
			if fmt.Sprint(r.ConfigNames) != "[cleanup.policy retention.ms retention.bytes segment.ms]" {
				t.Errorf("asked for keys %v", r.ConfigNames)
			}
		}
		asked = append(asked, topics)
		return nil, nil, false
	})
	b := watch(t, c.ListenAddrs())
	b.client.Watch(nil, []string{"a", "b"})
	b.mustPoll()
	for range 9 {
		b.next()
	}
	if fmt.Sprint(asked) != "[[a b] [a b] [a b]]" { // by each of the three brokers with replicas
		t.Errorf("asked %v over 10 polls, want once of each broker", asked)
	}
	asked = nil
	b.client.Watch(nil, []string{"a", "b", "c"})
	b.next() // a new topic is asked for at once, and alone
	if fmt.Sprint(asked) != "[[c] [c] [c]]" {
		t.Errorf("asked %v for a new topic, want c alone", asked)
	}
	asked = nil
	b.clock.add(5 * time.Minute)
	b.next()
	if fmt.Sprint(asked) != "[[a b c] [a b c] [a b c]]" {
		t.Errorf("asked %v after the interval, want all", asked)
	}
}

// A topic made anew has another id, configuration and past.
func TestATopicMadeAnew(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	if err := c.CreateTopic("payments", 1, map[string]string{"retention.ms": "1000"}); err != nil {
		t.Fatal(err)
	}
	c.produce("payments", 0, 3, time.Now().Add(-time.Hour))
	b := watch(t, c.ListenAddrs())
	b.client.Watch(nil, []string{"payments"})
	b.mustPoll()
	snapshot := func() *kafka.Topic { return b.topics.Latest().(*kafka.Topics).Topics["payments"] }
	before := snapshot()
	if err := c.DeleteTopic("payments"); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic("payments", 1, map[string]string{"retention.ms": "2000"}); err != nil {
		t.Fatal(err)
	}
	// Not with the producer from before, which knows the old topic's id.
	produce(t, producer(t, c.ListenAddrs()), "payments", 0, 3, time.Now().Add(-time.Minute))
	b.next()
	after := snapshot()
	if before.ID == after.ID || after.ID == (kafka.TopicID{}) {
		t.Errorf("topic id %x, then %x", before.ID, after.ID)
	}
	p := b.scrape()
	p.want(t, `kafka_topic_retention_seconds{topic="payments"}`, 2)
	p.near(t, `kafka_topic_oldest_record_age_seconds{partition="0",topic="payments"}`, 75, 2)
}

func TestListOffsets(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(4, "payments"))
	now := time.Now().Truncate(time.Millisecond)
	for i := range 10 {
		c.produce("payments", 0, 1, now.Add(time.Duration(i-10)*time.Hour))
		c.produce("payments", 1, 1, now.Add(time.Duration(i-10)*time.Minute))
	}
	b := watch(t, c.ListenAddrs())
	count := c.counting()
	at := now.Add(-5*time.Hour - 30*time.Minute)
	got, err := b.client.ListOffsets(context.Background(), map[string]map[int32]time.Time{
		"payments": {0: at, 1: at, 2: at, 99: at}, "absent": {0: at}})
	if err != nil {
		t.Fatal(err)
	}
	if o := got["payments"][0]; o.Err != nil || o.Offset != 5 || !o.Timestamp.Equal(now.Add(-5*time.Hour)) {
		t.Errorf("partition 0: %+v, want offset 5", o)
	}
	if o := got["payments"][1]; o.Err != nil || o.Offset != 0 || !o.Timestamp.Equal(now.Add(-10*time.Minute)) {
		t.Errorf("partition 1: %+v, want offset 0", o)
	}
	if o := got["payments"][2]; o.Err != nil || o.Offset != -1 || !o.Timestamp.IsZero() {
		t.Errorf("an empty partition: %+v, want -1", o)
	}
	for _, o := range []kafka.ListedOffset{got["payments"][99], got["absent"][0]} {
		if o.Err == nil || o.Offset != -1 {
			t.Errorf("what does not exist: %+v, want an error", o)
		}
	}
	if n, sum := count.take(); sum > 5 {
		t.Errorf("%d requests: %v, want one for metadata, one a broker, and one to see that the empty partition is", sum, n)
	}
}

// What a broker leaves out or says strangely withholds what needs it, is named,
// and nothing else.
func TestSettingsThatABrokerLeavesOut(t *testing.T) {
	t.Parallel()
	const seconds, bytes, worst = "kafka_topic_retention_seconds", "kafka_topic_retention_bytes", "kafka_topic_worst_case_retention_seconds"
	all := map[string]string{"cleanup.policy": "delete", "retention.ms": "60000", "retention.bytes": "1000", "segment.ms": "2000"}
	with := func(key, value string) map[string]string {
		out := maps.Clone(all)
		if out[key] = value; value == "" {
			delete(out, key)
		}
		return out
	}
	inf := math.Inf(1)
	for name, tt := range map[string]struct {
		told  map[string]string
		want  map[string]float64
		named string
	}{
		"everything":         {all, map[string]float64{seconds: 60, bytes: 1000, worst: 62}, ""},
		"no retention.bytes": {with("retention.bytes", ""), map[string]float64{seconds: 60, worst: 62}, "retention.bytes"},
		"no segment.ms":      {with("segment.ms", ""), map[string]float64{seconds: 60, bytes: 1000}, "segment.ms"},
		"no retention.ms":    {with("retention.ms", ""), map[string]float64{bytes: 1000}, "retention.ms"},
		"no cleanup.policy":  {with("cleanup.policy", ""), nil, "cleanup.policy"},
		"segment.ms of -1":   {with("segment.ms", "-1"), map[string]float64{seconds: 60, bytes: 1000, worst: inf}, ""},
		"no number":          {with("retention.ms", "7d"), map[string]float64{bytes: 1000}, "whole number"},
		"spaces":             {with("cleanup.policy", "compact, delete"), map[string]float64{seconds: 60, bytes: 1000, worst: inf}, ""},
		"no policy at all":   {with("cleanup.policy", "none"), map[string]float64{seconds: inf, bytes: inf, worst: inf}, ""},
		"unlimited, no segment.ms": {map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
			map[string]float64{seconds: inf, bytes: inf, worst: inf}, "segment.ms"},
	} {
		c := cluster(t, kfake.SeedTopics(1, "payments"))
		c.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return configsAnswer(req, func(string) map[string]string { return tt.told }), nil, true
		})
		b := watch(t, c.ListenAddrs())
		b.client.Watch(nil, []string{"payments"})
		b.mustPoll()
		p := b.scrape()
		for _, metric := range []string{seconds, bytes, worst} {
			series := metric + `{topic="payments"}`
			if want, ok := tt.want[metric]; ok {
				p.want(t, series, want)
			} else {
				p.absent(t, series)
			}
		}
		said := fmt.Sprint(b.topics.Status().Problems)
		if tt.named != "" && !strings.Contains(said, tt.named) || tt.named == "" && said != "[]" {
			t.Errorf("%s: problems %s, want %q named", name, said, tt.named)
		}
	}
}

// configsAnswer is a broker's answer for topics, with these settings and no
// other.
func configsAnswer(req kmsg.Request, told func(topic string) map[string]string) *kmsg.DescribeConfigsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
		res := kmsg.NewDescribeConfigsResponseResource()
		res.ResourceType, res.ResourceName = r.ResourceType, r.ResourceName
		for k, v := range told(r.ResourceName) {
			one := kmsg.NewDescribeConfigsResponseResourceConfig()
			one.Name, one.Value = k, &v
			res.Configs = append(res.Configs, one)
		}
		resp.Resources = append(resp.Resources, res)
	}
	return resp
}

// Settings that change while the exporter runs are read at the next interval,
// and at once where the topic has moved to another broker.
func TestSettingsThatChange(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	b := watch(t, c.ListenAddrs())
	b.client.Watch(nil, []string{"payments"})
	b.mustPoll()
	const series = `kafka_topic_retention_seconds{topic="payments"}`
	b.scrape().want(t, series, 7*86_400)
	alter(t, c.admin, "payments", "retention.ms", "60000")
	b.next()
	b.scrape().want(t, series, 7*86_400)
	b.clock.add(5 * time.Minute)
	b.mustPoll()
	b.scrape().want(t, series, 60)
	alter(t, c.admin, "payments", "cleanup.policy", "compact")
	b.clock.add(5 * time.Minute)
	b.mustPoll()
	b.scrape().want(t, series, math.Inf(1))
}
