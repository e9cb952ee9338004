// Package alertmanager tests the example configuration beside it with amtool and
// with a real Alertmanager.
package alertmanager

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const config = "alertmanager.yml"

// alertLabels are the labels every alert really has when it fires, as the unit
// tests of the rules state them.
func alertLabels(t *testing.T) map[string]map[string]string {
	t.Helper()
	names, err := filepath.Glob("../../alerts/tests/annotations_*.test.yml")
	if err != nil || len(names) == 0 {
		t.Fatal("no unit tests of the alerts", err)
	}
	labels := map[string]map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Tests []struct {
				Alerts []struct {
					Name string `yaml:"alertname"`
					Exp  []struct {
						Labels map[string]string `yaml:"exp_labels"`
					} `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			} `yaml:"tests"`
		}
		if err := yaml.Unmarshal(text, &file); err != nil {
			t.Fatal(name, err)
		}
		for _, test := range file.Tests {
			for _, alert := range test.Alerts {
				labels[alert.Name] = maps.Clone(alert.Exp[0].Labels)
				labels[alert.Name]["alertname"] = alert.Name
			}
		}
	}
	return labels
}

func TestConfigLoads(t *testing.T) {
	amtool(t, testenv.Tool(t, "amtool", "check-config", config))
}

func amtool(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("amtool: %v\n%s%s", err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// Each alert goes where its severity says.
func TestRoutes(t *testing.T) {
	receiver := map[string]string{"critical": "pager", "warning": "tickets", "info": "digest"}
	tool := testenv.Tool(t, "amtool").Path
	for _, labels := range alertLabels(t) {
		args := []string{"config", "routes", "test", "--config.file=" + config, "--verify.receivers=" + receiver[labels["severity"]]}
		for k, v := range labels {
			args = append(args, k+"="+v)
		}
		if got := amtool(t, exec.Command(tool, args...)); !strings.HasPrefix(got, receiver[labels["severity"]]) {
			t.Errorf("%s: routed to %s", labels["alertname"], got)
		}
	}
	t.Run("anything else", func(t *testing.T) {
		if got := amtool(t, exec.Command(tool, "config", "routes", "test", "--config.file="+config, "alertname=Other")); got != "tickets" {
			t.Errorf("routed to %s", got)
		}
	})
}

// Each inhibition of the configuration, in a real Alertmanager: the target is
// inhibited by its source, and by that of another group or cluster it is not.
func TestInhibition(t *testing.T) {
	url := alertmanager(t)
	all := alertLabels(t)
	pairs := []struct{ source, target string }{
		{"ProcessedEventsRetentionBelowBroker", "ProcessedEventsRetentionRatioLow"},
		{"ConsumerRebalanceLoop", "ConsumerDuplicateRatioHigh"},
		{"ProducerEventIdReuse", "ConsumerDuplicateRatioHigh"},
		{"ConsumerOffsetCommitLagHigh", "ConsumerOffsetCommitLagWidening"},
		{"ConsumerHandleLatencyBudgetBurn", "ConsumerHandleLatencyP99High"},
		{"ConsumerLagNotRecoveringAfterRestart", "ConsumerLagGrowing"},
		{"ProcessedEventsExporterDown", "ProcessedEventsExporterTargetDown"},
		{"ProcessedEventsExporterDown", "ProcessedEventsExporterPollFailing"},
		{"ProcessedEventsExporterDown", "ProcessedEventsExporterPollStale"},
		{"ProcessedEventsExporterTargetDown", "ProcessedEventsExporterPollFailing"},
		{"ProcessedEventsExporterTargetDown", "ProcessedEventsExporterPollStale"},
		{"ProcessedEventsExporterPollStale", "ProcessedEventsExporterPollFailing"},
		{"ProcessedEventsExporterPollStale", "ProcessedEventsRetentionUnverifiable"},
	}
	// Each pair gets a cluster of its own, so that no pair silences another.
	var send []map[string]string
	want := map[string]bool{} // cluster/alert → inhibited
	for i, pair := range pairs {
		source, target := all[pair.source], all[pair.target]
		if source == nil || target == nil {
			t.Fatalf("%v: no such alert", pair)
		}
		if source["collector"] != "" {
			source = maps.Clone(source)
			source["collector"] = "topics"
		}
		// What both have is the same, as it is when one follows from the other.
		target = maps.Clone(target)
		for k := range target {
			if v, ok := source[k]; ok && k != "alertname" && k != "severity" {
				target[k] = v
			}
		}
		add := func(cluster string, labels map[string]string, inhibited bool) {
			labels = maps.Clone(labels)
			labels["cluster"] = cluster
			send = append(send, labels)
			want[cluster+"/"+labels["alertname"]] = inhibited
		}
		add(fmt.Sprint("together", i), source, false)
		add(fmt.Sprint("together", i), target, true)
		add(fmt.Sprint("alone", i), target, false)
		if label := "consumer_group"; source[label] != "" {
			add(fmt.Sprint("groups", i), source, false)
			target[label] = "another"
			add(fmt.Sprint("groups", i), target, false)
		}
	}
	post(t, url, send)

	deadline := time.Now().Add(time.Minute)
	for {
		got, names := alertStates(t, url)
		if maps.Equal(got, want) {
			break
		}
		if time.Now().After(deadline) {
			for _, key := range slices.Sorted(maps.Keys(want)) {
				if state, ok := got[key]; !ok || state != want[key] {
					t.Errorf("%s: inhibited %v, want %v (known: %v)", key, state, want[key], ok)
				}
			}
			t.Fatalf("%d alerts known of %d", len(names), len(send))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// alertmanager starts Debian's Alertmanager with the configuration and returns
// its address.
func alertmanager(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("prometheus-alertmanager")
	if err != nil {
		testenv.Missing(t, "Alertmanager (Debian package prometheus-alertmanager)", err)
	}
	address := testenv.FreeAddress(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "--config.file="+config, "--storage.path="+t.TempDir(),
		"--web.listen-address="+address, "--cluster.listen-address=", "--log.level=warn")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-done
		if t.Failed() {
			t.Logf("Alertmanager: %s", &log)
		}
	})
	url := "http://" + address
	deadline := time.Now().Add(time.Minute)
	for {
		response, err := http.Get(url + "/-/ready")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return url
			}
		}
		select {
		case err := <-done:
			done <- err
			t.Fatalf("Alertmanager ended: %v\n%s", err, &log)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("Alertmanager is not ready: %v", err)
		}
	}
}

func post(t *testing.T, url string, all []map[string]string) {
	t.Helper()
	type alert struct {
		Labels map[string]string `json:"labels"`
	}
	var body []alert
	for _, labels := range all {
		body = append(body, alert{labels})
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(url+"/api/v2/alerts", "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(response.Body)
		t.Fatalf("post alerts: %s %s", response.Status, message)
	}
}

// alertStates tells for each cluster/alert whether it is inhibited.
func alertStates(t *testing.T, url string) (inhibited map[string]bool, names []string) {
	t.Helper()
	response, err := http.Get(url + "/api/v2/alerts")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var all []struct {
		Labels map[string]string `json:"labels"`
		Status struct {
			InhibitedBy []string `json:"inhibitedBy"`
		} `json:"status"`
	}
	if err := json.NewDecoder(response.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	inhibited = map[string]bool{}
	for _, alert := range all {
		name := alert.Labels["cluster"] + "/" + alert.Labels["alertname"]
		names = append(names, name)
		inhibited[name] = len(alert.Status.InhibitedBy) > 0
	}
	return inhibited, names
}
