package kafka_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// What Apache Kafka itself answers, where the in-process broker could differ.

// real makes a topic on a real broker, with a name of the test's own.
func real(t *testing.T, s *kafkaserver.Server, name string, partitions int32, configs map[string]string) (*kgo.Client, *kadm.Client, string) {
	t.Helper()
	client := producer(t, s.Internal())
	admin := kadm.NewClient(client)
	topic := name + "-" + strings.ToLower(t.Name())
	topic = strings.NewReplacer("/", "-", "_", "-").Replace(topic)
	values := map[string]*string{}
	for k, v := range configs {
		values[k] = &v
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := admin.CreateTopic(ctx, partitions, 1, values, topic)
	if err == nil {
		err = resp.Err
	}
	if err != nil {
		t.Fatal(err)
	}
	return client, admin, topic
}

// until polls until the page is as wanted, for a minute at most.
func (b *bundle) until(what string, ok func(page) bool) page {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		b.poll()
		p := b.scrape()
		if ok(p) {
			return p
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within a minute; topics: %v, groups: %v\n%v", what, b.topics.Status().Err, b.groups.Status().Err, p)
		}
		time.Sleep(50 * time.Millisecond) // the broker's time, not ours
	}
}

func has(series string) func(page) bool {
	return func(p page) bool { _, ok := p[series]; return ok }
}

// Lag after real commits, for both protocols, running and stopped.
func TestRealLag(t *testing.T) {
	t.Parallel()
	s := testenv.Kafka(t)
	client, admin, topic := real(t, s, "payments", 2, nil)
	produce(t, client, topic, 0, 10, time.Now().Add(-time.Hour))
	classic, fresh := "classic-"+topic, "consumer-"+topic
	old := consume(t, s.Brokers(), classic, topic)
	young := consume(t, s.Brokers(), fresh, topic, kgo.ServerSideBalancer())
	produce(t, client, topic, 0, 5, time.Now().Add(-10*time.Minute))
	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Group = ".*-" + topic })
	p := b.until("both groups", func(p page) bool {
		return p[fmt.Sprintf("consumer_group_members{consumer_group=%q}", classic)] == 1 && p[fmt.Sprintf("consumer_group_members{consumer_group=%q}", fresh)] == 1
	})
	for _, group := range []string{classic, fresh} {
		p.want(t, lag("consumer_lag", group, topic, 0), 5)
		p.near(t, lag("consumer_lag_seconds", group, topic, 0), 600, 15)
		p.want(t, lag("consumer_records_expired", group, topic, 0), 0)
		p.want(t, lag("consumer_offset_out_of_range", group, topic, 0), 0)
		p.want(t, fmt.Sprintf("consumer_group_state{consumer_group=%q,state=\"Stable\"}", group), 1)
	}
	types := map[string]string{}
	for _, g := range b.groups.Latest().(*kafka.Groups).Groups {
		types[g.Name] = g.Type
	}
	if types[classic] != "classic" || types[fresh] != "consumer" {
		t.Errorf("types: %v", types)
	}
	old.Close()
	young.Close()
	p = b.until("both stopped", func(p page) bool {
		return p[fmt.Sprintf("consumer_group_state{consumer_group=%q,state=\"Empty\"}", classic)] == 1 && p[fmt.Sprintf("consumer_group_state{consumer_group=%q,state=\"Empty\"}", fresh)] == 1
	})
	for _, group := range []string{classic, fresh} {
		p.want(t, lag("consumer_lag", group, topic, 0), 5)
		p.want(t, fmt.Sprintf("consumer_group_members{consumer_group=%q}", group), 0)
	}
	// Records deleted before they were handled, and a commit past the end.
	del := kadm.Offsets{}
	del.AddOffset(topic, 0, 14, -1)
	if _, err := admin.DeleteRecords(context.Background(), del); err != nil {
		t.Fatal(err)
	}
	commitAt(t, admin, fresh, topic, 0, 22)
	p = b.until("records expired", func(p page) bool { return p[lag("consumer_records_expired", classic, topic, 0)] > 0 })
	p.want(t, lag("consumer_records_expired", classic, topic, 0), 4)
	p.want(t, lag("consumer_lag", classic, topic, 0), 1)
	p.want(t, lag("consumer_offset_out_of_range", classic, topic, 0), 1)
	p.want(t, lag("consumer_lag", fresh, topic, 0), 0)
	p.want(t, lag("consumer_offset_out_of_range", fresh, topic, 0), 1)
	// A deleted group is gone.
	if _, err := admin.DeleteGroups(context.Background(), classic); err != nil {
		t.Fatal(err)
	}
	b.until("the group gone", func(p page) bool { return p.count("consumer_lag"+group(classic)) == 0 })
}

