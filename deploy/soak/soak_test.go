package soak

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var (
	soakFor = flag.Duration("soak", time.Second, "how long TestSoak makes trouble; one round at least")
	topics  = flag.Int("soak.topics", 10, "topics that TestSoak's groups have commits on")
	only    = flag.String("soak.only", "", "expression for the faults of TestSoak; empty: all")
	groups  = flag.Int("soak.groups", 10, "consumer groups of TestSoak")
)

const tables = `
CREATE TABLE processed_events (consumer_group text, event_id text, topic text, partition int, "offset" bigint, txid xid8 DEFAULT pg_current_xact_id(),
	processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer_group, event_id));
CREATE INDEX ON processed_events (processed_at);
CREATE TABLE ledger_entries (event_id text PRIMARY KEY, txid xid8 DEFAULT pg_current_xact_id(), created_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON ledger_entries (created_at);
INSERT INTO processed_events SELECT 'group-0', 'e' || i, 'topic-0', 0, i, pg_current_xact_id(), now() - i * interval '10 ms' FROM generate_series(1, 50000) i;`

// stage is the exporter's program and what it watches.
type stage struct {
	*testing.T
	server   *pgserver.Server
	database *line // between the exporter and PostgreSQL
	network  *line // in front of the broker
	broker   *kfake.Cluster
	program  *exec.Cmd
	log      *testenv.Log
	url      string
	client   *http.Client
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{T: t, database: newLine(), network: newLine(), log: &testenv.Log{}, client: &http.Client{Timeout: 30 * time.Second}}
	s.server = testenv.PostgresServer(t, pgserver.Options{})
	rights, err := os.ReadFile(filepath.Join(testenv.Root(), "deploy/privileges/postgres.sql"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.server.CreateDatabase(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	// The role's limit would hide what is asserted.
	for _, sql := range []string{tables, string(rights), "ALTER ROLE oncewatch CONNECTION LIMIT -1"} {
		if err := s.try(sql); err != nil {
			t.Fatal(err)
		}
	}
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	go forward(s.database.listener(in), fmt.Sprintf("127.0.0.1:%d", s.server.Port))

	names := make([]string, *topics)
	for i := range names {
		names[i] = fmt.Sprintf("topic-%d", i)
	}
	s.broker, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, names...), kfake.ListenFn(func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, err
		}
		return s.network.listener(l), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.broker.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.broker.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	offsets := kadm.Offsets{}
	for _, topic := range names {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}, &kgo.Record{Topic: topic}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		offsets.AddOffset(topic, 0, 1, -1)
	}
	for i := range *groups {
		if err := kadm.NewClient(client).CommitAllOffsets(t.Context(), fmt.Sprintf("group-%d", i), offsets); err != nil {
			t.Fatal(err)
		}
	}
	s.start(fmt.Sprintf("postgres://oncewatch@%s/app?sslmode=disable", in.Addr()))
	return s
}

func (s *stage) start(dsn string) {
	s.Helper()
	s.program = exec.Command(testenv.Build(s, "."), "serve", "--web.listen-address=127.0.0.1:0", "--poll.interval=500ms", "--poll.timeout=3s",
		"--postgres.effect.table=ledger_entries", "--postgres.effect.consumer-group=group-0", "--kafka.brokers="+s.broker.ListenAddrs()[0])
	s.program.Env = append(os.Environ(), "ONCEWATCH_POSTGRES_DSN="+dsn)
	s.program.Stderr = s.log
	if err := s.program.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = s.program.Process.Signal(syscall.SIGTERM)
		if err := s.program.Wait(); err != nil {
			s.Errorf("the exporter ended with %v:\n%.2000s", err, s.log)
		}
	})
	address := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
	s.until("the listener", func() bool {
		m := address.FindStringSubmatch(s.log.String())
		if m != nil {
			s.url = "http://" + m[1]
		}
		return m != nil
	})
}

