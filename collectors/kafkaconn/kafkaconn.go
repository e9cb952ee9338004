// Package kafkaconn connects to Kafka: the flags that say how, TLS, and
// authentication. Both programs connect through it, so that a flag has one
// meaning. Whatever it reads from a file it reads again for every connection.
package kafkaconn

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config is the flags for reaching the brokers, embedded with prefix "kafka.".
type Config struct {
	Brokers []string `default:"localhost:9092" placeholder:"HOST:PORT" help:"Addresses of one or more brokers to start from."`
	TLS     TLS      `embed:"" prefix:"tls."`
	SASL    SASL     `embed:"" prefix:"sasl."`
}

// Validate says what in the configuration cannot work, by the flag's name. It
// reads the files that the configuration names and connects to nothing.
func (c Config) Validate() error {
	if len(c.Brokers) == 0 {
		return fmt.Errorf("--kafka.brokers: no address given: want HOST:PORT of at least one broker")
	}
	for _, b := range c.Brokers {
		host, port, err := net.SplitHostPort(b)
		if err != nil || host == "" {
			return fmt.Errorf("--kafka.brokers: %q is no address: want HOST:PORT, such as kafka-1:9092", b)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("--kafka.brokers: %q has no usable port: want a number from 1 to 65535", b)
		}
	}
	if err := c.TLS.validate(); err != nil {
		return err
	}
	return c.SASL.validate()
}

// Options of a client with this configuration. dialTimeout bounds a
// connection's setup; now is the clock that tells when a token is to be
// fetched again, nil for time.Now.
func (c Config) Options(dialTimeout time.Duration, now func() time.Time) ([]kgo.Opt, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	opts := []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.DialTimeout(dialTimeout)}
	if c.TLS.Enabled {
		opts = append(opts, kgo.Dialer(c.TLS.dialer(dialTimeout)))
	}
	mechanism, rejected := c.SASL.mechanism(c.Brokers, now)
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	if rejected != nil {
		opts = append(opts, kgo.WithHooks(onRejection(rejected)))
	}
	return opts, nil
}

// onRejection is called when a broker does not accept what the mechanism
// offered.
type onRejection func()

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (f onRejection) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, kerr.SaslAuthenticationFailed) {
		f()
	}
}

var _ kgo.HookBrokerConnect = onRejection(nil)
