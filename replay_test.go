package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/crypto/bcrypt"

	"oncewatch/collectors/replay"
	"oncewatch/deploy/testenv"
)

// replayed is a group that has handled ten records of a topic.
func replayed(t *testing.T) (brokers, dsn string) {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	for i := range 10 {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: "payments", Headers: []kgo.RecordHeader{{Key: "event_id", Value: fmt.Append(nil, i)}}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	committed := kadm.Offsets{}
	committed.AddOffset("payments", 0, 10, -1)
	if err := kadm.NewClient(client).CommitAllOffsets(ctx, "ledger-writer", committed); err != nil {
		t.Fatal(err)
	}
	dsn = testenv.Postgres(t)
	execute(t, dsn, runbookTable+`INSERT INTO processed_events SELECT 'ledger-writer', n::text, 'payments', 0, n, now() - interval '1 hour' + n * interval '1 minute' FROM generate_series(0, 9) n`)
	return fake.ListenAddrs()[0], dsn
}

// replayIt runs the command.
func replayIt(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(t.Context(), append([]string{"replay", "--group=ledger-writer"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// Markers of three events vanish while an exporter runs. It knows the number; a
// first look knows that it does not; reading the records finds it again.
func TestReplay(t *testing.T) {
	t.Parallel()
	brokers, dsn := replayed(t)
	sources := []string{"--kafka.brokers=" + brokers, "--postgres.dsn=" + dsn}
	s := serve(t, append([]string{"--poll.interval=1s"}, sources...)...)
	const path = replay.Path + "?group=ledger-writer"
	s.waitFor(t, path, "nothing would be applied twice: the markers of all 10 records are there")
	for _, how := range [][]string{{"--exporter=" + s.url}, sources, append([]string{"--verify"}, sources...)} {
		if code, out, errs := replayIt(t, how...); code != 0 || !strings.Contains(out, "nothing would be applied twice") {
			t.Errorf("%q: exit code %d\n%s%s", how, code, out, errs)
		}
	}
	execute(t, dsn, `DELETE FROM processed_events WHERE "offset" < 3`)
	s.waitFor(t, path, "from earliest 3 events would be applied twice")
	plan := filepath.Join(t.TempDir(), "plan.csv")
	for _, c := range []struct {
		how  []string
		code int
		want replay.Counts
	}{
		{[]string{"--exporter=" + s.url}, 1, replay.Counts{Again: 10, Protected: 7, Twice: 3}},
		{[]string{"--exporter=" + s.url, "--to=offset:3"}, 0, replay.Counts{Again: 7, Protected: 7}},
		{sources, 2, replay.Counts{Again: 10, Protected: 7, Unknown: 3}},
		{append([]string{"--verify"}, sources...), 1, replay.Counts{Again: 10, Protected: 7, Twice: 3}},
	} {
		code, out, errs := replayIt(t, append(c.how, "--output=json", "--plan="+plan)...)
		var a replay.Answer
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%q: %v\n%s%s", c.how, err, out, errs)
		}
		if code != c.code || a.Totals != c.want || a.Topics[0].Partitions[0].SafeOffset != 3 {
			t.Errorf("%q: exit code %d, %+v, safe from %d", c.how, code, a.Totals, a.Topics[0].Partitions[0].SafeOffset)
		}
		if text, err := os.ReadFile(plan); err != nil || string(text) != "payments,0,3\n" || !strings.Contains(errs, "--group ledger-writer --reset-offsets --from-file "+plan+" --dry-run") {
			t.Errorf("%q: plan %q, %v\n%s", c.how, text, err, errs)
		}
		_ = os.Remove(plan)
	}
	if _, page := s.get(t, path+"&to=offset:2&format=text"); !strings.HasPrefix(page, "Safe back to ") || !strings.Contains(page, "from offset 2 1 event would be applied twice.\n") {
		t.Errorf("as text:\n%s", page)
	}
}

// Bad input is one line that names it, and nothing is printed before it.
func TestReplayBadInput(t *testing.T) {
	t.Parallel()
	brokers, dsn := replayed(t)
	sources := []string{"--kafka.brokers=" + brokers, "--postgres.dsn=" + dsn}
	s := serve(t, append([]string{"--poll.interval=1s"}, sources...)...)
	s.waitFor(t, replay.Path+"?group=ledger-writer", "verdict")
	both := filepath.Join(t.TempDir(), "oncewatch.yml")
	other := testenv.Postgres(t)
	execute(t, other, runbookTable+`INSERT INTO processed_events VALUES ('ledger-writer', '0', 'payments', 0, 0)`)
	if err := os.WriteFile(both, []byte("stores:\n  - {database: orders, dsn: '"+dsn+"'}\n  - {database: billing, dsn: '"+other+"'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stores := []string{"--kafka.brokers=" + brokers, "--config.file=" + both}
	for _, c := range []struct {
		args []string
		want string
	}{
		{append([]string{"--group=ledger"}, sources...), "--group: Kafka keeps no offsets of a group ledger; there is ledger-writer"},
		{append([]string{"--topic=payment"}, sources...), "--topic: group ledger-writer has no offsets on a topic payment; there is payments"},
		{append([]string{"--to=offset:11"}, sources...), "--to: offset 11 lies beyond the end of every partition of topic payments (partition 0 ends at 10)"},
		{[]string{"--to=offset:11", "--exporter=" + s.url}, "the exporter at " + s.url + replay.Path + ": to: offset 11 lies beyond the end of every partition of topic payments (partition 0 ends at 10)"},
		{[]string{"--exporter=" + s.url, "--verify"}, "--exporter and --verify are two ways to know: set one of them"},
		{[]string{"--exporter=" + s.url + "/metrics/"}, "the exporter at " + s.url + "/metrics" + replay.Path + ": it is not there: the address is another's, or of an older oncewatch"},
		{[]string{"--exporter=localhost"}, "--exporter: it is no address: want for example https://oncewatch.example:10077"},
		{append([]string{"--verify", "--event-id=id"}, sources...), `--event-id: "id" says nothing of where records carry their event id: want header:NAME, key or json:/path/in/value`},
		{append([]string{"--verify", "--event-id=key"}, sources...), "--event-id: by key none of 10 records has an event id (their headers: event_id): say where it is with header:NAME, key or json:/path"},
		{append([]string{"--plan=/nowhere/plan.csv"}, sources...), "--plan: /nowhere: no such file or directory"},
		{append([]string{"--rate-limit=-1"}, sources...), "--rate-limit: -1 is negative: leave it out for no limit"},
		{append([]string{"--verify"}, stores...), "--database: several stores have markers of group ledger-writer: say which, orders or billing"},
		{stores, "--database: several stores have markers of group ledger-writer: say which, billing or orders"},
		{append([]string{"--database=shop", "--verify"}, stores...), "--database: no store is named shop; there is orders, billing"},
		{[]string{"--kafka.brokers=127.0.0.1:1", "--postgres.dsn=" + dsn}, "Kafka at 127.0.0.1:1: no broker answered"},
	} {
		code, out, errs := replayIt(t, c.args...)
		line, rest, _ := strings.Cut(strings.TrimPrefix(errs, "oncewatch: "), "\n")
		if code != 2 || out != "" || !strings.HasPrefix(line, c.want) || rest != "" {
			t.Errorf("%q: exit code %d\n%s%s\nwant %s", c.args, code, out, errs, c.want)
		}
	}
	if code, out, errs := replayIt(t, append([]string{"--database=billing", "--verify"}, stores...)...); code != 1 || !strings.Contains(out, "9 events would be applied twice") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	execute(t, dsn, `TRUNCATE processed_events`)
	if code, _, errs := replayIt(t, append([]string{"--verify"}, sources...)...); code != 2 || !strings.Contains(errs, "--group: no marker of group ledger-writer was found in ") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// The answer is as protected as the metrics: by the certificate and the
// password of --web.config.file, which the command brings along.
func TestReplayAsksOverTLSWithAPassword(t *testing.T) {
	t.Parallel()
	brokers, dsn := replayed(t)
	authority := testenv.NewAuthority(t)
	authority.Sign("exporter")
	hash, err := bcrypt.GenerateFromPassword([]byte("s3cret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	web := file("web.yml", fmt.Sprintf("tls_server_config:\n  cert_file: %s\n  key_file: %s\nbasic_auth_users:\n  ops: %s\n", authority.Path("exporter", "crt"), authority.Path("exporter", "key"), hash))
	s := serve(t, "--kafka.brokers="+brokers, "--postgres.dsn="+dsn, "--poll.interval=1s", "--web.config.file="+web)
	address := strings.Replace(s.url, "http://", "https://", 1)
	ca := "--exporter.tls.ca-file=" + authority.Path("authority", "crt")
	user := []string{"--exporter.username=ops", "--exporter.password-file=" + file("password", "s3cret\n")}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "certificate signed by unknown authority"},
		{[]string{ca}, "HTTP 401: see --exporter.username, --exporter.password-file"},
		{[]string{ca, "--exporter.username=ops"}, "--exporter.username and --exporter.password-file: one is set without the other"},
		{[]string{ca, "--exporter.username=ops", "--exporter.password-file=" + file("wrong", "wrong")}, "HTTP 401"},
	} {
		if code, out, errs := replayIt(t, append(c.args, "--exporter="+address)...); code != 2 || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%q: exit code %d\n%s%s", c.args, code, out, errs)
		}
	}
	if code, out, errs := replayIt(t, append(user, ca, "--exporter="+address)...); code != 0 || !strings.Contains(out, "the markers of all 10 records are there") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}
