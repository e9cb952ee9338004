package collectors

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"oncewatch/alerts"
	"oncewatch/collectors/config"
	"oncewatch/collectors/consumer"
	"oncewatch/collectors/httpclient"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
)

// Config is everything that is watched, and how often.
type Config struct {
	Postgres postgres.Config `embed:"" prefix:"postgres." group:"PostgreSQL"`
	Kafka    kafka.Config    `embed:"" prefix:"kafka." group:"Kafka"`
	Consumer consumer.Config `embed:"" prefix:"consumer."`
	Poll     Poll            `embed:"" prefix:"poll."`
	State    State           `embed:"" prefix:"state."`

	Prometheus consumer.Prometheus `embed:"" prefix:"prometheus."`

	Thresholds `embed:""`

	// Stores replaces Postgres where the file lists several.
	Stores []postgres.Config `kong:"-"`
}

// Poll is the rhythm of the collectors.
type Poll struct {
	Interval time.Duration `default:"15s" help:"Time between two polls of a collector."`
	Timeout  time.Duration `default:"10s" help:"Time one poll may take."`
}

// Thresholds are what alert rules, dashboards, page and audit judge by: one set
// for all of them.
type Thresholds struct {
	Set    map[string]string `placeholder:"KEY=VALUE" help:"Thresholds and windows of rules, dashboards, page and check; several separated by semicolons. \"oncewatch rules --list\" names them."`
	Values string            `placeholder:"FILE" type:"path" help:"YAML file of thresholds; --set wins over it."`
}

// Load reads them.
func (t Thresholds) Load() (alerts.Thresholds, error) { return alerts.Load(t.Values, t.Set) }

// State is what survives a restart.
type State struct {
	Path string `placeholder:"DIR" help:"Folder for what cannot be read again, so that a restart forgets nothing: which offsets had markers and lost them. Default: memory only."`
}

// Validate names every key that cannot be used, and its remedy. It connects to
// nothing.
func (c Config) Validate() error {
	var errs []error
	if c.Poll.Interval < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("--poll.interval: %s is too short: want 100ms or more", c.Poll.Interval))
	}
	if c.Poll.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("--poll.timeout: %s is no time: want for example 10s", c.Poll.Timeout))
	}
	_, err := c.Thresholds.Load()
	errs = append(errs, c.Kafka.Validate(), c.Consumer.Validate(), c.Prometheus.Validate(), err)
	for i, s := range c.stores() {
		if err := s.Validate(); err != nil {
			if len(c.Stores) > 0 {
				err = fmt.Errorf("store %d (%s): %w", i+1, cmp.Or(s.Database, s.Table), err)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Targets are the sources that would be asked, without a secret. Two stores
// that are named alike are an error here; the exporter refuses the second one
// only, and the others go on.
func (c Config) Targets() ([]string, error) {
	targets := []string{"Kafka at " + strings.Join(c.Kafka.Brokers, ",")}
	named := map[string]int{}
	for i, s := range c.stores() {
		target, err := s.Target()
		if err != nil {
			return nil, err
		}
		name := s.Database
		if pc, err := s.Pool(); err == nil {
			name = cmp.Or(name, pc.ConnConfig.Database, pc.ConnConfig.User) // the default of the label
		}
		if other, ok := named[name]; ok {
			return nil, fmt.Errorf("stores %d and %d: the label database is %q of both and must tell them apart: set database in one of them", other+1, i+1, name)
		}
		named[name] = i
		targets = append(targets, target)
	}
	if c.Prometheus.URL != "" {
		return append(targets, "the consumers' metrics in the Prometheus at "+httpclient.Redacted(c.Prometheus.URL)), nil
	}
	if n := len(c.Consumer.MetricsURL); n > 0 { // an address may hold a password
		targets = append(targets, fmt.Sprintf("the consumers' metrics, by --consumer.metrics-url (%d)", n))
	}
	return targets, nil
}

// LoadStores reads the stores of the configuration file, if it lists any.
func (c *Config) LoadStores(file *config.File) error {
	if file == nil {
		return nil
	}
	for i, entry := range file.List("stores") {
		var one struct {
			postgres.Config `embed:""`
		}
		if err := entry.Decode(&one); err != nil {
			return fmt.Errorf("store %d: %w", i+1, err)
		}
		c.Stores = append(c.Stores, one.Config)
	}
	if len(c.Stores) == 0 {
		return nil
	}
	var untouched struct {
		Postgres postgres.Config `embed:"" prefix:"postgres."`
	}
	if err := config.Defaults(&untouched); err != nil {
		return err
	}
	if !reflect.ValueOf(c.Postgres).IsZero() && !reflect.DeepEqual(c.Postgres, untouched.Postgres) {
		return errors.New("stores and postgres.* are both set, by flag, environment or file: the stores replace it, so put its settings into an entry of stores")
	}
	return nil
}

func (c Config) stores() []postgres.Config {
	if len(c.Stores) > 0 {
		return c.Stores
	}
	return []postgres.Config{c.Postgres}
}
