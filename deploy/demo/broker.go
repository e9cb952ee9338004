package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Broker is the Kafka cluster of a stack.
type Broker interface {
	// Brokers are its addresses.
	Brokers() []string
	// Stop takes it away with its data, StartAgain gives it back.
	Stop(context.Context) error
	StartAgain(context.Context) error
}

// inProcess is a broker in this process.
type inProcess struct {
	*kfake.Cluster
	c *cable
}

// StartBroker starts a broker in this process. Close ends it.
func StartBroker() (*inProcess, error) { //nolint:revive // what it is does not matter to a caller
	c := newCable()
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.GroupMinSessionTimeout(100*time.Millisecond),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			l, err := net.Listen(network, address)
			if err != nil {
				return nil, err
			}
			return gate{l, c}, nil
		}))
	if err != nil {
		return nil, fmt.Errorf("start a broker in this process: %w", err)
	}
	return &inProcess{cluster, c}, nil
}

// Brokers implements Broker.
func (b *inProcess) Brokers() []string { return b.ListenAddrs() }

// Stop implements Broker.
func (b *inProcess) Stop(context.Context) error { b.c.cut(); return nil }

// StartAgain implements Broker.
func (b *inProcess) StartAgain(context.Context) error { b.c.mend(); return nil }

// given is a cluster somebody else runs.
type given []string

func (g given) Brokers() []string { return g }

var errGiven = errors.New("the cluster of --kafka.brokers is not the demo's to stop: run this fault without the flag")

func (given) Stop(context.Context) error       { return errGiven }
func (given) StartAgain(context.Context) error { return errGiven }

// topicConfig is that of a seven-day topic whose segments roll soon enough for
// eight days of markers: a record stays up to retention.ms + segment.ms.
func topicConfig() map[string]*string {
	return map[string]*string{"retention.ms": kadm.StringPtr("604800000"), "segment.ms": kadm.StringPtr("14400000")}
}

// admin is a client for what an operator does.
func (s *Stack) admin() (*kadm.Client, func(), error) {
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.RetryTimeout(10 * time.Second)}, s.client...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("--kafka.brokers: %w", err)
	}
	return kadm.NewClient(client), client.Close, nil
}

var errTopicThere = errors.New("it is there already, and the demo would delete it at its end: use another cluster")

// CreateTopic makes the topic.
func (s *Stack) CreateTopic(ctx context.Context) error {
	admin, done, err := s.admin()
	if err != nil {
		return err
	}
	defer done()
	created, err := admin.CreateTopic(ctx, partitionCount, -1, topicConfig(), Topic)
	if err == nil {
		err = created.Err
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		err = errTopicThere
	}
	if err != nil {
		return fmt.Errorf("--kafka.brokers: create topic %s: %w", Topic, err)
	}
	s.created = true
	return nil
}

// DeleteTopic deletes the topic.
func (s *Stack) DeleteTopic(ctx context.Context) error {
	admin, done, err := s.admin()
	if err != nil {
		return err
	}
	defer done()
	_, err = admin.DeleteTopics(ctx, Topic)
	return err
}

// removeTopic leaves a given cluster as it was found.
func (s *Stack) removeTopic() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	admin, done, err := s.admin()
	if err != nil {
		return err
	}
	defer done()
	_, err1 := admin.DeleteTopics(ctx, Topic)
	_, err2 := admin.DeleteGroups(ctx, Group)
	return errors.Join(err1, err2)
}

// SetTopicConfig changes one key of the topic.
func (s *Stack) SetTopicConfig(ctx context.Context, key, value string) error {
	admin, done, err := s.admin()
	if err != nil {
		return err
	}
	defer done()
	changed, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: key, Value: &value}}, Topic)
	for _, c := range changed {
		err = errors.Join(err, c.Err)
	}
	if err != nil {
		return fmt.Errorf("set %s of topic %s: %w", key, Topic, err)
	}
	return nil
}

// CommitTo commits the group's offsets at the log's start or end, as
// kafka-consumer-groups --reset-offsets does. The group must have no members.
func (s *Stack) CommitTo(ctx context.Context, end bool) error {
	admin, done, err := s.admin()
	if err != nil {
		return err
	}
	defer done()
	list := admin.ListStartOffsets
	if end {
		list = admin.ListEndOffsets
	}
	offsets, err := list(ctx, Topic)
	if err == nil {
		err = offsets.Error()
	}
	if err == nil {
		err = admin.CommitAllOffsets(ctx, Group, offsets.Offsets())
	}
	if err != nil {
		return fmt.Errorf("reset the group's offsets: %w", err)
	}
	return nil
}

// DeleteRecords deletes everything the broker has, as a retention that is too
// short for the consumer does.
func (s *Stack) DeleteRecords(ctx context.Context) error {
	admin, done, err := s.admin()
	if err != nil {
		return err
	}
	defer done()
	ends, err := admin.ListEndOffsets(ctx, Topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("read the log's ends: %w", err)
	}
	deleted, err := admin.DeleteRecords(ctx, ends.Offsets())
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("delete records: %w", err)
	}
	return nil
}
