package kafka

import (
	"fmt"
	"time"

	"oncewatch/collectors/kafkaconn"
)

// The granularities of per-partition metrics.
const (
	ByPartition = "partition"
	ByTopic     = "topic"
)

// Config is the flags for Kafka, embedded with prefix "kafka.".
type Config struct {
	kafkaconn.Config `embed:""`

	Group        string `placeholder:"REGEX" help:"Consumer groups to watch, of the broker and of the marker tables: a fully anchored RE2 expression. Default: all groups that have markers or commits."`
	GroupExclude string `placeholder:"REGEX" help:"Consumer groups to leave out, of those --kafka.group lets in; fully anchored."`
	Topic        string `placeholder:"REGEX" help:"Topics to watch: a fully anchored RE2 expression. Default: all topics the groups consume."`
	TopicExclude string `placeholder:"REGEX" help:"Topics to leave out, of those --kafka.topic lets in; fully anchored."`

	Granularity string `default:"partition" enum:"partition,topic" help:"Labels of lag and offsets: ${enum}. With topic there is no partition label; lag and expired records are summed, ages are the worst."`
	MaxGroups   int    `default:"1000" help:"Watch at most this many groups, those with markers first, then by name; how many are left out is exported."`

	TopicConfigInterval time.Duration `default:"5m" help:"How often topic configurations are read."`
}

// Watched says which consumer groups the expressions let in.
func (c Config) Watched() (func(group string) bool, error) {
	f, err := newFilter("--kafka.group", c.Group, c.GroupExclude)
	return f.matches, err
}

// Validate says what in the configuration cannot work, by the flag's name. It
// reads the files that the configuration names.
func (c Config) Validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	if _, err := newFilter("--kafka.group", c.Group, c.GroupExclude); err != nil {
		return err
	}
	if _, err := newFilter("--kafka.topic", c.Topic, c.TopicExclude); err != nil {
		return err
	}
	if c.Granularity != ByPartition && c.Granularity != ByTopic {
		return fmt.Errorf("--kafka.granularity: %q is not known: want partition or topic", c.Granularity)
	}
	if c.MaxGroups < 1 {
		return fmt.Errorf("--kafka.max-groups: %d leaves nothing to watch: want 1 or more", c.MaxGroups)
	}
	if c.TopicConfigInterval < time.Second {
		return fmt.Errorf("--kafka.topic-config-interval: %v is too short: want 1s or more", c.TopicConfigInterval)
	}
	return nil
}
