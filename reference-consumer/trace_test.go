//go:build linux

package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"oncewatch/deploy/testenv"
)

// receiver is an OTLP endpoint.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
	name  string // service.name
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var msg collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &msg)
		}
		if err != nil || req.URL.Path != "/v1/traces" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rs := range msg.ResourceSpans {
			for _, a := range rs.Resource.Attributes {
				if a.Key == "service.name" {
					r.name = a.Value.GetStringValue()
				}
			}
			for _, ss := range rs.ScopeSpans {
				r.spans = append(r.spans, ss.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(nil)
	}))
	t.Cleanup(r.Close)
	return r
}

// named returns the spans of a name.
func (r *receiver) named(name string) []*tracepb.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*tracepb.Span
	for _, s := range r.spans {
		if s.Name == name {
			out = append(out, s)
		}
	}
	return out
}

func attribute(s *tracepb.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			if v := a.Value.GetStringValue(); v != "" {
				return v
			}
			return fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return ""
}

// running starts the program's run command and returns its log and the
// address of its metrics.
func running(t *testing.T, args ...string) (log *testenv.Log, address string, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log = &testenv.Log{}
	exit := make(chan int, 1)
	go func() { exit <- execute(ctx, append([]string{"run"}, args...), io.Discard, log) }()
	testenv.Eventually(t, "the address", func() bool {
		m := regexp.MustCompile(`"serving metrics","address":"([^"]+)"`).FindStringSubmatch(log.String())
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	return log, address, func() int { cancel(); return <-exit }
}

func scrape(t *testing.T, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Spans arrive at an OTLP endpoint, named by the current
// conventions; the process span links to every producer (the last valid
// traceparent of each record), none dropped in a batch of 500; logs and
// exemplars carry the trace id.
func TestTraces(t *testing.T) {
	r := newReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", r.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	dsn, brokers := testenv.Postgres(t), fake(t)
	with := []string{"--postgres.dsn=" + dsn, "--kafka.brokers=" + strings.Join(brokers, ","), "--web.listen-address=127.0.0.1:0", "--log.format=json", "--log.level=debug", "--batch-size=500"}
	ok(t, append([]string{"migrate"}, with[:2]...)...)
	ok(t, append([]string{"produce", "--count=500", "--rate=0", "--duplicates=0", "--partitions=1"}, with[:2]...)...)
	if sent := r.named("send payments"); len(sent) != 500 || sent[0].Kind != tracepb.Span_SPAN_KIND_PRODUCER || attribute(sent[0], "messaging.operation.type") != "send" {
		t.Fatalf("%d producer spans, want 500", len(sent))
	}
	// Garbage, and two headers of which the last is valid.
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const last = "4bf92f3577b34da6a3ce929d0e0e4736"
	header := func(k, v string) kgo.RecordHeader { return kgo.RecordHeader{Key: k, Value: []byte(v)} }
	value := []byte(`{"account":"a","amount":1}`)
	if err := client.ProduceSync(t.Context(),
		&kgo.Record{Topic: "payments", Value: value, Headers: []kgo.RecordHeader{header("event_id", "two"), header("traceparent", "00-11111111111111111111111111111111-2222222222222222-01"), header("traceparent", "00-"+last+"-00f067aa0ba902b7-01"), header("traceparent", "garbage")}},
		&kgo.Record{Topic: "payments", Value: value, Headers: []kgo.RecordHeader{header("event_id", "none"), header("traceparent", "\x00\xff")}},
	).FirstErr(); err != nil {
		t.Fatal(err)
	}
	log, address, stop := running(t, with...)
	testenv.Eventually(t, "502 events", func() bool {
		return strings.Contains(scrape(t, address), `events_handled_total{consumer_group="ledger-writer",outcome="processed",topic="payments"} 502`)
	})
	body := scrape(t, address)
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	links, traces := map[string]bool{}, map[string]bool{}
	total := 0
	for _, s := range r.named("process payments") {
		total += len(s.Links)
		traces[hex.EncodeToString(s.TraceId)] = true
		for _, l := range s.Links {
			links[hex.EncodeToString(l.TraceId)] = true
		}
		for key, want := range map[string]string{"messaging.system": "kafka", "messaging.destination.name": "payments", "messaging.operation.name": "process", "messaging.operation.type": "process", "messaging.consumer.group.name": "ledger-writer", "messaging.destination.partition.id": "0"} {
			if got := attribute(s, key); got != want {
				t.Errorf("process span: %s = %q, want %q", key, got, want)
			}
		}
		if s.Kind != tracepb.Span_SPAN_KIND_CONSUMER || s.DroppedLinksCount != 0 {
			t.Errorf("process span: kind %v, %d dropped links", s.Kind, s.DroppedLinksCount)
		}
	}
	if total != 501 || !links[last] {
		t.Errorf("%d links, want 501 with the last valid of several headers among them", total)
	}
	for _, s := range r.named("send payments") {
		if !links[hex.EncodeToString(s.TraceId)] {
			t.Fatal("a producer span is not linked")
		}
	}
	if s := r.named("poll payments"); len(s) == 0 || s[0].Kind != tracepb.Span_SPAN_KIND_CLIENT || attribute(s[0], "messaging.operation.type") != "receive" {
		t.Errorf("%d poll spans", len(s))
	}
	covered := 0
	for _, s := range r.named("commit payments") {
		covered += len(s.Links)
		if attribute(s, "messaging.operation.type") != "settle" {
			t.Error("a commit span that does not settle")
		}
	}
	if covered != len(r.named("process payments")) {
		t.Errorf("offset commits cover %d transactions of %d", covered, len(r.named("process payments")))
	}
	if r.name != "reference-consumer" {
		t.Errorf("service.name %q", r.name)
	}
	handled := 0
	for line := range strings.Lines(log.String()) {
		var f map[string]any
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatal(err)
		}
		if f["msg"] != "event handled" {
			continue
		}
		handled++
		if id, _ := f["trace_id"].(string); !traces[id] {
			t.Fatalf("log line without its trace: %s", line)
		}
	}
	if handled != 502 {
		t.Errorf("%d log lines of handled events, want 502", handled)
	}
	exemplar := regexp.MustCompile(`event_handle_duration_seconds_bucket\{.*\} \d+ # \{trace_id="([0-9a-f]{32})"\}`).FindStringSubmatch(body)
	if exemplar == nil || !traces[exemplar[1]] {
		t.Errorf("exemplar %v, want one of the process spans' traces", exemplar)
	}
	if !strings.Contains(body, "trace_links_dropped_total 0") {
		t.Error("dropped links are not counted, or not 0")
	}
}

// A trace endpoint that hangs does not slow the handling, and does
// not keep the program from ending.
func TestHungTraceEndpoint(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-hang:
		case <-req.Context().Done():
		}
	}))
	defer s.Close()
	defer close(hang)
	dsn, brokers := testenv.Postgres(t), fake(t)
	with := []string{"--postgres.dsn=" + dsn, "--kafka.brokers=" + strings.Join(brokers, ","), "--web.listen-address=127.0.0.1:0", "--log.format=json"}
	ok(t, append([]string{"migrate"}, with[:2]...)...)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 2, 1, nil, "payments"); err != nil {
		t.Fatal(err)
	}
	total := 0
	handle := func() time.Duration {
		ok(t, append([]string{"produce", "--count=4000", "--rate=0", "--duplicates=0"}, with[:2]...)...)
		total += 4000
		began := time.Now()
		_, address, stop := running(t, with...)
		last := ""
		testenv.Eventually(t, "all", func() bool {
			last = scrape(t, address)
			m := regexp.MustCompile(`events_handled_total\{.*outcome="processed".*\} (\d+)`).FindStringSubmatch(last)
			return m != nil && m[1] == "4000"
		})
		took := time.Since(began)
		began = time.Now()
		if code := stop(); code != 0 {
			t.Errorf("exit %d", code)
		}
		if ended := time.Since(began); ended > 10*time.Second {
			t.Errorf("it took %s to end", ended)
		}
		return took
	}
	off := handle()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	// The producer must not hang either, so it is left without the endpoint.
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
	hung := handle()
	t.Logf("4,000 events: %s without traces, %s with an endpoint that hangs", off.Round(time.Millisecond), hung.Round(time.Millisecond))
	if hung > 3*off+5*time.Second {
		t.Errorf("%s with a hung endpoint, %s without traces", hung, off)
	}
}