// until waits for what other processes bring about.
func (s *stage) until(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(90 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			text := s.log.String()
			s.Fatalf("waited in vain for %s; the log ends:\n%s", what, text[max(0, len(text)-3000):])
		}
	}
}

func (s *stage) try(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.server.DSN("app"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// scrape returns the exporter's page.
func (s *stage) scrape() (string, error) {
	resp, err := s.client.Get(s.url + "/metrics")
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.100s", resp.Status, body)
	}
	return string(body), err
}

// whole waits until every collector reads again and its series are there.
func (s *stage) whole() {
	s.Helper()
	s.until("every collector to read again", func() bool {
		page, err := s.scrape()
		if err != nil {
			s.Fatal(err) // the exporter itself must always answer
		}
		return strings.Count(page, "oncewatch_collector_success{") == 6 && !regexp.MustCompile(`(?m)^oncewatch_collector_success\{.*\} 0$`).MatchString(page) &&
			strings.Contains(page, "\nprocessed_events_row_count{") && strings.Contains(page, "\nconsumer_lag{")
	})
}

// faults are what befalls the sources, one after the other.
var faults = []struct {
	name string
	do   func(ctx context.Context, s *stage)
}{
	{"the database restarts", func(ctx context.Context, s *stage) { s.must(s.server.Restart(ctx, pgserver.Fast)) }},
	{"the database crashes", func(ctx context.Context, s *stage) { s.must(s.server.Restart(ctx, pgserver.Immediate)) }},
	{"sessions are ended", func(_ context.Context, s *stage) {
		for range 5 {
			s.must(s.try("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'oncewatch'"))
			time.Sleep(100 * time.Millisecond)
		}
	}},
	{"the table is locked", func(_ context.Context, s *stage) {
		s.must(s.try("BEGIN; LOCK processed_events IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(1); COMMIT"))
	}},
	{"the table is away", func(_ context.Context, s *stage) {
		s.must(s.try("ALTER TABLE processed_events RENAME TO away"))
		time.Sleep(time.Second)
		s.must(s.try("ALTER TABLE away RENAME TO processed_events"))
	}},
	{"the database is cut off", func(_ context.Context, s *stage) { s.database.trouble(cut) }},
	{"the database answers nonsense", func(_ context.Context, s *stage) { s.database.trouble(garbled) }},
	{"the database is silent", func(_ context.Context, s *stage) { s.database.trouble(silent) }},
	{"the broker is cut off", func(_ context.Context, s *stage) { s.network.trouble(cut) }},
	{"the broker answers nonsense", func(_ context.Context, s *stage) { s.network.trouble(garbled) }},
	{"the broker is silent", func(_ context.Context, s *stage) { s.network.trouble(silent) }},
	{"the broker's answers are malformed", func(_ context.Context, s *stage) {
		var over atomic.Bool
		for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.ListOffsets, kmsg.OffsetFetch, kmsg.DescribeGroups, kmsg.ListGroups, kmsg.DescribeConfigs} {
			s.broker.ControlKey(key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
				if over.Load() {
					return nil, nil, false
				}
				s.broker.KeepControl()
				return malformed(req), nil, true
			})
		}
		time.Sleep(time.Second)
		over.Store(true)
	}},
}

func (l *line) trouble(m mode) {
	l.set(m)
	time.Sleep(time.Second)
	l.set(whole)
}

// malformed is a well-formed answer that makes no sense: nothing of what was
// asked for, or offsets that cannot be.
func malformed(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind()
	if r, ok := resp.(*kmsg.ListOffsetsResponse); ok {
		r.Topics = []kmsg.ListOffsetsResponseTopic{{Topic: "topic-0", Partitions: []kmsg.ListOffsetsResponseTopicPartition{
			{Partition: -7, Offset: math.MinInt64, Timestamp: math.MaxInt64}, {Partition: math.MaxInt32, Offset: math.MaxInt64}}}, {}}
	}
	if r, ok := resp.(*kmsg.OffsetFetchResponse); ok {
		r.Groups = []kmsg.OffsetFetchResponseGroup{{Group: "nobody's"}, {Group: "group-0", Topics: []kmsg.OffsetFetchResponseGroupTopic{{Topic: "topic-0",
			Partitions: []kmsg.OffsetFetchResponseGroupTopicPartition{{Partition: -1, Offset: math.MinInt64}}}}}}
	}
	return resp
}

