package testenv

import (
	"context"
	"sync"
	"testing"
	"time"

	"oncewatch/deploy/kafkaserver"
)

// sharedKafka starts the package's broker for the first test that asks.
var sharedKafka = sync.OnceValues(func() (*kafkaserver.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s, err := kafkaserver.Start(ctx, kafkaserver.Options{})
	if err == nil {
		OnExit(s.Close)
	}
	return s, err
})

// Kafka returns an Apache Kafka broker that the package's tests share: use
// names of topics and groups of your own. The package's TestMain must be Main,
// which ends it.
func Kafka(t testing.TB) *kafkaserver.Server {
	t.Helper()
	s, err := sharedKafka()
	if err != nil {
		Missing(t, "Apache Kafka", err)
	}
	return s
}

// KafkaServer returns a cluster of the test's own, to stop, kill or configure.
// It is closed with the test.
func KafkaServer(t testing.TB, o kafkaserver.Options) *kafkaserver.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s, err := kafkaserver.Start(ctx, o)
	if err != nil {
		Missing(t, "Apache Kafka", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
