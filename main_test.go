package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/checklist"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const runbookTable = `CREATE TABLE processed_events (
    consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL,
    "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id));
CREATE INDEX processed_events_processed_at ON processed_events (processed_at);`

// cluster is a broker in this process with a topic that a group has read.
func cluster(t *testing.T) (brokers string, fake *kfake.Cluster) {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	for range 10 {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: "payments", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	committed := kadm.Offsets{}
	committed.AddOffset("payments", 0, 7, -1)
	if err := kadm.NewClient(client).CommitAllOffsets(ctx, "ledger-writer", committed); err != nil {
		t.Fatal(err)
	}
	return fake.ListenAddrs()[0], fake
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// served is an exporter under test.
type served struct {
	url    string
	log    *testenv.Log
	end    context.CancelFunc
	exited chan int
}

func serve(t *testing.T, args ...string) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{log: &testenv.Log{}, end: cancel, exited: make(chan int, 1)}
	args = append([]string{"--web.listen-address=127.0.0.1:0", "--poll.interval=200ms", "--poll.timeout=3s"}, args...)
	go func() { s.exited <- run(ctx, args, io.Discard, s.log) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-s.exited:
		case <-time.After(10 * time.Second):
			t.Error("the exporter does not end")
		}
	})
	address := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
	testenv.Eventually(t, "the listener", func() bool {
		m := address.FindStringSubmatch(s.log.String())
		if m == nil {
			return false
		}
		s.url = "http://" + m[1]
		return true
	})
	return s
}

func (s *served) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(s.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (s *served) waitFor(t *testing.T, path, want string) string {
	t.Helper()
	var page string
	testenv.Eventually(t, path+" to contain "+want, func() bool {
		_, page = s.get(t, path)
		return strings.Contains(page, want)
	})
	return page
}

func TestServe(t *testing.T) {
	dsn := testenv.Postgres(t)
	execute(t, dsn, runbookTable+`
		INSERT INTO processed_events SELECT 'ledger-writer', 'evt-'||i, 'payments', 0, i, now() - interval '8 days' + i * interval '1 hour' FROM generate_series(0, 6) i`)
	brokers, _ := cluster(t)
	s := serve(t, "--postgres.dsn="+dsn, "--kafka.brokers="+brokers)
	testenv.Eventually(t, "readiness", func() bool { code, _ := s.get(t, "/-/ready"); return code == http.StatusOK })
	metrics := s.waitFor(t, "/metrics", "processed_events_row_count")
	for _, want := range []string{
		`consumer_group="ledger-writer",database="test_`, `topic="payments"} 7`,
		`consumer_lag{consumer_group="ledger-writer",partition="0",topic="payments"} 3`,
		`oncewatch_collector_success{collector="markers"} 1`, `oncewatch_build_info{`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if code, _ := s.get(t, "/-/healthy"); code != http.StatusOK {
		t.Errorf("/-/healthy: %d", code)
	}
	page := s.waitFor(t, "/", "Do markers outlive the records on the broker?")
	if strings.Count(page, "ledger-writer") == 0 || strings.Count(page, "<script") != 1 {
		t.Error("the page lacks the group, or has a script beside its own")
	}
	if code, _ := s.get(t, "/nowhere"); code != http.StatusNotFound {
		t.Errorf("/nowhere: %d", code)
	}
	start := time.Now()
	s.end()
	if code := <-s.exited; code != 0 || time.Since(start) > 5*time.Second {
		t.Errorf("exit %d after %v, want 0 within 5 s", code, time.Since(start))
	}
	s.exited <- 0
}