// The age of what waits on a real time index: many records a batch, many
// batches.
func TestRealLagSeconds(t *testing.T) {
	t.Parallel()
	s := testenv.Kafka(t)
	client, admin, topic := real(t, s, "payments", 1, map[string]string{"segment.bytes": "1048576"})
	begin := time.Now().Add(-6 * time.Hour).Truncate(time.Millisecond)
	const records = 20_000 // one each 900 ms, until an hour ago
	stamp := func(i int) time.Time { return begin.Add(time.Duration(i) * 900 * time.Millisecond) }
	var batch []*kgo.Record
	for i := range records {
		batch = append(batch, &kgo.Record{Topic: topic, Value: make([]byte, 100), Timestamp: stamp(i)})
	}
	if err := client.ProduceSync(context.Background(), batch...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	offsets := []int64{0, 1, 137, 5_000, 9_999, 15_000, 19_998, 19_999}
	for _, o := range offsets {
		commitAt(t, admin, fmt.Sprintf("at-%d-%s", o, topic), topic, 0, o)
	}
	commitAt(t, admin, "done-"+topic, topic, 0, records)
	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Group = ".*-" + topic })
	b.mustPoll()
	p := b.scrape()
	for _, o := range offsets {
		age := b.clock.now().Sub(stamp(int(o))).Seconds()
		p.near(t, lag("consumer_lag_seconds", fmt.Sprintf("at-%d-%s", o, topic), topic, 0), age, max(1, age/100))
	}
	p.want(t, lag("consumer_lag_seconds", "done-"+topic, topic, 0), 0)
	p.near(t, fmt.Sprintf("kafka_topic_oldest_record_age_seconds{partition=\"0\",topic=%q}", topic), b.clock.now().Sub(begin).Seconds(), 0.01)
}

// DeleteRecords moves the log start at once and lets the segments before it wait
// for the broker's next check. Until then the broker looks for times in those
// alone and finds no record: that is no empty log.
func TestRealSegmentsBeforeTheLogStart(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{"log.initial.task.delay.ms": "3600000"}})
	client, admin, topic := real(t, s, "payments", 1, map[string]string{"segment.ms": "43200000", "retention.ms": "-1"})
	begin := time.Now().Add(-10 * 24 * time.Hour).Truncate(time.Millisecond)
	stamp := func(offset int64) time.Time { return begin.Add(time.Duration(offset/10) * 3 * time.Hour) }
	for offset := int64(0); offset < 800; offset += 10 {
		produce(t, client, topic, 0, 10, stamp(offset))
	}
	waiting := map[string]int64{"behind-" + topic: 100, "here-" + topic: 500}
	for group, offset := range waiting {
		commitAt(t, admin, group, topic, 0, offset)
	}
	running := watch(t, s.Brokers(), func(c *kafka.Config) { c.Group = ".*-" + topic })
	running.mustPoll()
	const start = 300
	del := kadm.Offsets{}
	del.AddOffset(topic, 0, start, -1)
	if _, err := admin.DeleteRecords(context.Background(), del); err != nil {
		t.Fatal(err)
	}
	fresh := watch(t, s.Brokers(), func(c *kafka.Config) { c.Group = ".*-" + topic })
	oldest := fmt.Sprintf("kafka_topic_oldest_record_age_seconds{partition=\"0\",topic=%q}", topic)
	startOf := fmt.Sprintf("kafka_topic_partition_log_start_offset{partition=\"0\",topic=%q}", topic)
	for name, b := range map[string]*bundle{"running": running, "fresh": fresh} {
		p := b.until(name+": the first record", func(p page) bool { return p[startOf] == start && has(oldest)(p) })
		near := func(series string, offset int64) {
			t.Helper()
			age := b.clock.now().Sub(stamp(offset)).Seconds()
			p.near(t, series, age, age/20)
		}
		near(oldest, start)
		for group, offset := range waiting {
			near(lag("consumer_lag_seconds", group, topic, 0), max(offset, start))
		}
	}

	for _, c := range []struct {
		at      time.Time
		offset  int64
		atLeast bool
	}{
		{time.UnixMilli(0), start, true},
		{stamp(200), start, true},
		{stamp(start), start, false},
		{stamp(500), 500, false},
		{time.Now(), -1, false},
	} {
		all, err := fresh.client.ListOffsets(context.Background(), map[string]map[int32]time.Time{topic: {0: c.at}})
		if err != nil {
			t.Fatal(err)
		}
		if got := all[topic][0]; got.Err != nil || got.Offset != c.offset || got.AtLeast != c.atLeast {
			t.Errorf("from %v on: %+v, want %d, at least: %v", c.at, got, c.offset, c.atLeast)
		}
	}
}

