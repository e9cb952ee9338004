package kafkaserver_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func admin(t *testing.T, brokers []string) *kadm.Client {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RetryTimeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return kadm.NewClient(c)
}

func timeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestDataSurvivesStopAndKillOnTheSamePorts(t *testing.T) {
	ctx := timeout(t)
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{"log.retention.ms": "123456"}})
	brokers := s.Brokers()
	if _, err := admin(t, brokers).CreateTopic(ctx, 3, 1, nil, "kept"); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func() error{func() error { return s.Stop(ctx) }, s.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := s.StartAgain(ctx); err != nil {
			t.Fatal(err)
		}
		if got := s.Brokers(); got[0] != brokers[0] {
			t.Errorf("started again on %v, was on %v", got, brokers)
		}
		topics, err := admin(t, s.Brokers()).ListTopics(ctx, "kept")
		if err != nil {
			t.Fatal(err)
		}
		if got := len(topics["kept"].Partitions); got != 3 {
			t.Errorf("topic has %d partitions after the restart, want 3", got)
		}
	}
	configs, err := admin(t, brokers).DescribeTopicConfigs(ctx, "kept")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs[0].Configs {
		if c.Key == "retention.ms" && c.MaybeValue() != "123456" {
			t.Errorf("retention.ms = %s, want the broker's 123456", c.MaybeValue())
		}
	}
}

func TestSeveralBrokersAndCloseLeavesNothing(t *testing.T) {
	ctx := timeout(t)
	s, err := kafkaserver.Start(ctx, kafkaserver.Options{Brokers: 2})
	if err != nil {
		testenv.Missing(t, "Apache Kafka", err)
	}
	meta, err := admin(t, s.Brokers()).BrokerMetadata(ctx)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	if len(meta.Brokers) != 2 {
		t.Errorf("%d brokers, want 2", len(meta.Brokers))
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", s.Dir, err)
	}
}

func TestMissingProgramsAreNamed(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	t.Setenv("JAVA_HOME", "")
	if _, err := kafkaserver.Start(timeout(t), kafkaserver.Options{}); !errors.Is(err, kafkaserver.ErrNoJava) {
		t.Errorf("without Java: %v", err)
	}
	if err := os.Symlink("/bin/true", empty+"/java"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", empty)
	t.Setenv("HOME", empty)
	if _, err := kafkaserver.Start(timeout(t), kafkaserver.Options{}); !errors.Is(err, kafkaserver.ErrNoMaven) {
		t.Errorf("without Maven: %v", err)
	}
}

func TestABrokerThatRefusesItsConfigSaysWhy(t *testing.T) {
	_, err := kafkaserver.Start(timeout(t), kafkaserver.Options{Config: map[string]string{"num.partitions": "none"}})
	if errors.Is(err, kafkaserver.ErrNoJava) || errors.Is(err, kafkaserver.ErrNoMaven) {
		testenv.Missing(t, "Apache Kafka", err)
	}
	if err == nil || !strings.Contains(err.Error(), "num.partitions") {
		t.Errorf("got %v, want an error that names num.partitions", err)
	}
}