// Both sources come late, one by one, and neither takes the other
// with it.
func TestSourcesComeLate(t *testing.T) {
	dsn := testenv.Postgres(t)
	address := testenv.FreeAddress(t)
	s := serve(t, "--postgres.dsn="+dsn, "--kafka.brokers="+address)
	s.waitFor(t, "/metrics", `oncewatch_errors_total{collector="markers",kind="missing"}`)
	s.waitFor(t, "/metrics", `oncewatch_errors_total{collector="groups",kind="unreachable"}`)
	if code, _ := s.get(t, "/-/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("ready with nothing read: %d", code)
	}
	s.waitFor(t, "/", "processed_events does not exist")

	execute(t, dsn, runbookTable)
	s.waitFor(t, "/metrics", `oncewatch_collector_success{collector="markers"} 1`)
	s.waitFor(t, "/metrics", `oncewatch_collector_success{collector="groups"} 0`)

	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(int(netip.MustParseAddrPort(address).Port())), kfake.SeedTopics(1, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	s.waitFor(t, "/metrics", `oncewatch_collector_success{collector="groups"} 1`)
	testenv.Eventually(t, "readiness", func() bool { code, _ := s.get(t, "/-/ready"); return code == http.StatusOK })
}

// Each mistake is one line that names the thing and the remedy. What else can
// be watched is watched (and no secret is told).
func TestBadInput(t *testing.T) {
	const secret = "hunter2"
	server := testenv.PostgresServer(t, pgserver.Options{HBA: "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"})
	dsn := server.DSN("postgres")
	execute(t, dsn, runbookTable+`
		CREATE TABLE no_time (consumer_group text, event_id text);
		CREATE ROLE plain LOGIN PASSWORD '`+secret+`'`)
	brokers, fake := cluster(t)
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = used.Close() }()
	file := filepath.Join(t.TempDir(), "oncewatch.yml")
	if err := os.WriteFile(file, []byte("poll:\n  intervall: 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	t.Run("refused at start", func(t *testing.T) {
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"--config.file=" + file}, file + ":2: unknown key poll.intervall; did you mean poll.interval?"},
			{[]string{"--kafka.group=a("}, "--kafka.group: error parsing regexp"},
			{[]string{"--kafka.brokers=nowhere"}, `--kafka.brokers: "nowhere" is no address: want HOST:PORT`},
			{[]string{"--postgres.dsn=postgres://u:" + secret + "@h:port/db"}, "postgres.dsn"},
			{[]string{"--postgres.table=t; DROP TABLE x"}, "postgres.table"},
			{[]string{"--poll.interval=soon"}, `invalid duration "soon"`},
			{[]string{"--no-such-flag"}, "unknown flag --no-such-flag"},
			{[]string{"--web.listen-address=" + used.Addr().String()}, "--web.listen-address " + used.Addr().String()},
			{[]string{"--web.config.file=/nowhere.yml"}, "/nowhere.yml"},
			{[]string{"--web.telemetry-path=/"}, "--web.telemetry-path=/: want a path of its own"},
			{[]string{"--web.telemetry-path=/{x"}, "--web.telemetry-path=/{x: want"},
			{[]string{"--postgres.dsn=host=h password=" + secret + " sslmode=verify-full sslrootcert=/nowhere.pem"}, "names a file that cannot be read: open /nowhere.pem"},
			{[]string{"--consumer.metrics-url=ftp://u:" + secret + "@x"}, "--consumer.metrics-url"},
		} {
			var stderr bytes.Buffer
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			code := run(ctx, c.args, io.Discard, &stderr)
			cancel()
			if code != 2 || !strings.Contains(stderr.String(), c.want) || strings.Contains(stderr.String(), secret) {
				t.Errorf("%v: exit %d, want 2 and %q:\n%s", c.args, code, c.want, stderr.String())
			}
		}
	})

	fake.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
			resp.Resources = append(resp.Resources, kmsg.DescribeConfigsResponseResource{
				ResourceType: r.ResourceType, ResourceName: r.ResourceName, ErrorCode: kerr.TopicAuthorizationFailed.Code,
			})
		}
		return resp, nil, true
	})
	t.Run("said while running", func(t *testing.T) {
		for name, c := range map[string]struct {
			args []string
			want string // in the log
			kind string
		}{
			"unreachable host":  {[]string{"--postgres.dsn=postgres://plain:" + secret + "@127.0.0.1:1/db"}, "127.0.0.1:1", "unreachable"},
			"wrong password":    {[]string{"--postgres.dsn=" + server.UserDSN("postgres", "plain", secret+"x")}, "password authentication failed", "denied"},
			"missing table":     {[]string{"--postgres.dsn=" + dsn, "--postgres.table=events"}, "table events does not exist", "missing"},
			"missing column":    {[]string{"--postgres.dsn=" + dsn, "--postgres.table=no_time"}, "no_time has no column", "missing"},
			"role without read": {[]string{"--postgres.dsn=" + server.UserDSN("postgres", "plain", secret)}, "GRANT SELECT", "denied"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := serve(t, append(c.args, "--kafka.brokers="+brokers, "--log.level=debug")...)
				page := s.waitFor(t, "/metrics", `oncewatch_errors_total{collector="markers",kind="`+c.kind+`"}`)
				if !strings.Contains(page, `consumer_lag{consumer_group="ledger-writer"`) {
					page = s.waitFor(t, "/metrics", `consumer_lag{consumer_group="ledger-writer"`)
				}
				// The topic's configuration is denied: its retention alone is missing.
				s.waitFor(t, "/metrics", `kafka_topic_partition_log_end_offset`)
				s.waitFor(t, "/metrics", `oncewatch_errors_total{collector="topics",kind="denied"}`)
				if strings.Contains(page, "kafka_topic_retention_seconds{") {
					t.Error("a denied retention has a value")
				}
				testenv.Eventually(t, "the log to say "+c.want, func() bool { return strings.Contains(s.log.String(), c.want) })
				_, html := s.get(t, "/")
				for what, text := range map[string]string{"log": s.log.String(), "page": html, "metrics": page} {
					if strings.Contains(text, secret) {
						t.Errorf("the %s tells the password", what)
					}
				}
			})
		}
	})
}

