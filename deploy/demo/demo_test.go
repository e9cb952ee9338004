package demo_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncewatch/alerts"
	"oncewatch/collectors/conform"
	"oncewatch/deploy/demo"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// The demo shows a table and a topic as they look in production, and leaves
// nothing behind.
func TestDemo(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	defer http.DefaultClient.CloseIdleConnections()
	scratch := filepath.Join(os.TempDir(), "demo-test-scratch")
	t.Setenv("TMPDIR", scratch)
	if err := os.MkdirAll(scratch, 0o755); err != nil { // readable for the server's user
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready := make(chan demo.Addresses, 1)
	var out, log testenv.Log
	done := make(chan error, 1)
	go func() {
		done <- demo.Run(ctx, demo.Options{
			Rate: 200, Listen: "127.0.0.1:0", Consumer: "127.0.0.1:0", Interval: time.Second,
			Ready: func(a demo.Addresses) { ready <- a },
		}, &out, slog.New(slog.NewTextHandler(&log, nil)))
	}()
	var at demo.Addresses
	select {
	case at = <-ready:
	case err := <-done:
		t.Fatalf("ended early: %v\n%s%s", err, out.String(), log.String())
	case <-time.After(2 * time.Minute):
		t.Fatalf("not ready:\n%s%s", out.String(), log.String())
	}

	for what, pattern := range map[string]string{
		"pruning of the ninth day":    `processed_events_pruned_total\{[^}]*\} [1-9]`,
		"new markers":                 `processed_events_inserted_total\{[^}]*\} [1-9]`,
		"an observed retention of 8d": `processed_events_observed_retention_seconds\{[^}]*\} 69\d{4}`,
		"a seven-day topic":           `kafka_topic_retention_seconds\{topic="payments"\} 604800`,
		"no divergence":               `processed_events_divergent_rows\{[^}]*different_transaction[^}]*\} 0`,
		"members":                     `consumer_group_members\{consumer_group="ledger-writer"\} 1`,
	} {
		expression := regexp.MustCompile(pattern)
		deadline := time.Now().Add(time.Minute)
		for !expression.MatchString(get(t, at.Exporter+"/metrics")) {
			if time.Now().After(deadline) {
				t.Fatalf("no %s:\n%s", what, get(t, at.Exporter+"/metrics"))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	if page := get(t, at.Exporter+"/"); strings.Contains(page, `class="badge violated"`) {
		t.Error("a healthy demo violates a line")
	}
	if page := get(t, at.Consumer); !strings.Contains(page, `events_handled_total{consumer_group="ledger-writer",outcome="processed",topic="payments"}`) {
		t.Errorf("the consumer's metrics:\n%s", page)
	}
	conforms(t, at.Exporter+"/metrics", at.Consumer)

	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("end: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the demo does not end")
	}
	left, err := os.ReadDir(scratch)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// conforms fails where rules, dashboards or page would miss something of the two
// programs' own pages.
func conforms(t *testing.T, addresses ...string) {
	t.Helper()
	wanted, err := conform.New(alerts.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	var pages []*conform.Page
	for _, address := range addresses {
		p, err := conform.Read(address, strings.NewReader(get(t, address)), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, p)
	}
	r := wanted.Judge(pages)
	if len(r.Unseen) > 0 {
		t.Errorf("nothing is known as the page of %v", r.Unseen)
	}
	for _, f := range r.Findings {
		if f.Wrong || f.Kind != "missing" { // some have no series in a demo
			t.Errorf("%s: %s", f.Metric, f.What)
		}
	}
}

// A topic of the same name on a cluster of somebody's is not the demo's to
// delete.
func TestForeignTopicStays(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, demo.Topic))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = demo.Run(ctx, demo.Options{Brokers: k.ListenAddrs(), Rate: 10, Listen: "127.0.0.1:0", Consumer: "127.0.0.1:0", Interval: time.Second}, io.Discard, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "it is there already") {
		t.Errorf("error %v", err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(ctx)
	if err != nil || !topics.Has(demo.Topic) {
		t.Errorf("the topic is gone: %v, %v", topics.Names(), err)
	}
}

func TestUnknownFaultIsNamed(t *testing.T) {
	err := demo.Run(context.Background(), demo.Options{Fault: "nonsense"}, io.Discard, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--fault=nonsense") || !strings.Contains(err.Error(), "id-reuse") {
		t.Errorf("error %v", err)
	}
}
