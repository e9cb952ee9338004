package demo_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/checklist"
	"oncewatch/deploy/demo"
	"oncewatch/deploy/testenv"
)

var busy = flag.Duration("busy", 15*time.Second, "how long to look for false lines on a machine that has no time")

// row is a line of the page whose verdict is no ok and no unknown: its rule and
// its text.
var row = regexp.MustCompile(`(?s)<div class="row" id="([a-z-]+)-[0-9a-f]+">\n<div><span class="badge (?:warning|violated)">(.*?)\n</div>`)

// slow is the one line that may warn: on such a machine it is true.
const slow = "handle-latency"

// A correct consumer beside programs that keep every core busy: readings of the
// two sides lie far apart then, and still no line of the page, and none of an
// audit by the command, warns of what is not so.
//
//	go test ./deploy/demo -run TestNoFalseLineOnABusyMachine -busy 10m -timeout 20m -v
func TestNoFalseLineOnABusyMachine(t *testing.T) {
	program := testenv.Build(t, ".")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready, done := make(chan demo.Addresses, 1), make(chan error, 1)
	var out testenv.Log
	go func() {
		done <- demo.Run(ctx, demo.Options{
			Rate: 200, Listen: "127.0.0.1:0", Consumer: "127.0.0.1:0", Interval: time.Second,
			Ready: func(a demo.Addresses) { ready <- a },
		}, &out, slog.New(slog.DiscardHandler))
	}()
	var at demo.Addresses
	select {
	case at = <-ready:
	case err := <-done:
		t.Fatalf("ended early: %v\n%s", err, out.String())
	case <-time.After(2 * time.Minute):
		t.Fatalf("not ready:\n%s", out.String())
	}
	for range runtime.NumCPU() {
		hog := exec.CommandContext(ctx, "sh", "-c", "while kill -0 $PPID; do :; done")
		if err := hog.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = hog.Wait() }()
	}
	defer cancel() // before the hogs are waited for

	pages, audits, times, first := 0, 0, map[string]int{}, map[string]string{}
	warned := func(rule, text string) {
		if times[rule]++; times[rule] == 1 {
			first[rule] = text
		}
	}
	for end := time.Now().Add(*busy); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		pages++
		for _, found := range row.FindAllStringSubmatch(get(t, at.Exporter+"/"), -1) {
			warned(found[1], found[2])
		}
		if pages%20 != 1 {
			continue
		}
		audit := exec.CommandContext(ctx, program, "check", "--output=json", "--postgres.dsn="+at.DSN, "--kafka.brokers="+strings.Join(at.Brokers, ","),
			"--consumer.metrics-url="+at.Consumer, "--postgres.retention=8d", "--postgres.effect.table=ledger_entries", "--postgres.effect.consumer-group="+demo.Group)
		audit.Stderr = os.Stderr
		stdout, err := audit.Output()
		var report checklist.Report
		if bad := json.Unmarshal(stdout, &report); bad != nil {
			t.Fatalf("check: %v, %v\n%s", err, bad, stdout)
		}
		audits++
		for _, l := range report.Lines {
			if l.Verdict == checklist.Warning || l.Verdict == checklist.Violated {
				warned(l.Rule, fmt.Sprintf("%+v", l))
			}
		}
	}
	wrong := 0
	for rule, n := range times {
		if rule != slow {
			wrong += n
			t.Errorf("%s warned %d times, first: %s", rule, n, first[rule])
		}
	}
	t.Logf("%d pages and %d audits in %s beside %d busy processes: %d false lines; events were truly slow on %d of them", pages, audits, *busy, runtime.NumCPU(), wrong, times[slow])
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
