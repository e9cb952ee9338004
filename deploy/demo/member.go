package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/stream"
)

// member is a place for one consumer of the group: a process that is started,
// stopped and killed, and keeps its address.
type member struct {
	s       *Stack
	first   bool
	address string
	// crashes is how many more times it is killed between its two commits.
	crashes atomic.Int64
	// unscraped keeps its metrics from being read.
	unscraped atomic.Bool

	part *part
}

func newMember(ctx context.Context, s *Stack, address string) (*member, error) {
	l, err := listen(ctx, address)
	if err != nil {
		return nil, err
	}
	address = l.Addr().String()
	// Nothing is served while no process runs: the port is given back, and
	// taken again by the next one.
	if err := l.Close(); err != nil {
		return nil, err
	}
	return &member{s: s, first: s.members[0] == nil, address: address}, nil
}

// StartConsumer starts consumer i by s.Consumer, after the one that runs
// there, and returns once it has been assigned its partitions. One that is
// killed or ends by itself is started again.
func (s *Stack) StartConsumer(ctx context.Context, i int) error {
	m := s.members[i]
	m.part.stop()
	cfg := s.Consumer
	assigned := make(chan struct{})
	var once sync.Once
	given := cfg.Stream.Assigned
	cfg.Stream.Assigned = func(p map[string][]int32) {
		once.Do(func() { close(assigned) })
		if given != nil {
			given(p)
		}
	}
	m.part = s.run(fmt.Sprintf("consumer %d", i+1), func(ctx context.Context) error {
		for {
			err := m.process(ctx, cfg)
			var refused *stream.RefusedError
			if ctx.Err() != nil {
				return nil
			}
			if errors.As(err, &refused) {
				return err
			}
			s.Log.Warn("the consumer ended, and is started again", "error", err)
			if !sleep(ctx, s.RestartAfter) {
				return nil
			}
		}
	})
	select {
	case <-assigned:
		return nil
	case <-m.part.done:
		return fmt.Errorf("consumer %d ended", i+1)
	case <-ctx.Done():
		return fmt.Errorf("consumer %d: %w", i+1, ctx.Err())
	}
}

// StopConsumer stops consumer i in order.
func (s *Stack) StopConsumer(i int) {
	m := s.members[i]
	m.part.stop()
	m.part = nil
}

// HideConsumer keeps the metrics of consumer i from being scraped.
func (s *Stack) HideConsumer(i int) { s.members[i].unscraped.Store(true) }

// process is one life of a consumer, with a registry of its own.
func (m *member) process(ctx context.Context, cfg payments.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newCable()
	killed := make(chan struct{})
	var once sync.Once
	kill := func() { once.Do(func() { c.cut(); close(killed); cancel() }) }

	reg := prometheus.NewRegistry()
	cfg.Registerer = reg
	cfg.Client = append([]kgo.Opt{kgo.Dialer(c.dial)}, m.s.client...)
	configure := cfg.Configure
	cfg.Configure = func(pc *pgxpool.Config) {
		pc.ConnConfig.DialFunc = c.dial
		if configure != nil {
			configure(pc)
		}
	}
	// By chance: lives as long as a scrape interval would show every scrape the
	// same moment of theirs.
	doomed := time.Now().Add(crashEvery + rand.N(crashEvery))
	cfg.Stream.Failpoint = func(name string) {
		if name == betweenCommits && m.crashes.Load() > 0 && time.Now().After(doomed) && m.crashes.Add(-1) >= 0 {
			kill()
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", m.address)
	if err != nil {
		return fmt.Errorf("serve the consumer's metrics: %w", err)
	}
	var gatherers prometheus.Gatherers
	if m.first {
		gatherers = append(gatherers, m.s.side)
	}
	gatherers = append(gatherers, reg)
	served := make(chan error, 1)
	go func() {
		served <- serveMetrics(ctx, l, prometheus.GathererFunc(func() (families []*dto.MetricFamily, err error) {
			if m.unscraped.Load() {
				return nil, errHidden
			}
			return gatherers.Gather()
		}))
	}()
	ended := make(chan error, 1)
	m.s.parts.Go(func() { ended <- payments.Run(ctx, cfg) })
	select {
	case err = <-ended:
	case <-killed:
		// What is left of it tries to say goodbye over connections that are
		// cut; nobody waits for a dead process.
		err = errKilled
	}
	cancel()
	<-served
	return err
}

// betweenCommits is the consumer's failpoint between the database's commit and
// the offset's; crashEvery is how long one of a crash loop lives at least, twice
// that at most.
const (
	betweenCommits = "before_offset_commit"
	crashEvery     = time.Second
)

var (
	errKilled = errors.New("killed")
	errHidden = errors.New("not to be scraped")
)

// openPool opens a pool behind a cable.
func openPool(ctx context.Context, dsn string, c *cable) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	pc.ConnConfig.DialFunc = c.dial
	return pgxpool.NewWithConfig(ctx, pc)
}
