package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/kafka"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// A topic with tiered storage whose records lie in the remote tier but for the
// active segment's: the oldest record and the age of what waits are those of the
// remote part.
func TestRealTieredStorage(t *testing.T) {
	t.Parallel()
	if *versions == "" {
		t.Skip("needs -kafka.versions: its broker takes a minute")
	}
	s := testenv.KafkaServer(t, kafkaserver.Options{Tiered: true, Config: map[string]string{
		"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}})
	client, admin, topic := real(t, s, "payments", 1, map[string]string{
		"remote.storage.enable": "true", "retention.ms": "864000000", "local.retention.ms": "1000", "segment.ms": "1000"})
	begin := time.Now().Add(-6 * time.Hour).Truncate(time.Millisecond)
	for i := range 6 { // a segment each
		if err := client.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte("v"), Timestamp: begin.Add(time.Duration(i) * time.Hour)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []int64{0, 2} {
		commitAt(t, admin, fmt.Sprintf("at-%d-%s", at, topic), topic, 0, at)
	}
	testenv.Eventually(t, "the local log has lost its head to the remote tier", func() bool {
		local, err := admin.ListLocalLogStartOffsets(context.Background(), topic)
		if err != nil {
			return false
		}
		o, ok := local.Lookup(topic, 0)
		return ok && o.Err == nil && o.Offset >= 5
	})
	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Group = ".*-" + topic })
	oldest := fmt.Sprintf("kafka_topic_oldest_record_age_seconds{partition=\"0\",topic=%q}", topic)
	p := b.until("ages", func(p page) bool {
		return has(oldest)(p) && has(lag("consumer_lag_seconds", "at-0-"+topic, topic, 0))(p) && has(lag("consumer_lag_seconds", "at-2-"+topic, topic, 0))(p)
	})
	age := b.clock.now().Sub(begin).Seconds()
	p.near(t, oldest, age, age/20)
	p.near(t, lag("consumer_lag_seconds", "at-0-"+topic, topic, 0), age, age/20)
	p.near(t, lag("consumer_lag_seconds", "at-2-"+topic, topic, 0), age-7200, (age-7200)/20)
	p.want(t, lag("consumer_lag", "at-2-"+topic, topic, 0), 4)
	p.want(t, lag("consumer_records_expired", "at-0-"+topic, topic, 0), 0)
}
