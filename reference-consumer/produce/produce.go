// Package produce writes sample payments, and on request everything a careless
// producer does wrong.
package produce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/telemetry"
)

// Config of Run. Shares are between 0 and 1.
type Config struct {
	Client []kgo.Opt
	Topic  string
	// Partitions to create the topic with if it does not exist; 0: it must.
	Partitions int32
	// TopicConfig of a created topic, such as retention.ms.
	TopicConfig map[string]*string

	// Count of events made, with those left out and without duplicates; 0: until ctx ends.
	Count int64
	// Rate in events per second; 0: as fast as the broker takes them.
	Rate float64
	// Duplicates is the share of events published a second time, word for word.
	Duplicates float64
	// ReuseIDs is the share of events that get an earlier event's id.
	ReuseIDs float64
	// Gaps is the share of events that are numbered and then not published.
	Gaps float64
	// Poison is the share of events that cannot be applied.
	Poison float64
	// Accounts to pay into; default 1,000.
	Accounts int

	Tracer *telemetry.Tracer // nil: no traces
	// Seed of the random choices; 0: a random one.
	Seed uint64
	Now  func() time.Time
	Log  *slog.Logger
}

// Stats of what was published; Gaps of what was left out.
type Stats struct {
	Events, Duplicates, ReusedIDs, Gaps, Poison int64
}

func (cfg *Config) defaults() error {
	if cfg.Topic == "" {
		return errors.New("no topic given: set --topic")
	}
	for _, share := range []struct {
		flag  string
		value float64
	}{{"duplicates", cfg.Duplicates}, {"reuse-ids", cfg.ReuseIDs}, {"gaps", cfg.Gaps}, {"poison", cfg.Poison}} {
		if !(share.value >= 0 && share.value <= 1) {
			return fmt.Errorf("--%s=%v: a share lies between 0 and 1", share.flag, share.value)
		}
	}
	if !(cfg.Rate >= 0) || cfg.Count < 0 {
		return errors.New("--rate and --count must not be negative")
	}
	if cfg.Accounts <= 0 {
		cfg.Accounts = 1000
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Run publishes until Count is reached or ctx ends, and waits until the broker
// has everything.
func Run(ctx context.Context, cfg Config) (Stats, error) {
	if err := cfg.defaults(); err != nil {
		return Stats{}, err
	}
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DefaultProduceTopic(cfg.Topic),
		kgo.ProducerLinger(2 * time.Millisecond),
	}, cfg.Client...)...)
	if err != nil {
		return Stats{}, fmt.Errorf("create the Kafka client: %w", err)
	}
	defer client.Close()
	n, err := partitions(ctx, client, cfg)
	if err != nil {
		return Stats{}, err
	}
	s := &session{cfg: cfg, client: client, random: rand.New(rand.NewPCG(cfg.Seed, 7)), ids: NewIDs(cfg.Now),
		name: "producer-" + uuid.NewString(), sequences: make([]int64, n)}
	cfg.Log.Info("producing", "topic", cfg.Topic, "partitions", n, "producer", s.name, "seed", cfg.Seed)
	err = s.run(ctx)
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if flushErr := client.Flush(flush); flushErr != nil {
		err = errors.Join(err, fmt.Errorf("wait for the broker: %w", flushErr))
	}
	return s.stats, errors.Join(err, s.failure())
}

