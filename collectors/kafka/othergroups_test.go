package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// Share and streams groups of a real broker, with a member each, stand beside a
// classic and a consumer group: they are left out without an error, also where
// there are markers of their names, and cost the others nothing.
func TestRealShareAndStreamsGroups(t *testing.T) {
	t.Parallel()
	if *versions == "" {
		t.Skip("needs -kafka.versions: it starts a broker and Kafka Streams")
	}
	s := testenv.KafkaServer(t, kafkaserver.Options{})
	client, admin, topic := real(t, s, "payments", 1, nil)
	produce(t, client, topic, 0, 10, time.Now())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	classic, consumer, share, streams := "classic-"+topic, "consumer-"+topic, "share-"+topic, "streams-"+topic
	commitAt(t, admin, classic, topic, 0, 4)
	member := consume(t, s.Brokers(), consumer, topic, kgo.ServerSideBalancer())
	defer member.Close()

	testenv.Eventually(t, "the share group has a member", func() bool {
		req := kmsg.NewPtrShareGroupHeartbeatRequest()
		req.GroupID, req.MemberID, req.SubscribedTopicNames = share, "b25jZXdhdGNoLXRlc3RzMA", []string{topic}
		resp, err := req.RequestWith(ctx, client)
		return err == nil && resp.ErrorCode == 0
	})
	wordCount(ctx, t, s, admin, streams)
	testenv.Eventually(t, "the broker lists all four", func() bool {
		listed, err := admin.ListGroups(ctx)
		return err == nil && listed[share].GroupType == "share" && listed[streams].GroupType == "streams" && listed[streams].State == "Stable" &&
			listed[consumer].GroupType == "consumer" && listed[classic].GroupType == "classic"
	})

	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Group = ".*-" + topic })
	b.client.Watch([]string{share, streams}, []string{topic})
	p := b.until("the other two groups", func(p page) bool {
		return has(lag("consumer_lag", classic, topic, 0))(p) && p[fmt.Sprintf("consumer_group_members{consumer_group=%q}", consumer)] == 1
	})
	p.want(t, lag("consumer_lag", classic, topic, 0), 6)
	p.want(t, lag("consumer_lag", consumer, topic, 0), 0)
	for range 5 { // also when members are described again
		b.poll()
	}
	for _, g := range b.groups.Latest().(*kafka.Groups).Groups {
		if g.Name != classic && g.Name != consumer {
			t.Errorf("group %s, state %s, is watched", g.Name, g.State)
		}
	}
	if problems := append(b.groups.Status().Problems, b.topics.Status().Problems...); len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

// wordCount runs Kafka Streams' own example as a group of the streams protocol.
func wordCount(ctx context.Context, t *testing.T, s *kafkaserver.Server, admin *kadm.Client, group string) {
	t.Helper()
	created, err := admin.CreateTopics(ctx, 1, 1, nil, "streams-plaintext-input", "streams-wordcount-output")
	if err = errors.Join(err, created.Error()); err != nil {
		t.Fatal(err)
	}
	command, err := kafkaserver.StreamsExample(ctx, "org.apache.kafka.streams.examples.wordcount.WordCountDemo")
	if err != nil {
		testenv.Missing(t, "Kafka Streams", err)
	}
	dir := t.TempDir()
	settings := filepath.Join(dir, "streams.properties")
	text := fmt.Sprintf("application.id=%s\nbootstrap.servers=%s\ngroup.protocol=streams\nstate.dir=%s\n", group, s.Brokers()[0], dir)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command[0], append(command[1:], settings)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Kafka Streams: %s", log.Bytes())
		}
	})
}
