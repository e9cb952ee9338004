package collectors_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors"
	"oncewatch/collectors/config"
	"oncewatch/deploy/testenv"
)

// site is one broker and one table with markers and commits of ten groups, and
// counts the requests to the broker.
type site struct {
	config   collectors.Config
	dsn      string
	requests atomic.Int64
}

func newSite(t *testing.T) *site {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	s := &site{dsn: testenv.Postgres(t)}
	markerTable(t, s.dsn, "processed_events")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 20 {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: "payments", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `DELETE FROM processed_events`); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		group := fmt.Sprintf("g%d", i)
		var offsets kadm.Offsets
		offsets.AddOffset("payments", 0, 4, -1)
		if err := kadm.NewClient(client).CommitAllOffsets(ctx, group, offsets); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, `INSERT INTO processed_events SELECT $1, o::text, 'payments', 0, o FROM generate_series(0, 3) o`, group); err != nil {
			t.Fatal(err)
		}
	}
	broker.ControlKey(-1, func(r kmsg.Request) (kmsg.Response, error, bool) {
		broker.KeepControl()
		if r.Key() != int16(kmsg.ApiVersions) {
			s.requests.Add(1)
		}
		return nil, nil, false
	})
	if err := config.Defaults(&s.config); err != nil {
		t.Fatal(err)
	}
	s.config.Kafka.Brokers, s.config.Postgres.DSN = broker.ListenAddrs(), config.Secret(s.dsn)
	return s
}

// connections is how many the exporters have to the database.
func (s *site) connections(t *testing.T) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'oncewatch'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// series are those of a page that tell of groups and topics, without their
// values where those are ages: they grow.
func series(page string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "oncewatch_") && (strings.Contains(line, "consumer_group=") || strings.Contains(line, "topic=")) {
			if strings.Contains(line, "_seconds") {
				line = line[:strings.LastIndex(line, " ")]
			}
			out[strings.TrimSpace(line)] = true
		}
	}
	return out
}

// Two exporters of one table and one cluster say the same, each with a state of
// its own: one costs two connections and its own requests, two cost twice that
// and no more. Neither disturbs the other.
func TestTwoReplicas(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.config.State.Path = t.TempDir()
	first, e := scrape(t, s.config)
	alone, connections := s.requests.Load(), s.connections(t)
	if connections < 1 || connections > 2 {
		t.Errorf("one exporter has %d connections, want at most 2", connections)
	}
	s.config.State.Path = t.TempDir()
	second, other := scrape(t, s.config)
	if n := s.connections(t); n != 2*connections {
		t.Errorf("two exporters have %d connections, one has %d", n, connections)
	}
	if n := s.requests.Load(); n > 2*alone {
		t.Errorf("two exporters ask the broker %d times, one asks %d times", n, alone)
	}
	t.Logf("one exporter: %d connections, %d requests to the broker at its first look", connections, alone)
	if a, b := series(first), series(second); !maps.Equal(a, b) || len(a) < 100 {
		t.Errorf("two replicas differ in %d and %d series", len(a), len(b))
	}
	has(t, first, `processed_events_row_count{consumer_group="g3",database="`)
	// What it costs to go on beside another one.
	before := s.requests.Load()
	e.Once(t.Context())
	one := s.requests.Load() - before
	other.Once(t.Context())
	if two := s.requests.Load() - before; two > 2*one {
		t.Errorf("a poll of one takes %d requests, of both %d", one, two)
	}
}

// Processes that share the groups of one table and cluster by --kafka.group and
// --kafka.group-exclude show each group once, and together what one shows.
func TestShardsByGroup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	all, _ := scrape(t, s.config)
	s.config.Kafka.Group = ".*[0-4]"
	low, _ := scrape(t, s.config)
	s.config.Kafka.Group, s.config.Kafka.GroupExclude = "", ".*[0-4]"
	high, _ := scrape(t, s.config)
	group := regexp.MustCompile(`consumer_group="(g[0-9])"`)
	groups := func(page string) []string {
		found := map[string]bool{}
		for line := range series(page) {
			if m := group.FindStringSubmatch(line); m != nil {
				found[m[1]] = true
			}
		}
		return slices.Sorted(maps.Keys(found))
	}
	if a, b := groups(low), groups(high); !slices.Equal(a, []string{"g0", "g1", "g2", "g3", "g4"}) || !slices.Equal(b, []string{"g5", "g6", "g7", "g8", "g9"}) {
		t.Errorf("the shards show %v and %v", a, b)
	}
	union := series(low)
	maps.Copy(union, series(high))
	for line := range series(all) {
		if !union[line] {
			t.Errorf("no shard shows %s", line)
		}
	}
	for line := range union {
		if !series(all)[line] {
			t.Errorf("only a shard shows %s", line)
		}
	}
}
