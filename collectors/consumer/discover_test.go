package consumer_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"oncewatch/collectors/consumer"
)

// nameserver answers for every name with the addresses that are set; nil: the
// name does not exist.
func nameserver(t *testing.T, addresses *atomic.Value) *net.Resolver {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := socket.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			set := addresses.Load().([]string)
			if set == nil {
				m.RCode = dnsmessage.RCodeNameError
			}
			for _, a := range set {
				if m.Questions[0].Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
						Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(a).To4())},
					})
				}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = socket.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", socket.LocalAddr().String())
	}}
}

// found is a source of one place, and its clock.
func found(t *testing.T, place string) *watcher {
	t.Helper()
	w := &watcher{t: t, now: time.Unix(1_800_000_000, 0)}
	var err error
	if w.source, err = consumer.New(consumer.Config{MetricsURL: []string{place}}, func() time.Time { return w.now }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.source.Close)
	return w
}

// Every address of a name is a consumer: one that comes is read at the next
// poll, one that goes is asked no more, and while the name cannot be resolved
// those of before are asked and the failure is told.
func TestAllAddressesOfAName(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	port := first.Addr().(*net.TCPAddr).Port
	second, err := net.Listen("tcp", fmt.Sprintf("127.0.0.3:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range []net.Listener{first, second} {
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: &program{start: ago(time.Hour), processed: 1000 * float64(i+1)}}}
		s.Start()
		t.Cleanup(s.Close)
	}
	var addresses atomic.Value
	w := found(t, fmt.Sprintf("dns+http://consumers.example:%d/metrics", port))
	w.source.Resolve(nameserver(t, &addresses))
	for _, tt := range []struct {
		addresses         []string
		processed         float64
		sources, problems int
	}{
		{[]string{"127.0.0.2"}, 1000, 1, 0},
		{[]string{"127.0.0.2", "127.0.0.3"}, 3000, 2, 0},
		{nil, 3000, 3, 1},
		{[]string{"127.0.0.3"}, 2000, 1, 0},
	} {
		addresses.Store(tt.addresses)
		got := w.read()
		if v := got.Values[key].Processed; v.Value != tt.processed || got.Sources != tt.sources || len(got.Problems()) != tt.problems || got.Unread != tt.problems {
			t.Errorf("at %v: %+v of %d, %v", tt.addresses, v, got.Sources, got.Problems())
		}
		w.wait(15 * time.Second)
	}

	// At first there is nothing to go on with.
	addresses.Store([]string(nil))
	w = found(t, "dns+http://consumers.example:1/metrics")
	w.source.Resolve(nameserver(t, &addresses))
	if _, err := w.source.Poll(t.Context()); err == nil || !strings.Contains(err.Error(), "consumers.example") || !strings.Contains(err.Error(), "--consumer.metrics-url") {
		t.Errorf("no such name: %v", err)
	}
}

// Files of targets are read as Prometheus reads them, and again at each poll.
func TestFilesOfTargets(t *testing.T) {
	dir := t.TempDir()
	var hosts []string
	for i := range 3 {
		s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if i == 2 && (r.URL.Path != "/actuator/prometheus" || r.URL.Query().Get("tenant") != "a b") {
				http.NotFound(rw, r)
				return
			}
			(&program{start: ago(time.Hour), processed: 1000}).ServeHTTP(rw, r)
		}))
		t.Cleanup(s.Close)
		hosts = append(hosts, strings.TrimPrefix(s.URL, "http://"))
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := found(t, filepath.Join(dir, "*.yml"))
	put("a.yml", "- targets: ['"+hosts[0]+"']\n  labels: {team: ledger}\n")
	for _, tt := range []struct {
		name, text          string
		consumers, problems int
	}{
		{"b.yml", "- targets: ['" + hosts[0] + "', '" + hosts[1] + "']\n", 2, 0}, // named twice, asked once
		{"b.yml", "- targets: ['" + hosts[2] + "']\n  labels: {__metrics_path__: /actuator/prometheus, __param_tenant: a b}\n", 2, 0},
		{"b.yml", "- target: ['" + hosts[1] + "']\n", 2, 1}, // misspelt: those of before
		{"b.yml", "- targets: ['u:hunter2@h']\n", 2, 1},
		{"b.yml", "", 1, 0},
		{"a.yml", "- targets: ['" + hosts[0] + "', '" + hosts[1] + "']\n", 2, 0},
	} {
		put(tt.name, tt.text)
		got := w.read()
		if v := got.Values[key].Processed; v.Value != 1000*float64(tt.consumers) || len(got.Problems()) != tt.problems {
			t.Errorf("%s %s: %+v, %v", tt.name, tt.text, v, got.Problems())
		}
		if strings.Contains(fmt.Sprint(got.Problems()), "hunter2") {
			t.Errorf("told: %v", got.Problems())
		}
		w.wait(15 * time.Second)
	}

	put("all.json", `[{"targets": ["`+hosts[0]+`"], "labels": {"team": "ledger"}}, {"targets": ["`+hosts[1]+`"]}]`)
	if v := found(t, filepath.Join(dir, "all.json")).read().Values[key].Processed; v.Value != 2000 {
		t.Errorf("JSON: %+v", v)
	}
	for place, want := range map[string]string{filepath.Join(dir, "none.yml"): "no such file", filepath.Join(dir, "b.yml"): "no consumer is found"} {
		if _, err := found(t, place).source.Poll(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", place, err, want)
		}
	}
}

func TestPlacesThatCannotBe(t *testing.T) {
	for _, place := range []string{"consumers", "dns+ftp://h", "dns+http://", "a/*/b.yml", "[.yml", "consumers.txt"} {
		if err := (consumer.Config{MetricsURL: []string{place}}).Validate(); err == nil || !strings.Contains(err.Error(), "--consumer.metrics-url") {
			t.Errorf("%s: %v", place, err)
		}
	}
}
