package matrix

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/demo"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// others are the stacks to compare with: their rules lie in compare/.
var others = []string{"runbook", "glued"}

// scenario is one thing that happens to a stack.
type scenario struct {
	name string
	// story says what happens; empty: the demo's fault of the name does.
	story string
	// prepare changes the stack before it starts; act happens while it runs,
	// instead of a fault of the demo.
	prepare func(*demo.Stack)
	act     func(context.Context, *demo.Stack) error
	// apache: on Apache Kafka, in a process of its own.
	apache bool
	// second: there is a second consumer, from the act on.
	second bool
	// alone: on a PostgreSQL server of its own.
	alone bool

	// want is the alert that must fire, within so many minutes of the rules
	// and so long in real time, where something takes that. Empty: nothing may.
	want   string
	within float64
	real   time.Duration
	// also are further alerts that are right to fire: true in themselves.
	also []string
	// unseen says why nothing can be seen although something is wrong; heals,
	// why nothing needs to be: nothing else may fire.
	unseen, heals string

	// before is how long all goes well first, after how long is watched after
	// the alert, or after what happened when nothing may fire; in minutes of
	// the rules.
	before, after float64

	try int // which attempt this is
}

// healthy: all is well.
func (sc scenario) healthy() bool { return sc.want == "" && sc.unseen == "" && sc.heals == "" }

// result of a scenario.
type result struct {
	scenario
	// took is the time from the fault to the alert.
	took time.Duration
	// fired are the names of what fired and was wanted or right, pages of what
	// was neither; each once, in order.
	fired, pages []string
	// of the other stacks, by name: what began to fire after the fault, and
	// what fired although all was well.
	seen, false map[string][]string
}

const (
	defaultBefore = 30
	defaultAfter  = 20
	watchHealthy  = 60
	rate          = 50 // events a second
	// reaction is what a stack takes to start a part again, to poll and to be
	// scraped.
	reaction = 5 * time.Second
)

// limit is when the wanted alert must have fired, after the fault.
func (sc scenario) limit() time.Duration { return minutes(sc.within) + sc.real + reaction }

// pace sets a stack's own times to the clock of the rules where they matter:
// polls, sessions, retries.
func pace(s *demo.Stack) {
	s.History = demo.History{
		Markers: 9 * 24 * time.Hour, Topic: 7 * 24 * time.Hour, Every: time.Minute,
		// What the pruner meets is as dense as what is written.
		EdgeEvery: time.Second / rate, Edge: 4 * time.Minute,
	}
	s.Producer.Rate = rate
	s.Producer.Client = append(slices.Clone(s.Producer.Client), kgo.ProducerLinger(100*time.Millisecond))
	s.Consumer.Stream.Redeliver = 0.001
	// A few fetches a second, not one for each record: several stacks share
	// this machine.
	s.Consumer.Stream.Consumer = []kgo.Opt{kgo.FetchMinBytes(1 << 20), kgo.FetchMaxWait(250 * time.Millisecond)}
	s.Consumer.Stream.SessionTimeout = 5 * time.Second
	s.Consumer.Stream.RebalanceTimeout = 10 * time.Second
	s.Consumer.Stream.HeartbeatInterval = 500 * time.Millisecond
	s.Consumer.Stream.PauseFor = time.Second
	s.Consumer.Stream.GapGrace = 2 * time.Second
	s.Consumer.Stream.ShutdownTimeout = 5 * time.Second
	s.Consumer.Inbox.IdleTimeout = time.Second
	s.Consumer.Inbox.StatementTimeout = 2 * time.Second
	s.Consumer.Inbox.TransactionTimeout = 4 * time.Second
	s.Consumer.Inbox.BackoffMax = 500 * time.Millisecond
	s.Outbox.Timeout, s.Outbox.Lease, s.Outbox.Poll, s.Outbox.BackoffMax = time.Second, 1500*time.Millisecond, 250*time.Millisecond, 10*time.Second
	s.Pruner.Every = minutes(2)
	s.Exporter.Poll.Interval, s.Exporter.Poll.Timeout = minutes(1), minutes(2)
	s.Exporter.Kafka.TopicConfigInterval = minutes(5)
}

// bench is what all scenarios share.
type bench struct {
	prometheus *prometheus
	postgres   *pgserver.Server
	inhibit    []inhibition
	stalls     *stalls
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{
		prometheus: startPrometheus(t),
		postgres:   testenv.PostgresServer(t, pgserver.Options{Config: map[string]string{"shared_buffers": "256MB"}}),
		inhibit:    inhibitions(t),
		stalls:     watchStalls(t),
	}
}

// play runs a scenario and judges it. It plays again where the machine stalled
// so long that the fast clock of the rules made a fault of it.
func (b *bench) play(t *testing.T, sc scenario) *result {
	t.Helper()
	const attempts = 3
	var stall time.Duration
	for i := range attempts {
		sc.try = i + 1
		var r *result
		if r, stall = b.once(t, sc); stall < tolerable() {
			expect(t, r)
			return r
		}
		t.Logf("attempt %d of %d says nothing: the machine stalled for %s", i+1, attempts, stall.Round(100*time.Millisecond))
	}
	testenv.Missing(t, "a machine that does not stall", fmt.Errorf("it stalled for %s, which the rules take for %s", stall, stall*time.Duration(*speed)))
	return nil
}