// Retention as a real broker tells it: a topic's own, none, and the policies.
func TestRealRetentionOfTopics(t *testing.T) {
	t.Parallel()
	s := testenv.Kafka(t)
	inf := math.Inf(1)
	week := 7 * 86_400.0
	tests := []struct {
		name                    string
		configs                 map[string]string
		seconds, bytes, atWorst float64
	}{
		{"default", nil, week, inf, 2 * week},
		{"own", map[string]string{"retention.ms": "3600000", "retention.bytes": "123456", "segment.ms": "600000"}, 3600, 123456, 4200},
		{"unlimited", map[string]string{"retention.ms": "-1"}, inf, inf, inf},
		{"compact", map[string]string{"cleanup.policy": "compact"}, inf, inf, inf},
		{"both", map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "7200000"}, 7200, inf, inf},
	}
	var topics []string
	for _, tt := range tests {
		_, _, topic := real(t, s, tt.name, 1, tt.configs)
		topics = append(topics, topic)
	}
	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Topic = ".*-" + strings.ToLower(t.Name()) })
	b.client.Watch(nil, topics)
	p := b.until("all topics", func(p page) bool { return p.count("kafka_topic_retention_seconds{") == len(tests) })
	for i, tt := range tests {
		p.want(t, fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", topics[i]), tt.seconds)
		p.want(t, fmt.Sprintf("kafka_topic_retention_bytes{topic=%q}", topics[i]), tt.bytes)
		p.want(t, fmt.Sprintf("kafka_topic_worst_case_retention_seconds{topic=%q}", topics[i]), tt.atWorst)
	}
}

