package kafka_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/kafka"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// versions are tried by a command of their own, since each starts a broker:
//
//	go test ./collectors/kafka -run 'TestReal(Versions|Tiered|Share)' -kafka.versions=3.0.2,3.4.1,3.9.1,4.3.1
var versions = flag.String("kafka.versions", "", "versions of Apache Kafka for TestRealVersions, separated by commas; empty: none")

// What the exporter reads, from each version of the broker: lag and its age,
// bounds and the last stable offset, loss and what only transactions wrote,
// retention, members and subscriptions.
func TestRealVersions(t *testing.T) {
	if *versions == "" {
		t.Skip("needs -kafka.versions")
	}
	for _, version := range strings.Split(*versions, ",") {
		t.Run(version, func(t *testing.T) {
			s := testenv.KafkaServer(t, kafkaserver.Options{Version: version})
			client, admin, topic := real(t, s, "payments", 1, map[string]string{"retention.ms": "3600000", "segment.ms": "600000"})
			produce(t, client, topic, 0, 10, time.Now().Add(-10*time.Minute))
			commitAt(t, admin, "behind", topic, 0, 4)
			commitAt(t, admin, "markers", topic, 0, 10)
			member := consume(t, s.Brokers(), "member", topic)
			defer member.Close()
			tx := transactional(t, s.Brokers(), "tx")
			produce(t, tx, topic, 0, 1, time.Now())
			end(t, tx, kgo.TryAbort)
			stableAt(t, admin, topic, 12)
			b := watch(t, s.Brokers())
			b.client.Watch([]string{"gone"}, nil)
			of := func(metric string) string { return fmt.Sprintf("%s{partition=\"0\",topic=%q}", metric, topic) }
			p := b.until("every group", func(p page) bool {
				_, subscribes := p[subscribed("member", topic)]
				return subscribes && p[lag("consumer_lag", "markers", topic, 0)] == 0 && has(lag("consumer_lag", "behind", topic, 0))(p)
			})
			p.want(t, lag("consumer_lag", "behind", topic, 0), 8)
			p.near(t, lag("consumer_lag_seconds", "behind", topic, 0), 600, 30)
			p.want(t, lag("consumer_lag_seconds", "markers", topic, 0), 0)
			p.want(t, lag("consumer_committed_offset", "member", topic, 0), 10)
			p.want(t, subscribed("member", topic), 1)
			p.want(t, `consumer_group_members{consumer_group="member"}`, 1)
			p.want(t, of("kafka_topic_partition_log_end_offset"), 12)
			p.want(t, of("kafka_topic_partition_last_stable_offset"), 12)
			p.near(t, of("kafka_topic_oldest_record_age_seconds"), 600, 30)
			p.want(t, fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", topic), 3600)
			p.want(t, fmt.Sprintf("kafka_topic_worst_case_retention_seconds{topic=%q}", topic), 4200)
			deleteBefore(t, admin, topic, 0, 12)
			p = b.until("records expired", func(p page) bool { return p[of("kafka_topic_partition_log_start_offset")] == 12 })
			p.want(t, lag("consumer_records_expired", "behind", topic, 0), 8-2)
			p.want(t, lag("consumer_records_expired", "markers", topic, 0), 0)
			if g := b.groups.Latest().(*kafka.Groups).Group("gone"); g == nil || !g.Readable || g.State != "Dead" {
				t.Errorf("a group that is not there: %+v", g)
			}
			if got := b.topics.Latest().(*kafka.Topics).OffsetsRetention; !got.OK || got.Value != 7*24*time.Hour {
				t.Errorf("offsets.retention.minutes: %+v, want 7 days", got)
			}
			for _, collector := range []string{"topics", "groups"} {
				if n := p.count(fmt.Sprintf("oncewatch_errors_total{collector=%q", collector)); n != 0 {
					t.Errorf("%s has errors: %v %v", collector, b.topics.Status().Problems, b.groups.Status().Problems)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if _, err := admin.DeleteTopic(ctx, topic); err != nil {
				t.Error(err)
			}
		})
	}
}
