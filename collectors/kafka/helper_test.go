package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/kafkaconn"
	"oncewatch/collectors/poll"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// clock is set by the test.
type clock struct {
	mu   sync.Mutex
	t    time.Time
	real bool
}

func newClock() *clock { return &clock{t: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real {
		return time.Now()
	}
	return c.t
}

// follow makes it the real clock, for what a real broker times.
func (c *clock) follow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.real = true
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// bundle is an exporter's Kafka side against a cluster, polled by hand.
type bundle struct {
	t      testing.TB
	clock  *clock
	client *kafka.Client
	topics *poll.Poller
	groups *poll.Poller
	reg    *prometheus.Registry
	log    *strings.Builder
}

const interval = 15 * time.Second

func watch(t testing.TB, brokers []string, change ...func(*kafka.Config)) *bundle {
	t.Helper()
	config := kafka.Config{Config: kafkaconn.Config{Brokers: brokers}, Granularity: kafka.ByPartition, MaxGroups: 1000, TopicConfigInterval: 5 * time.Minute}
	for _, f := range change {
		f(&config)
	}
	b := &bundle{t: t, clock: newClock(), reg: prometheus.NewPedanticRegistry(), log: &strings.Builder{}}
	log := slog.New(slog.NewTextHandler(b.log, nil))
	client, err := kafka.New(config, log, b.clock.now)
	if err != nil {
		t.Fatal(err)
	}
	b.client = client
	t.Cleanup(client.Close)
	options := func(name string) poll.Options {
		return poll.Options{ID: poll.ID{Subject: poll.Subject(name)}, Interval: interval, Timeout: 10 * time.Second, Now: b.clock.now, Log: log}
	}
	b.topics = poll.New(client.Topics(), options("topics"))
	b.groups = poll.New(client.Groups(), options("groups"))
	b.reg.MustRegister(poll.Set{b.topics, b.groups})
	return b
}

// poll polls both sources once, as the same interval would.
func (b *bundle) poll() {
	b.t.Helper()
	_ = b.groups.Once(context.Background())
	_ = b.topics.Once(context.Background())
}

// mustPoll polls and fails the test where a source does.
func (b *bundle) mustPoll() {
	b.t.Helper()
	b.poll()
	for _, p := range []*poll.Poller{b.topics, b.groups} {
		if s := p.Status(); s.Err != nil {
			b.t.Fatalf("%s: %v", s.ID.String(), s.Err)
		}
	}
}

// next lets an interval pass and polls.
func (b *bundle) next() {
	b.t.Helper()
	b.clock.add(interval)
	b.poll()
}

// page is a scrape.
type page testenv.Page

func (b *bundle) scrape() page {
	b.t.Helper()
	return page(testenv.Gather(b.t, b.reg))
}

// lag is the notation of a per-partition metric of a group.
func lag(metric, group, topic string, partition int) string {
	return fmt.Sprintf("%s{consumer_group=%q,partition=\"%d\",topic=%q}", metric, group, partition, topic)
}

func (p page) want(t testing.TB, series string, want float64) {
	t.Helper()
	got, ok := p[series]
	if !ok {
		t.Errorf("%s is absent, want %v", series, want)
	} else if got != want {
		t.Errorf("%s = %v, want %v", series, got, want)
	}
}

func (p page) near(t testing.TB, series string, want, tolerance float64) {
	t.Helper()
	got, ok := p[series]
	if !ok {
		t.Errorf("%s is absent, want about %v", series, want)
	} else if math.Abs(got-want) > tolerance {
		t.Errorf("%s = %v, want %v ± %v", series, got, want, tolerance)
	}
}

func (p page) absent(t testing.TB, series string) {
	t.Helper()
	if got, ok := p[series]; ok {
		t.Errorf("%s = %v, want no series", series, got)
	}
}

// count is how many series begin so.
func (p page) count(prefix string) int {
	n := 0
	for s := range p {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

// fake is an in-process cluster with an admin and a producer.
type fake struct {
	*kfake.Cluster
	t     testing.TB
	admin *kadm.Client
	kgo   *kgo.Client
}

func cluster(t testing.TB, options ...kfake.Opt) *fake {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	f := &fake{Cluster: c, t: t}
	f.kgo = producer(t, c.ListenAddrs())
	f.admin = kadm.NewClient(f.kgo)
	return f
}

// producer is a client for making topics, records and commits.
func producer(t testing.TB, brokers []string) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// produce writes n records of the given age.
func produce(t testing.TB, c *kgo.Client, topic string, partition int32, n int, at time.Time) {
	t.Helper()
	for range n {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte("v"), Timestamp: at}
		if err := c.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// commitAt commits a group's next offset on one partition.
func commitAt(t testing.TB, admin *kadm.Client, group, topic string, partition int32, offset int64) {
	t.Helper()
	var o kadm.Offsets
	o.AddOffset(topic, partition, offset, -1)
	resp, err := admin.CommitOffsets(context.Background(), group, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Error(); err != nil {
		t.Fatal(err)
	}
}

func (f *fake) produce(topic string, partition int32, n int, at time.Time) {
	f.t.Helper()
	produce(f.t, f.kgo, topic, partition, n, at)
}

func (f *fake) commit(group, topic string, partition int32, offset int64) {
	f.t.Helper()
	commitAt(f.t, f.admin, group, topic, partition, offset)
}

// counting counts the requests that reach the cluster from oncewatch, by key.
type counting struct {
	mu sync.Mutex
	n  map[kmsg.Key]int
}

func (f *fake) counting() *counting {
	c := &counting{n: map[kmsg.Key]int{}}
	f.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n[kmsg.Key(req.Key())]++
		return nil, nil, false
	})
	return c
}

// take returns what was counted and starts anew. Handshakes of connections are
// not a poll's requests, nor are those of consumers that a test has running.
func (c *counting) take() (n map[kmsg.Key]int, sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, c.n = c.n, map[kmsg.Key]int{}
	for _, other := range []kmsg.Key{kmsg.ApiVersions, kmsg.Fetch, kmsg.Heartbeat, kmsg.ConsumerGroupHeartbeat} {
		delete(n, other)
	}
	for _, v := range n {
		sum += v
	}
	return n, sum
}

// load gives each partition eight records, and each group commits on all
// partitions of one topic, some of them at the end.
func load(t testing.TB, c *fake, topics []string, partitions, groups int) {
	t.Helper()
	ctx := context.Background()
	var records []*kgo.Record
	for i, topic := range topics {
		for p := range int32(partitions) {
			for range 8 {
				records = append(records, &kgo.Record{Topic: topic, Partition: p, Value: []byte("v"), Timestamp: time.Now().Add(-time.Duration(i+1) * time.Hour)})
			}
		}
	}
	if err := c.kgo.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for g := range groups {
		var o kadm.Offsets
		for p := range int32(partitions) {
			o.AddOffset(topics[g%len(topics)], p, int64(g%9), -1)
		}
		resp, err := c.admin.CommitOffsets(ctx, fmt.Sprintf("group-%04d", g), o)
		if err == nil {
			err = resp.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func names(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("topic-%03d", i))
	}
	return out
}