// byDefault checks what a topic without its own retention gets: of
// the broker's three keys ms wins over minutes over hours. Three tests that
// need a broker of their own each set one more of them.
func byDefault(t *testing.T, s *kafkaserver.Server, b *bundle, seconds float64) {
	t.Helper()
	_, _, none := real(t, s, "none", 1, nil)
	_, _, own := real(t, s, "own", 1, map[string]string{"retention.ms": "42000"})
	series := func(topic string) string { return fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", topic) }
	b.client.Watch(nil, []string{none, own})
	p := b.until("both topics", func(p page) bool { return has(series(none))(p) && has(series(own))(p) })
	p.want(t, series(none), seconds)
	p.want(t, series(own), 42)
}

// A record outlives retention.ms while its segment has not rolled, and what the
// three metrics say then.
func TestRealRecordOutlivesItsRetention(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{
		"log.retention.hours": "5", "log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}})
	b := watch(t, s.Brokers())
	byDefault(t, s, b, 18_000)
	configs := map[string]string{"retention.ms": "60000", "segment.ms": "7200000"}
	client, _, kept := real(t, s, "kept", 1, configs)
	_, _, deleted := real(t, s, "deleted", 1, configs)
	hourOld := b.clock.now().Add(-time.Hour)
	// The same old record in both; only in one a young one shares its segment.
	err := client.ProduceSync(context.Background(),
		&kgo.Record{Topic: kept, Timestamp: hourOld}, &kgo.Record{Topic: kept, Timestamp: time.Now()}).FirstErr()
	if err != nil {
		t.Fatal(err)
	}
	produce(t, client, deleted, 0, 1, hourOld)
	b.client.Watch(nil, []string{kept, deleted})
	of := func(metric, topic string) string { return fmt.Sprintf("%s{partition=\"0\",topic=%q}", metric, topic) }
	p := b.until("the broker deletes what has expired", func(p page) bool {
		return p[of("kafka_topic_partition_log_start_offset", deleted)] == 1
	})
	p.absent(t, of("kafka_topic_oldest_record_age_seconds", deleted))
	p.want(t, of("kafka_topic_partition_log_start_offset", kept), 0)
	p.near(t, of("kafka_topic_oldest_record_age_seconds", kept), 3600, 5)
	p.want(t, fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", kept), 60)
	p.want(t, fmt.Sprintf("kafka_topic_worst_case_retention_seconds{topic=%q}", kept), 7260)
}

// Where the policy compacts and deletes, the cleaner merges old segments with
// newer ones, and records outlive retention.ms + segment.ms for as long as
// events come: no worst case is claimed, and the oldest record tells.
func TestRealCleanerMergesSegments(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{
		"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200", "log.cleaner.backoff.ms": "100"}})
	client, _, topic := real(t, s, "merged", 1, map[string]string{"cleanup.policy": "compact,delete",
		"retention.ms": "5000", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "100"})
	b := watch(t, s.Brokers())
	b.clock.follow()
	b.client.Watch(nil, []string{topic})
	oldest, n := fmt.Sprintf("kafka_topic_oldest_record_age_seconds{partition=\"0\",topic=%q}", topic), 0
	p := b.until("a record outlives retention.ms + segment.ms by half", func(p page) bool {
		n++ // each record has a key of its own: compaction removes none
		r := &kgo.Record{Topic: topic, Key: fmt.Append(nil, n), Value: []byte("v")}
		if err := client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		return p[oldest] > 1.5*(5+0.5)
	})
	p.want(t, fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", topic), 5)
	p.want(t, fmt.Sprintf("kafka_topic_worst_case_retention_seconds{topic=%q}", topic), math.Inf(1))
}

// A topic that is limited by its size alone has no retention in seconds: how
// many bytes it keeps is told, and the oldest record that is really there.
func TestRealTopicLimitedBySize(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{
		"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}})
	const mebibyte = 1 << 20
	client, _, topic := real(t, s, "sized", 1, map[string]string{"retention.ms": "-1",
		"retention.bytes": strconv.Itoa(mebibyte), "segment.bytes": strconv.Itoa(mebibyte), "file.delete.delay.ms": "100"})
	b := watch(t, s.Brokers())
	begin := b.clock.now().Add(-8 * time.Hour)
	value := make([]byte, 600<<10) // more than half a segment, however it is compressed
	_, _ = rand.Read(value)
	for i := range 8 { // an hour apart
		r := &kgo.Record{Topic: topic, Value: value, Timestamp: begin.Add(time.Duration(i) * time.Hour)}
		if err := client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	b.client.Watch(nil, []string{topic})
	of := func(metric string) string { return fmt.Sprintf("%s{partition=\"0\",topic=%q}", metric, topic) }
	p := b.until("the broker deletes what is too much", func(p page) bool { return p[of("kafka_topic_partition_log_start_offset")] > 4 })
	p.near(t, of("kafka_topic_oldest_record_age_seconds"), 3600*(8-p[of("kafka_topic_partition_log_start_offset")]), 5)
	p.want(t, fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", topic), math.Inf(1))
	p.want(t, fmt.Sprintf("kafka_topic_retention_bytes{topic=%q}", topic), mebibyte)
}

// Asking for a deleted topic does not make it again on a broker whose
// auto-creation is on, as is the default.
func TestRealDeletedTopicStaysGone(t *testing.T) {
	t.Parallel()
	s := testenv.Kafka(t)
	_, admin, topic := real(t, s, "gone", 1, nil)
	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Topic = topic })
	b.client.Watch(nil, []string{topic})
	retention := fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", topic)
	b.until("the topic", has(retention))
	if _, err := admin.DeleteTopic(context.Background(), topic); err != nil {
		t.Fatal(err)
	}
	b.until("the topic's series gone", func(p page) bool { return !has(retention)(p) })
	for range 5 {
		b.poll()
	}
	topics, err := kadm.NewClient(producer(t, s.Internal())).ListTopics(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if topics.Has(topic) {
		t.Error("the deleted topic is there again")
	}
}

// The broker is stopped, crashes, and comes back, each time with the series.
func TestRealBrokerStopsAndStarts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{
		"log.retention.ms": "7000000", "log.retention.minutes": "3", "log.retention.hours": "5"}})
	b := watch(t, s.Brokers())
	byDefault(t, s, b, 7000)
	client, admin, topic := real(t, s, "payments", 1, nil)
	produce(t, client, topic, 0, 10, time.Now())
	commitAt(t, admin, "ledger", topic, 0, 4)
	series := lag("consumer_lag", "ledger", topic, 0)
	b.until("lag", has(series)).want(t, series, 6)
	for _, end := range []func() error{func() error { return s.Stop(ctx) }, s.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		b.next()
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("a poll of a broker that is gone took %v", took)
		}
		p := b.scrape()
		p.want(t, `oncewatch_collector_success{collector="groups"}`, 0)
		p.want(t, series, 6) // of the last snapshot
		for range 3 {
			b.next()
		}
		b.scrape().absent(t, series)
		if err := s.StartAgain(ctx); err != nil {
			t.Fatal(err)
		}
		b.until("lag again", has(series)).want(t, series, 6)
	}
}

