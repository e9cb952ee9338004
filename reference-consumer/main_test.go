//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/deadletter"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/stream"
)

// program runs a command to its end.
func program(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	code = execute(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

func ok(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := program(t, args...)
	if code != 0 {
		t.Fatalf("%v: exit %d\n%s%s", args, code, out, errs)
	}
	return out
}

func TestTheWholeProgram(t *testing.T) {
	t.Parallel()
	dsn, brokers := testenv.Postgres(t), strings.Join(fake(t), ",")
	with := func(args ...string) []string {
		return append(args, "--postgres.dsn="+dsn, "--kafka.brokers="+brokers, "--web.listen-address=127.0.0.1:0")
	}
	if code, _, errs := program(t, with("deadletters", "list")...); code != 1 || !strings.Contains(errs, "run `reference-consumer migrate`") {
		t.Errorf("before migrate: exit %d, %q, want 1 and the remedy", code, errs)
	}
	if out := ok(t, with("migrate")...); !strings.Contains(out, "version") {
		t.Errorf("migrate: %q", out)
	}
	ok(t, with("migrate")...) // again: nothing to do
	out := ok(t, with("produce", "--count=300", "--rate=0", "--duplicates=0", "--poison=0.1", "--reuse-ids=0.1", "--gaps=0.1", "--partitions=3")...)
	var events, twice, reused, left, poisoned int
	if _, err := fmt.Sscanf(out, "published %d events: %d twice, %d with a reused id, %d left out, %d poisoned", &events, &twice, &reused, &left, &poisoned); err != nil || events+left != 300 || twice != 0 {
		t.Fatalf("%q: %v", out, err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var log testenv.Log
	exit := make(chan int, 1)
	go func() {
		exit <- execute(ctx, with("run", "--batch-size=50", "--log.format=json", "--web.telemetry-path=/m"), io.Discard, &log)
	}()
	address := ""
	testenv.Eventually(t, "the address", func() bool {
		m := regexp.MustCompile(`"serving metrics","address":"([^"]+)"`).FindStringSubmatch(log.String())
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	testenv.Eventually(t, "readiness", func() bool { code, _ := get("/-/ready"); return code == 200 })
	// The faults overlap: poison may carry a reused id, and the id of an event
	// left out may be reused.
	applied := sound(t, brokers, events)
	testenv.Eventually(t, "all events", func() bool {
		_, body := get("/m")
		m := regexp.MustCompile(`events_handled_total\{.*outcome="processed".*\} (\d+)`).FindStringSubmatch(body)
		return m != nil && m[1] == fmt.Sprint(applied)
	})
	if code, _ := get("/-/healthy"); code != 200 {
		t.Errorf("healthy: %d", code)
	}
	stop()
	if code := <-exit; code != 0 {
		t.Errorf("run: exit %d after its context ended\n%s", code, log.String())
	}
	for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if fields["msg"] == "event dead-lettered" {
			for _, f := range []string{"event_id", "consumer_group", "topic", "partition", "offset"} {
				if _, ok := fields[f]; !ok {
					t.Errorf("%q lacks %s", line, f)
				}
			}
		}
	}

	// Dead letters: listed, shown, sent again.
	var letters []deadletter.Letter
	if err := json.Unmarshal([]byte(ok(t, with("deadletters", "list", "--output=json")...)), &letters); err != nil {
		t.Fatal(err)
	}
	if len(letters) != events-applied {
		t.Errorf("%d dead letters, want %d", len(letters), events-applied)
	}
	var poison, conflict deadletter.Letter
	conflicts := 0
	for _, l := range letters {
		if l.Reason == "id_conflict" {
			conflict = l
			conflicts++
		} else {
			poison = l
		}
	}
	if table := ok(t, with("deadletters", "list", "--reason=id_conflict")...); conflicts == 0 || strings.Count(table, "\n") != 1+conflicts || !strings.Contains(table, "FIRST OFFSET") {
		t.Errorf("table of %d id conflicts:\n%s", conflicts, table)
	}
	if shown := ok(t, with("deadletters", "show", fmt.Sprint(poison.ID))...); !strings.Contains(shown, poison.EventID) {
		t.Errorf("show: %s", shown)
	}
	if out := ok(t, with("deadletters", "requeue", fmt.Sprint(poison.ID))...); !strings.Contains(out, poison.EventID) {
		t.Errorf("requeue: %s", out)
	}
	for _, c := range []struct {
		why  string
		want string
		args []string
	}{
		{"sent already", "--force", []string{"deadletters", "requeue", fmt.Sprint(poison.ID)}},
		{"id conflict", "an id of its own", []string{"deadletters", "requeue", fmt.Sprint(conflict.ID)}},
		{"no such letter", "no such dead letter", []string{"deadletters", "show", "999999"}},
		{"no such waiver", "marker-retention", []string{"run", "--allow=everything"}},
		{"no such topic", "payments-nowhere", []string{"produce", "--topic=payments-nowhere"}},
		{"a retention below 0", "--retention=-24h", []string{"run", "--retention=-24h"}},
		{"no session timeout", "--session-timeout", []string{"run", "--session-timeout=0s"}},
		{"a path of the probes", "--web.telemetry-path", []string{"run", "--web.telemetry-path=/-/ready"}},
		{"no URL", "--notify", []string{"run", "--notify=foo"}},
		{"no time between runs", "--every", []string{"prune", "--every=-5s"}},
		{"no such waiver of prune", "marker-retention", []string{"prune", "--allow=nope"}},
		{"a share above 1", "between 0 and 1", []string{"produce", "--duplicates=1.5"}},
	} {
		if code, _, errs := program(t, with(c.args...)...); code != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, %q, want 1 and %q", c.why, code, errs, c.want)
		}
	}
	if code, _, _ := program(t, with("run", "--log.level=loud")...); code != 2 {
		t.Errorf("a flag's wrong value: exit %d, want 2", code)
	}
	if code, _, _ := program(t, with("run", "--retention=8x")...); code != 2 {
		t.Errorf("a wrong duration: exit %d, want 2", code)
	}

	// The markers live shorter than the topic: 78, one line for each reason.
	code, _, errs := program(t, with("run", "--retention=3d", "--log.level=error")...)
	if code != 78 || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "marker-retention: ") {
		t.Errorf("run --retention=3d: exit %d, %q, want 78 and one line", code, errs)
	}
	code, _, errs = program(t, with("prune", "--once", "--retention=3d", "--log.level=error")...)
	if code != 78 || !strings.Contains(errs, "raise --retention") {
		t.Errorf("prune --retention=3d: exit %d, %q, want 78", code, errs)
	}
	ok(t, with("prune", "--once", "--retention=3d", "--allow=marker-retention")...)

	// A failover has read-only moments: 1, another start may succeed. Together
	// with what no restart mends it is 78.
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{conn.Config().Database}.Sanitize()+" SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := program(t, with("run", "--log.level=error")...); code != 1 || !strings.HasPrefix(errs, "primary: ") {
		t.Errorf("run on a read-only database: exit %d, %q, want 1", code, errs)
	}
	if code, _, errs := program(t, with("run", "--retention=3d", "--log.level=error")...); code != 78 {
		t.Errorf("run --retention=3d on a read-only database: exit %d, %q, want 78", code, errs)
	}
}

// sound asks the topic, which has n records, how many ids have a payment that
// can be applied.
func sound(t *testing.T, brokers string, n int) int {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.ConsumeTopics("payments"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ids := map[string]bool{}
	testenv.Eventually(t, "the topic's records", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			n--
			var p payments.Payment
			if p.Parse(r.Value) == nil && p.Amount != 0 {
				ids[stream.Decode(r).ID] = true
			}
		})
		return n == 0
	})
	return len(ids)
}