func TestCheck(t *testing.T) {
	dsn := testenv.Postgres(t)
	brokers, _ := cluster(t)
	check := func(args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		code := run(ctx, append([]string{"check", "--postgres.dsn=" + dsn, "--kafka.brokers=" + brokers, "--poll.timeout=3s"}, args...), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	if code, out, _ := check(); code != 2 || !strings.Contains(out, "processed_events does not exist") {
		t.Errorf("without a table: exit %d, want 2:\n%s", code, out)
	}

	execute(t, dsn, runbookTable+`
		INSERT INTO processed_events SELECT 'ledger-writer', 'evt-'||i, 'payments', 0, i, now() - i * interval '1 second' FROM generate_series(0, 6) i`)
	if code, out, errs := check("--postgres.retention=8d"); code != 0 || !strings.Contains(out, "0 violated") || strings.Contains(out, "\x1b") {
		t.Errorf("all holds: exit %d, want 0:\n%s%s", code, out, errs)
	}
	code, out, _ := check("--postgres.retention=3d", "--output=json")
	var report checklist.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if code != 1 || report.Version != 1 || report.Verdict != checklist.Violated || report.Lines[0].Rule != "retention-ratio" ||
		!strings.Contains(report.Lines[0].Remedy, "retention of the markers: 3d -> at least 15d 10h") {
		t.Errorf("3 days against 7: exit %d, %+v", code, report.Lines[0])
	}
	if code, _, _ := check("--fail-on=warning"); code != 0 {
		t.Errorf("unknown lines fail nothing: exit %d", code)
	}

	if code, out, _ := check("--kafka.topic=paymets"); code != 2 || !strings.Contains(out, "--kafka.topic=paymets lets no topic in") {
		t.Errorf("a topic that is not there: exit %d, want 2:\n%s", code, out)
	}

	// The runbook's day-partitioned variant accepts every redelivery.
	execute(t, dsn, `DROP TABLE processed_events;
		CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(),
			PRIMARY KEY (consumer_group, event_id, processed_at)) PARTITION BY RANGE (processed_at);
		CREATE TABLE p PARTITION OF processed_events DEFAULT;
		INSERT INTO processed_events VALUES ('ledger-writer', 'evt-1', now())`)
	if code, out, _ := check(); code != 1 || !strings.Contains(strings.Join(strings.Fields(out), " "), "every redelivery is accepted") {
		t.Errorf("day partitions: exit %d, want 1:\n%s", code, out)
	}
	var stdout bytes.Buffer
	if code := run(context.Background(), []string{"check", "--dry-run", "--kafka.brokers=nowhere:1", "--postgres.dsn=postgres://u:hunter2@db/orders", "--consumer.metrics-url=http://u:hunter2@h/metrics"}, &stdout, io.Discard); code != 0 ||
		!strings.Contains(stdout.String(), "Kafka at nowhere:1") || !strings.Contains(stdout.String(), "database orders at db") || strings.Contains(stdout.String(), "hunter2") {
		t.Errorf("dry run: exit %d: %s", code, stdout.String())
	}
	// A variable that many environments set is no flag.
	t.Setenv("ONCEWATCH_VERSION", "1.2.3")
	stdout.Reset()
	if code := run(context.Background(), []string{"check", "--dry-run"}, &stdout, io.Discard); code != 0 || !strings.Contains(stdout.String(), "The configuration is usable") {
		t.Errorf("with ONCEWATCH_VERSION: exit %d: %s", code, stdout.String())
	}
}

func TestRulesAndDashboards(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"rules", "--set", "retention_ratio_warning=1.2"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if !strings.Contains(stdout.String(), "alert: ProcessedEventsRetentionRatioLow") || !strings.Contains(stdout.String(), "1.2") {
		t.Error("the rules lack the alert or the threshold")
	}
	stdout.Reset()
	if code := run(context.Background(), []string{"rules", "--list"}, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "retention_ratio_warning    1.1") {
		t.Errorf("list: exit %d: %.300s", code, stdout.String())
	}
	if code := run(context.Background(), []string{"rules", "--set", "nonsense=1"}, io.Discard, &stderr); code != 2 {
		t.Errorf("unknown threshold: exit %d, want 2", code)
	}
	dir := filepath.Join(t.TempDir(), "new", "folder")
	if code := run(context.Background(), []string{"dashboards", "--output-dir=" + dir}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 3 {
		t.Errorf("dashboards: %v, %v; want three", files, err)
	}
}

// A threshold that is set, by flag, by a file of thresholds or in the
// configuration, is that of the audit, of the exporter's page, of the rules and
// of the dashboards.
func TestOneSetOfThresholds(t *testing.T) {
	dsn := testenv.Postgres(t)
	brokers, _ := cluster(t)
	execute(t, dsn, runbookTable+`
		INSERT INTO processed_events SELECT 'ledger-writer', 'evt-'||i, 'payments', 0, i, now() - i * interval '1 second' FROM generate_series(0, 6) i`)
	dir := t.TempDir()
	values, file := filepath.Join(dir, "values.yml"), filepath.Join(dir, "oncewatch.yml")
	for path, text := range map[string]string{values: "retention_ratio_warning: 1.37\n", file: "set: {retention_ratio_warning: 1.37}\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range []string{"--set=retention_ratio_warning=1.37", "--values=" + values, "--config.file=" + file} {
		said := func(args ...string) string {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), append(args, way), &stdout, &stderr); code != 0 {
				t.Errorf("%v %s: exit %d: %s", args, way, code, stderr.String())
			}
			return stdout.String()
		}
		sources := []string{"--postgres.dsn=" + dsn, "--kafka.brokers=" + brokers}
		if out := said(append([]string{"check"}, sources...)...); !strings.Contains(out, "at least 1.37 × 7d") {
			t.Errorf("%s: check judges by another ratio:\n%s", way, out)
		}
		if out := said("rules"); !strings.Contains(out, "1.37") {
			t.Errorf("%s: the rules judge by another ratio", way)
		}
		boards := filepath.Join(t.TempDir(), "boards")
		said("dashboards", "--output-dir="+boards)
		found := false
		for _, name := range []string{"oncewatch-overview.json", "oncewatch-group.json", "oncewatch-table.json"} {
			text, err := os.ReadFile(filepath.Join(boards, name))
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(text), "1.37")
		}
		if !found {
			t.Errorf("%s: the dashboards judge by another ratio", way)
		}
		s := serve(t, append(sources, way)...)
		s.waitFor(t, "/", "at least 1.37 × 7d")
	}
}