// assign makes topics of one partition with these replicas.
func assign(t *testing.T, s *kafkaserver.Server, topics map[string][]int32) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	for topic, replicas := range topics {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, -1, -1
		ra := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		ra.Replicas = replicas
		rt.ReplicaAssignment = append(rt.ReplicaAssignment, ra)
		req.Topics = append(req.Topics, rt)
	}
	if _, err := req.RequestWith(context.Background(), producer(t, s.Internal())); err != nil {
		t.Fatal(err)
	}
}

// What needs three brokers, one after the other on the same cluster: the last
// kills one of them.
func TestRealThreeBrokers(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Brokers: 3, Config: map[string]string{
		"log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "300"}})
	for _, one := range []struct {
		name string
		test func(*testing.T, *kafkaserver.Server)
	}{
		{"RetentionAfterAnAbortedTransaction", retentionAfterAnAbortedTransaction},
		{"RetentionWhereBrokersDiffer", retentionWhereBrokersDiffer},
		{"OffsetsPartitionsWithoutALeader", offsetsPartitionsWithoutALeader},
	} {
		t.Run(one.name, func(t *testing.T) { one.test(t, s) })
	}
}

// A topic without a retention of its own is kept for as long as the longest
// default among the brokers that hold it, wherever the exporter asks; a change
// at run time and a move to another broker are seen.
func retentionWhereBrokersDiffer(t *testing.T, s *kafkaserver.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin := kadm.NewClient(producer(t, s.Internal()))
	long := "2592000000" // 30 days
	resp, err := admin.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "log.retention.ms", Value: &long}}, 3)
	if err == nil {
		for _, r := range resp {
			err = r.Err
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	assign(t, s, map[string][]int32{"on-1-2": {1, 2}, "on-2-3": {2, 3}, "moves": {1}})
	b := watch(t, s.Brokers())
	b.client.Watch(nil, []string{"on-1-2", "on-2-3", "moves"})
	of := func(topic string) string { return fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", topic) }
	p := b.until("the topics", func(p page) bool { return has(of("on-1-2"))(p) && has(of("on-2-3"))(p) && has(of("moves"))(p) })
	p.want(t, of("on-1-2"), 7*86_400)
	p.want(t, of("on-2-3"), 30*86_400)
	p.want(t, of("moves"), 7*86_400)
	var to kadm.AlterPartitionAssignmentsReq
	to.Assign("moves", 0, []int32{3})
	if _, err := admin.AlterPartitionAssignments(ctx, to); err != nil {
		t.Fatal(err)
	}
	b.until("the topic's new broker, without waiting for the interval", func(p page) bool { return p[of("moves")] == 30*86_400 })
	alter(t, admin, "on-2-3", "retention.ms", "60000")
	b.clock.add(5 * time.Minute)
	b.until("the changed setting", func(p page) bool { return p[of("on-2-3")] == 60 })
	if got := b.topics.Latest().(*kafka.Topics).OffsetsRetention; !got.OK || got.Value != 7*24*time.Hour {
		t.Errorf("offsets.retention.minutes: %+v, want 7 days", got)
	}
}