// maxima are the worst that was seen of the exporter's sessions.
type maxima struct {
	mu                  sync.Mutex
	looks               int
	sessions            int
	third               time.Duration // for how long there were more than two
	statement, snapshot time.Duration
	stall               time.Duration // of the machine
}

// watch looks at the server's sessions until the context ends.
func (m *maxima) watch(ctx context.Context, s *stage) {
	var conn *pgx.Conn
	var crowded time.Time // since when there are more than two
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, s.server.DSN("postgres")); err != nil {
				continue // it restarts
			}
		}
		var n int
		var statement, snapshot float64
		if err := conn.QueryRow(ctx, `SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - query_start)) FILTER (WHERE state = 'active'), 0)::float8,
			coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)) FILTER (WHERE backend_xmin IS NOT NULL), 0)::float8
			FROM pg_stat_activity WHERE usename = 'oncewatch'`).Scan(&n, &statement, &snapshot); err != nil {
			_ = conn.Close(context.Background())
			continue
		}
		m.mu.Lock()
		m.looks++
		m.sessions = max(m.sessions, n)
		if n <= 2 {
			crowded = time.Time{}
		} else if crowded.IsZero() {
			crowded = time.Now()
		} else {
			m.third = max(m.third, time.Since(crowded))
		}
		m.statement = max(m.statement, time.Duration(statement*float64(time.Second)))
		m.snapshot = max(m.snapshot, time.Duration(snapshot*float64(time.Second)))
		m.mu.Unlock()
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// stalls measures how long the machine lets a process wait that wants to run.
func (m *maxima) stalls(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(5 * time.Millisecond)
		m.mu.Lock()
		m.stall = max(m.stall, time.Since(began)-5*time.Millisecond)
		m.mu.Unlock()
	}
}

// load writes markers and effects and prunes, as consumers do.
func (s *stage) load(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		_ = s.try(fmt.Sprintf(`BEGIN; INSERT INTO processed_events SELECT 'group-0', 'n-%[1]d-' || j, 'topic-0', 0, 100000 + %[1]d * 20 + j FROM generate_series(0, 19) j;
			INSERT INTO ledger_entries SELECT 'n-%[1]d-' || j FROM generate_series(0, 19) j; COMMIT;
			DELETE FROM processed_events WHERE processed_at < now() - interval '10 minutes'`, i))
		time.Sleep(50 * time.Millisecond)
	}
}

// figures are what the exporter says of itself, at its least in a quiet
// moment: garbage that is not collected yet is no leak.
type figures struct{ goroutines, descriptors, heap, resident float64 }

func (f figures) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f descriptors, %.1f MB heap, %.1f MB resident", f.goroutines, f.descriptors, f.heap/1e6, f.resident/1e6)
}

func (s *stage) figures() figures {
	s.Helper()
	least := figures{math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)}
	for range 30 {
		s.client.CloseIdleConnections()
		page, err := s.scrape()
		s.must(err)
		for name, f := range map[string]*float64{"go_goroutines": &least.goroutines, "process_open_fds": &least.descriptors, "go_memstats_heap_alloc_bytes": &least.heap, "process_resident_memory_bytes": &least.resident} {
			m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(page)
			if m == nil {
				s.Fatalf("/metrics lacks %s", name)
			}
			v, err := strconv.ParseFloat(m[1], 64)
			s.must(err)
			*f = min(*f, v)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return least
}

// crowd scrapes 200 times at once.
func (s *stage) crowd() (slowest time.Duration) {
	s.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 200 {
		wg.Go(func() {
			began := time.Now()
			page, err := s.scrape()
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, time.Since(began))
			if err != nil || !strings.Contains(page, "oncewatch_build_info") {
				s.Errorf("one of 200 scrapes: %v", err)
			}
		})
	}
	wg.Wait()
	return slowest
}