// once plays a scenario once. It also returns the longest stall of the
// machine meanwhile.
func (b *bench) once(t *testing.T, sc scenario) (*result, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	pg := b.postgres
	if sc.alone {
		pg = testenv.PostgresServer(t, pgserver.Options{})
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() && os.Getenv("MATRIX_LOG") != "" {
			text, _ := os.ReadFile(log.Name())
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			t.Logf("the stack's log:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
		_ = log.Close()
	})
	var broker demo.Broker
	if sc.apache {
		broker = testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{"group.min.session.timeout.ms": "500"}})
	} else {
		own, err := demo.StartBroker()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(own.Close)
		broker = own
	}
	cluster := fmt.Sprintf("%s-%d", sc.name, sc.try)
	database := strings.ReplaceAll(cluster, "-", "_")
	s, err := demo.New(pg, broker, database, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	fault := sc.fault(t)
	pace(s)
	fault.Prepare(s)
	if sc.prepare != nil {
		sc.prepare(s)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if !sc.alone {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := pg.DropDatabase(ctx, database); err != nil {
				t.Error(err)
			}
		}
	}()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	address := func(url string) string { return strings.TrimPrefix(url, "http://") }
	targets := map[string][]string{
		"oncewatch": {address(s.ExporterURL())},
		"consumer":  {address(s.ConsumerURL(0))},
		"glued":     {startGlued(t, s)},
	}
	if err := b.prometheus.watch(cluster, targets); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.prometheus.forget(cluster); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	wait(ctx, minutes(cmp.Or(sc.before, defaultBefore)))

	injected := time.Now()
	act := fault.Inject
	if sc.act != nil {
		act = sc.act
	}
	if err := act(ctx, s); err != nil {
		t.Fatalf("%s: %v", sc.name, err)
	}
	if sc.second {
		targets["consumer"] = append(targets["consumer"], address(s.ConsumerURL(1)))
		if err := b.prometheus.watch(cluster, targets); err != nil {
			t.Fatal(err)
		}
	}
	if sc.want == "" {
		wait(ctx, minutes(cmp.Or(sc.after, watchHealthy)))
	} else {
		b.until(ctx, t, cluster, sc.want, injected.Add(sc.limit()))
		wait(ctx, minutes(cmp.Or(sc.after, defaultAfter)))
	}
	select {
	case err := <-s.Failed():
		t.Errorf("a part of the stack failed: %v", err)
	default:
	}
	ended := time.Now()
	fired, err := b.prometheus.history(ctx, cluster, began, ended)
	if err != nil {
		t.Fatal(err)
	}
	gap, err := b.prometheus.gap(ctx, cluster, began.Add(minutes(3)), ended)
	if err != nil {
		t.Fatal(err)
	}
	return b.judge(t, sc, injected, fired), max(gap, b.stalls.worst(began, ended))
}

// fault is the demo's fault of the scenario's name, if there is one.
func (sc scenario) fault(t *testing.T) demo.Fault {
	t.Helper()
	for _, f := range demo.Faults() {
		if f.Name == sc.name {
			return f
		}
	}
	if sc.act == nil {
		t.Fatalf("the demo knows no fault %s", sc.name)
	}
	return demo.Fault{}
}

// until waits for the wanted alert.
func (b *bench) until(ctx context.Context, t *testing.T, cluster, want string, deadline time.Time) {
	t.Helper()
	for time.Now().Before(deadline) && ctx.Err() == nil {
		firing, err := b.prometheus.alerts(ctx, cluster)
		if err != nil {
			t.Fatal(err)
		}
		if firing[want] {
			return
		}
		wait(ctx, 500*time.Millisecond)
	}
}

// judge holds what fired against what should have.
func (b *bench) judge(t *testing.T, sc scenario, injected time.Time, fired []firing) *result {
	t.Helper()
	r := &result{scenario: sc, took: -1, seen: map[string][]string{}, false: map[string][]string{}}
	for _, f := range fired {
		t.Logf("%-8s %+5.0fs – %+5.0fs %s %v", f.stack(), f.From.Sub(injected).Seconds(), f.To.Sub(injected).Seconds(), f.name(), f.Labels)
		early := f.From.Before(injected)
		if other := f.stack(); other != "" {
			if early || sc.healthy() {
				r.false[other] = include(r.false[other], f.name())
			}
			if !early && !slices.Contains(r.false[other], f.name()) {
				r.seen[other] = include(r.seen[other], f.name())
			}
			continue
		}
		switch {
		case f.name() == sc.want && !early:
			if r.took < 0 {
				r.took = f.From.Sub(injected)
			}
			r.fired = include(r.fired, f.name())
		case slices.Contains(sc.also, f.name()) && !early:
			r.fired = include(r.fired, f.name())
		case f.severity() == "info":
		case b.notified(f, fired):
			r.pages = include(r.pages, f.name())
		}
	}
	return r
}

// expect fails the test where the result is not what was expected.
func expect(t *testing.T, r *result) {
	t.Helper()
	if r.want != "" && (r.took < 0 || r.took > r.limit()) {
		t.Errorf("%s: %s did not fire within %s", r.name, r.want, r.limit())
	}
	if len(r.pages) > 0 {
		t.Errorf("%s: false pages: %s", r.name, strings.Join(r.pages, ", "))
	}
}

func include(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// wait lets the stack run; what it does meanwhile is what is watched.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