// What keeps a connection from being made is told with the setting to see to,
// where the other side says nothing at all too.
func TestConnectionErrorsNameTheSetting(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t)
	brokers, _ := cluster(t)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"TLS to a plain broker":          {[]string{"--kafka.tls.enabled"}, "does this listener speak TLS? (--kafka.tls.enabled)"},
		"SASL to a broker without":       {[]string{"--kafka.sasl.mechanism=SCRAM-SHA-512", "--kafka.sasl.username=u", "--kafka.sasl.password=hunter2"}, "--kafka.sasl.mechanism"},
		"TLS to a plain PostgreSQL":      {[]string{"--postgres.dsn=" + strings.Replace(dsn, "sslmode=disable", "sslmode=require", 1)}, "sslmode=disable"},
		"a Prometheus that is not there": {[]string{"--prometheus.url=http://127.0.0.1:1"}, "--prometheus.url"},
		"a consumer that is not there":   {[]string{"--consumer.metrics-url=http://127.0.0.1:1/metrics"}, "--consumer.metrics-url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			args := append([]string{"check", "--postgres.dsn=" + dsn, "--kafka.brokers=" + brokers, "--timeout=1m", "--output=json"}, c.args...)
			code := run(t.Context(), args, &stdout, &stderr)
			var report checklist.Report
			if err := json.Unmarshal(stdout.Bytes(), &report); err != nil || code != 2 {
				t.Fatalf("exit %d, %v: %s%s", code, err, stdout.String(), stderr.String())
			}
			if !slices.ContainsFunc(report.Unread, func(u checklist.Unread) bool { return strings.Contains(u.Error, c.want) }) {
				t.Errorf("nothing names %s: %+v", c.want, report.Unread)
			}
			if strings.Contains(stdout.String(), "hunter2") {
				t.Error("it tells the password")
			}
		})
	}
}