// partitions is the topic's number of partitions.
func partitions(ctx context.Context, client *kgo.Client, cfg Config) (int, error) {
	admin := kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if cfg.Partitions > 0 {
		resp, err := admin.CreateTopic(ctx, cfg.Partitions, -1, cfg.TopicConfig, cfg.Topic)
		if err != nil && resp.Err == nil {
			return 0, fmt.Errorf("create topic %s: %w", cfg.Topic, err)
		}
	}
	for {
		topics, err := admin.ListTopics(ctx, cfg.Topic)
		if err != nil {
			return 0, fmt.Errorf("read topic %s: %w", cfg.Topic, err)
		}
		t := topics[cfg.Topic]
		if t.Err == nil {
			return len(t.Partitions), nil
		}
		if cfg.Partitions <= 0 || !errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
			return 0, fmt.Errorf("topic %s: %w (create it, or set --partitions)", cfg.Topic, t.Err)
		}
		// A broker may not know yet what the controller has created.
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("topic %s: %w", cfg.Topic, t.Err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// session is one run; ids and sequences are unique within it.
type session struct {
	cfg       Config
	client    *kgo.Client
	random    *rand.Rand
	ids       *IDs
	name      string
	sequences []int64
	recent    []string // ids to reuse
	made      int64    // events, with those left out
	stats     Stats

	mu     sync.Mutex
	err    error
	failed atomic.Bool
}

// tick is how often a rate is caught up with.
const tick = 5 * time.Millisecond

func (s *session) run(ctx context.Context) error {
	var due <-chan time.Time
	if s.cfg.Rate > 0 {
		t := time.NewTicker(tick)
		defer t.Stop()
		due = t.C
	}
	start := time.Now()
	for ctx.Err() == nil && !s.failed.Load() {
		if s.cfg.Count > 0 && s.made >= s.cfg.Count {
			return nil
		}
		if due != nil && float64(s.made) >= s.cfg.Rate*time.Since(start).Seconds() {
			select {
			case <-due:
			case <-ctx.Done():
			}
			continue
		}
		if err := s.publish(ctx); err != nil {
			return err
		}
	}
	return nil
}

// publish makes the next event and sends it, with the faults asked for.
func (s *session) publish(ctx context.Context) error {
	id, err := s.ids.Next()
	if err != nil {
		return err
	}
	s.made++
	reused := false
	if s.cfg.ReuseIDs > 0 {
		if reused = s.happens(s.cfg.ReuseIDs) && len(s.recent) > 0; reused {
			id = s.recent[s.random.IntN(len(s.recent))]
		} else if s.recent = append(s.recent, id); len(s.recent) > 1000 {
			s.recent = s.recent[500:]
		}
	}
	account := s.random.IntN(s.cfg.Accounts)
	name := "acct_" + strconv.Itoa(account)
	// One account, one partition: its payments stay in order and partitions do
	// not wait for each other's rows.
	partition := account % len(s.sequences)
	s.sequences[partition]++
	if s.happens(s.cfg.Gaps) {
		s.stats.Gaps++
		return nil
	}
	s.stats.Events++
	if reused {
		s.stats.ReusedIDs++
	}
	r := &kgo.Record{
		Topic: s.cfg.Topic, Partition: int32(partition), Key: []byte(name), Value: s.payload(name), Timestamp: s.cfg.Now(),
		Headers: []kgo.RecordHeader{
			{Key: header.EventID, Value: []byte(id)},
			{Key: header.Producer, Value: []byte(s.name)},
			{Key: header.Sequence, Value: strconv.AppendInt(nil, s.sequences[partition], 10)},
		},
	}
	s.send(ctx, r)
	if s.happens(s.cfg.Duplicates) {
		again := *r
		again.Headers = slices.Clone(r.Headers[:3]) // without a trace context
		s.stats.Duplicates++
		s.send(ctx, &again)
	}
	return nil
}

// payload of an event; poison is no payment at all, or one of nothing.
func (s *session) payload(account string) []byte {
	p := payments.Payment{Account: account, Amount: 1 + s.random.Int64N(100_000), PaymentID: "pay_" + strconv.FormatInt(s.made, 10)}
	if s.happens(s.cfg.Poison) {
		s.stats.Poison++
		if s.random.IntN(2) == 0 {
			return []byte(`{"account":`)
		}
		p.Amount = 0
	}
	b, _ := json.Marshal(p) // a string and a number: cannot fail
	return b
}

func (s *session) happens(share float64) bool { return share > 0 && s.random.Float64() < share }

func (s *session) send(ctx context.Context, r *kgo.Record) {
	end := s.cfg.Tracer.Send(ctx, r)
	s.client.Produce(context.WithoutCancel(ctx), r, func(r *kgo.Record, err error) {
		end(err)
		if err == nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = fmt.Errorf("publish to %s/%d: %w", r.Topic, r.Partition, err)
		}
		s.failed.Store(true)
	})
}

func (s *session) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