// loris opens connections that never finish a request, and some that never
// read the answer.
func (s *stage) loris() (hangUp func()) {
	var conns []net.Conn
	for i := range 20 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		s.must(err)
		conns = append(conns, conn)
		request := "GET /metrics HTTP/1.1\r\nHost: x\r\n"
		if i%2 == 0 {
			request += "\r\n"
		}
		_, err = io.WriteString(conn, request)
		s.must(err)
	}
	return func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

// TestSoak lets every source fail in every way, again and again, beside slow
// and many scrapers, and wants nothing to grow and the database to be treated
// as promised. The long form:
//
//	go test ./deploy/soak -soak 1h -timeout 70m -v
func TestSoak(t *testing.T) {
	s := newStage(t)
	s.whole()
	ctx, cancel := context.WithCancel(t.Context())
	var m maxima
	var wg sync.WaitGroup
	wg.Go(func() { m.watch(ctx, s) })
	wg.Go(func() { m.stalls(ctx) })
	wg.Go(func() { s.load(ctx) })
	defer wg.Wait()
	defer cancel()

	s.crowd() // fills what is kept between scrapes
	first := s.figures()
	t.Logf("before: %s", first)
	last, rounds := first, 0
	for deadline := time.Now().Add(*soakFor); rounds < 1 || time.Now().Before(deadline); rounds++ {
		hangUp := s.loris()
		for _, f := range faults {
			if !regexp.MustCompile(*only).MatchString(f.name) {
				continue
			}
			began := time.Now()
			f.do(ctx, s)
			s.whole()
			t.Logf("round %d: %s: whole again after %.1f s", rounds+1, f.name, time.Since(began).Seconds())
			if t.Failed() {
				return
			}
		}
		slowest := s.crowd()
		hangUp()
		last = s.figures()
		t.Logf("round %d: %s; slowest of 200 scrapes %s", rounds+1, last, slowest.Round(time.Millisecond))
	}
	cancel()
	wg.Wait()
	t.Logf("%d rounds; %d looks at the sessions: at most %d, more than two for %s, longest statement %s, longest snapshot %s; the machine stalled for up to %s", rounds, m.looks, m.sessions, m.third, m.statement, m.snapshot, m.stall)
	if last.goroutines > first.goroutines+5 {
		t.Errorf("goroutines grew from %.0f to %.0f", first.goroutines, last.goroutines)
	}
	if last.descriptors > first.descriptors+5 {
		t.Errorf("file descriptors grew from %.0f to %.0f", first.descriptors, last.descriptors)
	}
	if last.heap > first.heap*1.25+4e6 {
		t.Errorf("the heap grew from %.1f to %.1f MB", first.heap/1e6, last.heap/1e6)
	}
	if m.looks < 100 || m.sessions == 0 {
		t.Errorf("only %d looks, %d sessions: nothing was seen", m.looks, m.sessions)
	}
	// The exporter opens two. One that was cut off may still stand on the server
	// beside the next ones, until the server notices: at the end of its statement,
	// or when a transaction has been idle for too long.
	if most := 2*time.Second + m.stall; m.third > most {
		t.Errorf("the database saw up to %d sessions at once, more than 2 for %s, want at most 2", m.sessions, m.third)
	}
	if most := 600*time.Millisecond + m.stall; m.statement > most {
		t.Errorf("a statement ran for %s, want at most its timeout of 500 ms (%s with the machine's stalls)", m.statement, most)
	}
	if most := time.Second + m.stall; m.snapshot > most {
		t.Errorf("a snapshot was held for %s, want less than 1 s (%s with the machine's stalls)", m.snapshot, most)
	}
	if text := s.log.String(); strings.Contains(text, "panic") || strings.Contains(text, "could not be read: runtime error") {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "panic") || strings.Contains(line, "could not be read") {
				t.Errorf("the log tells of a panic: %s", line)
			}
		}
	}
}
