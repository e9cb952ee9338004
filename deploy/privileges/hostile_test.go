package privileges

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/net/html"

	"oncewatch/collectors"
	"oncewatch/collectors/config"
	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/web"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// hostile are names that want to break out of a label, a page or a terminal.
var hostile = []string{
	"line\nbreak", `quo"te`, `back\slash`, `}{,=#`, "x\" } 1\nfake_metric 42", "carriage\r\nreturn",
	"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "&lt;b&gt;", "{{.Now}}", "%s%n", "'; DROP TABLE processed_events; --",
	"\x1b[31mred\x1b[0m\x07", "\u202egnp.exe", "\xff\xfe invalid", "tail\xc3", " ", "ü€😀", strings.Repeat("x", 10_000), strings.Repeat("<b>", 3000),
}

// Hostile names of groups, topics and ids go the whole way: from a table that
// can hold any byte and from a broker, to /metrics, to the page, to the audit.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{})
	// This encoding keeps bytes that are no text.
	execute(t, server.DSN("postgres"), "CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
	dsn := server.DSN("bytes")
	execute(t, dsn, `CREATE TABLE processed_events (consumer_group text, event_id text, topic text, partition int, "offset" bigint, processed_at timestamptz NOT NULL DEFAULT now());
		CREATE INDEX ON processed_events (processed_at);
		CREATE TABLE ledger_entries (event_id text, created_at timestamptz NOT NULL DEFAULT now());
		CREATE INDEX ON ledger_entries (event_id); CREATE INDEX ON ledger_entries (created_at)`)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.DefaultProduceTopic("payments"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), &kgo.Record{Value: []byte("x")}, &kgo.Record{Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	at := kadm.Offsets{}
	at.AddOffset("payments", 0, 1, -1)
	for _, name := range hostile {
		if _, err := conn.Exec(t.Context(), "INSERT INTO processed_events SELECT convert_from($1, 'SQL_ASCII'), convert_from($1, 'SQL_ASCII') || i, convert_from($1, 'SQL_ASCII'), 0, i, now() - interval '5 min' FROM generate_series(1, 3) i", []byte(name)); err != nil {
			t.Fatalf("%.40q: %v", name, err)
		}
		if err := kadm.NewClient(client).CommitAllOffsets(t.Context(), name, at); err != nil {
			t.Fatalf("%.40q: %v", name, err)
		}
	}
	var c collectors.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Postgres.Config, c.Kafka.Brokers, c.Postgres.Effect.Table = dbconn.To(dsn), broker.ListenAddrs(), "ledger_entries"
	c.Poll.Interval = 500 * time.Millisecond
	var w web.Config
	if err := config.Defaults(&w); err != nil {
		t.Fatal(err)
	}
	w.ListenAddress = []string{"127.0.0.1:0"}

	ctx, end := context.WithCancel(t.Context())
	listening := make(chan collectors.Started, 1)
	ended := make(chan error, 1)
	log := &testenv.Log{}
	go func() {
		ended <- collectors.Serve(ctx, c, w, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), func(s collectors.Started) { listening <- s })
	}()
	defer func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	url := (<-listening).URL
	get := func(path string) string {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", path, resp.Status, err)
		}
		return string(body)
	}
	defer http.DefaultClient.CloseIdleConnections()
	var page string
	testenv.Eventually(t, "counts and lag", func() bool {
		page = get("/metrics")
		return strings.Contains(page, "\nprocessed_events_row_count{") && strings.Contains(page, "\nconsumer_lag{")
	})
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	if families["fake_metric"] != nil {
		t.Error("a name has become a metric")
	}
	for _, metric := range []string{"processed_events_row_count", "consumer_lag"} {
		seen := map[string]float64{}
		for _, m := range families[metric].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "consumer_group" {
					seen[l.GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		for _, name := range hostile {
			want := 3.0
			if metric == "consumer_lag" {
				want = 1
			}
			if got, ok := seen[strings.ToValidUTF8(name, "\uFFFD")]; !ok || got != want {
				t.Errorf("%s of %.40q: %v %t, want %v", metric, name, got, ok, want)
			}
		}
	}

	// On the page every name is text: no element that the page does not have.
	text := get("/")
	if !utf8.ValidString(text) {
		t.Error("the page is not UTF-8")
	}
	if n := strings.Count(text, "<script"); n != 1 {
		t.Errorf("the page has %d scripts, want its own one", n)
	}
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			break
		}
		if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
			continue
		}
		token := z.Token()
		if slices.Contains([]string{"img", "b", "iframe", "object"}, token.Data) {
			t.Errorf("the page has an element of a name's making: %.100s", token)
		}
		for _, a := range token.Attr {
			if strings.HasPrefix(a.Key, "on") {
				t.Errorf("the page has a handler: %.100s", token)
			}
		}
	}
	for _, name := range []string{"&lt;script&gt;alert(1)&lt;/script&gt;", "&amp;lt;b&amp;gt;", "{{.Now}}"} {
		if !strings.Contains(text, name) {
			t.Errorf("the page lacks %s", name)
		}
	}

	// The audit steers no terminal, and its JSON is JSON.
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	report, err := collectors.Check(within, c, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := report.Text(&out, false, 100); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); strings.ContainsAny(s, "\x1b\x07\r") || !utf8.ValidString(s) || !strings.Contains(s, "<script>alert(1)</script>") {
		t.Error("the audit's text steers the terminal, or lacks the names")
	}
	out.Reset()
	if err := report.JSON(&out); err != nil {
		t.Fatal(err)
	}
	var parsed map[string]any
	if err := json.Unmarshal(out.Bytes(), &parsed); err != nil || !utf8.Valid(out.Bytes()) {
		t.Errorf("the audit's JSON: %v", err)
	}
	// A line of the log is a line.
	for line := range strings.Lines(log.String()) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a name has broken the log: %.100q", line)
			break
		}
	}
}