// The record of a dead letter is applied once it is sent again and its cause
// is gone.
func TestRequeuedLetterIsApplied(t *testing.T) {
	t.Parallel()
	s := newStage(t, testenv.Postgres(t), fake(t), "payments", 1)
	client, err := kgo.NewClient(s.client...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, "payments"); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "payments", Key: []byte("acct_7"), Value: []byte(`{"account":"acct_7","amount":4500}`),
		Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte("evt-42")}}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), "ALTER TABLE ledger_entries ADD CONSTRAINT closed CHECK (account <> 'acct_7')"); err != nil {
		t.Fatal(err)
	}
	p := s.start(nil)
	testenv.Eventually(t, "the dead letter", func() bool { n, err := s.query("SELECT count(*) FROM dead_letters"); return err == nil && n == 1 })
	if _, err := s.pool.Exec(t.Context(), "ALTER TABLE ledger_entries DROP CONSTRAINT closed"); err != nil {
		t.Fatal(err)
	}
	ok(t, "deadletters", "requeue", "1", "--postgres.dsn="+s.dsn, "--kafka.brokers="+strings.Join(s.spec.Brokers, ","))
	testenv.Eventually(t, "the entry", func() bool {
		n, err := s.query("SELECT count(*) FROM ledger_entries WHERE event_id = 'evt-42'")
		return err == nil && n == 1
	})
	ok(t, "deadletters", "requeue", "1", "--force", "--postgres.dsn="+s.dsn, "--kafka.brokers="+strings.Join(s.spec.Brokers, ","))
	if err := s.drained(20 * time.Second); err != nil {
		t.Error(err)
	}
	p.stop()
	if n, err := s.query("SELECT count(*) FROM ledger_entries"); err != nil || n != 1 {
		t.Errorf("%d entries after it was sent twice, want 1 (%v)", n, err)
	}
}
