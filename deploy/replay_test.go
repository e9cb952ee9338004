package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

var shell = regexp.MustCompile("(?s)```sh\n(.*?)```")

// An on-call person follows alerts/runbooks/replay.md word for word, from an
// exposure to the check after the reset: markers absorb what is read again,
// nothing is applied twice, and what a reset to earliest would have applied
// twice is what the page had said.
func TestReplayRunbook(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel) // after the programs have been stopped
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "alerts", "runbooks", "replay.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range shell.FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	if len(blocks) != 6 {
		t.Fatalf("%d blocks of commands, want one for each of six steps", len(blocks))
	}
	for _, tool := range []string{"psql", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			testenv.Missing(t, tool, err)
		}
	}
	broker := testenv.KafkaServer(t, kafkaserver.Options{})
	tool, err := kafkaserver.Tool(ctx, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")
	if err != nil {
		testenv.Missing(t, "Kafka's command line tools", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kafka-consumer-groups.sh"), []byte("#!/bin/sh\nexec '"+strings.Join(tool, "' '")+"' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	dsn := testenv.Postgres(t)
	pg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	exporter, consumer := testenv.FreeAddress(t), testenv.FreeAddress(t)
	env := append(os.Environ(),
		"PATH="+dir+":"+filepath.Dir(program(t, "oncewatch"))+":"+os.Getenv("PATH"),
		"PGHOST="+pg.Host, fmt.Sprint("PGPORT=", pg.Port), "PGUSER="+pg.User, "PGDATABASE="+pg.Database, "PGSSLMODE=disable",
		"BROKERS="+broker.Brokers()[0], "EXPORTER=http://"+exporter, "CONSUMER=http://"+consumer)
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
	follow := func(step int) string {
		t.Helper()
		out, err := command("bash", "-eu", "-o", "pipefail", "-c", blocks[step-1]).CombinedOutput()
		t.Logf("step %d:\n%s", step, out)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		return string(out)
	}
	says := func(step int, out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("step %d lacks %q", step, w)
			}
		}
	}
	start := func(name string, args ...string) (stop func()) {
		t.Helper()
		cmd := command(program(t, name), args...)
		var log testenv.Log
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		stopped := false
		stop = func() {
			if stopped {
				return
			}
			stopped = true
			_ = cmd.Process.Signal(os.Interrupt)
			if err := <-ended; err != nil {
				t.Errorf("%s: %v\n%s", name, err, log.String())
			}
		}
		t.Cleanup(stop)
		return stop
	}
	get := func(url string) string {
		resp, err := http.Get(url)
		if err != nil {
			return ""
		}
		defer func() { _ = resp.Body.Close() }()
		var b bytes.Buffer
		_, _ = io.Copy(&b, resp.Body)
		return b.String()
	}
	query := func(sql string) string {
		t.Helper()
		return strings.TrimSpace(output(t, command("psql", "-X", "-At", "-c", sql)))
	}
	run := func(args ...string) { output(t, command(program(t, "reference-consumer"), args...)) }

	// 600 events, handled; the exporter sees the markers of 200 go.
	run("migrate")
	run("produce", "--kafka.brokers="+broker.Brokers()[0], "--count=600", "--rate=0", "--duplicates=0", "--partitions=2")
	handle := func(outcome string, n int) (stop func()) {
		t.Helper()
		stop = start("reference-consumer", "run", "--kafka.brokers="+broker.Brokers()[0], "--web.listen-address="+consumer)
		want := fmt.Sprintf(`events_handled_total{consumer_group="ledger-writer",outcome="%s",topic="payments"} %d`, outcome, n)
		testenv.Eventually(t, want, func() bool { return strings.Contains(get("http://"+consumer+"/metrics"), want) })
		return stop
	}
	stop := handle("processed", 600)
	start("oncewatch", "serve", "--kafka.brokers="+broker.Brokers()[0], "--web.listen-address="+exporter, "--poll.interval=1s")
	path := "http://" + exporter + "/api/v1/replay?group=ledger-writer"
	testenv.Eventually(t, "the exporter knows that nothing is exposed", func() bool { return strings.Contains(get(path), `"protected": 600`) })
	query(`DELETE FROM processed_events WHERE (partition, "offset") IN (SELECT partition, "offset" FROM processed_events ORDER BY "offset", partition LIMIT 200)`)
	testenv.Eventually(t, "the exporter sees the exposure", func() bool { return strings.Contains(get(path), `"applied_twice": 200`) })

	says(1, follow(1), "from earliest 200 events would be applied twice.", "exit code 1")
	says(2, follow(2), "from earliest 200 events would be applied twice.", "exit code 1")
	stop()
	testenv.Eventually(t, "the group is empty", func() bool { return strings.Contains(follow(3), "Empty") })
	says(4, follow(4), "payments,0,", "payments,1,", "exit code 1")
	says(5, follow(5), "NEW-OFFSET")
	handle("duplicate", 400)
	says(6, follow(6), `outcome="duplicate",topic="payments"} 400`, `outcome="processed",topic="payments"} 0`, "600|0\n600|0")
}
