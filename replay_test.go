package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/crypto/bcrypt"

	"oncewatch/collectors/replay"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// replayed is a group that has handled ten records of a topic.
func replayed(t *testing.T) (brokers, dsn string) {
	t.Helper()
	brokers, dsn, _ = replayedOn(t)
	return brokers, dsn
}

func replayedOn(t *testing.T) (brokers, dsn string, fake *kfake.Cluster) {
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
	return fake.ListenAddrs()[0], dsn, fake
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

// The rights of the exporter's user, and READ on one topic besides, are enough to
// read records: no right to a group, and none is made. What else is denied is one
// line each.
func TestReplayRights(t *testing.T) {
	t.Parallel()
	const login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
	s := testenv.KafkaServer(t, kafkaserver.Options{Protocol: "SASL_PLAINTEXT", Config: map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS", // the inner listener's
		"sasl.enabled.mechanisms": "PLAIN", "listener.name.client.plain.sasl.jaas.config": login + ` user_watcher="w" user_blind="b" user_nobody="n";`,
	}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Internal()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopics(ctx, 1, 1, nil, "payments", "hidden"); err != nil {
		t.Fatal(err)
	}
	committed := kadm.Offsets{}
	for _, topic := range []string{"payments", "hidden"} {
		for i := range 10 {
			if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Headers: []kgo.RecordHeader{{Key: "event_id", Value: fmt.Appendf(nil, "%s-%d", topic, i)}}}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		committed.AddOffset(topic, 0, 10, -1)
	}
	if err := admin.CommitAllOffsets(ctx, "ledger-writer", committed); err != nil {
		t.Fatal(err)
	}
	allow := func(user string, b *kadm.ACLBuilder, operations ...kadm.ACLOperation) {
		t.Helper()
		if _, err := admin.CreateACLs(ctx, b.Allow("User:"+user).AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral).Operations(operations...)); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{"watcher", "blind"} { // as deploy/privileges/grant-kafka.sh does
		allow(user, kadm.NewACLs().Topics("*"), kadm.OpDescribe, kadm.OpDescribeConfigs)
		allow(user, kadm.NewACLs().Groups("*"), kadm.OpDescribe)
	}
	allow("watcher", kadm.NewACLs().Topics("payments"), kadm.OpRead)
	allow("nobody", kadm.NewACLs().Groups("*"), kadm.OpDescribe)

	dsn := testenv.Postgres(t)
	execute(t, dsn, runbookTable+`INSERT INTO processed_events SELECT 'ledger-writer', t || '-' || n, t, 0, n FROM generate_series(0, 9) n, unnest('{payments,hidden}'::text[]) t`)
	as := func(user string, args ...string) (int, string, string) {
		t.Helper()
		return replayIt(t, append(args, "--kafka.brokers="+strings.Join(s.Brokers(), ","), "--postgres.dsn="+dsn,
			"--kafka.sasl.mechanism=PLAIN", "--kafka.sasl.username="+user, "--kafka.sasl.password="+user[:1])...)
	}
	state := func() string {
		t.Helper()
		groups, err := admin.ListGroups(ctx)
		if err != nil {
			t.Fatal(err)
		}
		offsets, err := admin.FetchOffsets(ctx, "ledger-writer")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(groups.Groups(), offsets.Offsets().Sorted())
	}
	before := state()
	if code, out, errs := as("watcher", "--verify", "--topic=payments"); code != 0 || !strings.Contains(out, "10 records read in") {
		t.Errorf("with READ on the topic: exit code %d\n%s%s", code, out, errs)
	}
	if after := state(); after != before {
		t.Errorf("reading changed groups or offsets: %s, before %s", after, before)
	}
	for _, c := range []struct {
		user string
		args []string
		want string
	}{
		{"watcher", []string{"--verify"}, "records of topic hidden may not be read: grant READ on it, or name another with --topic\n"},
		{"blind", []string{"--verify"}, "records of topic hidden, payments may not be read: grant READ on it, or name another with --topic\n"},
		{"nobody", nil, "--group: Kafka shows no offsets of group ledger-writer: it has none, or DESCRIBE on its topics is not granted\n"},
		{"nobody", []string{"--verify", "--topic=payments"}, "--topic: topic payments cannot be read: TOPIC_AUTHORIZATION_FAILED: Not authorized to access topics: [Topic authorization failed.]: grant DESCRIBE on it"},
	} {
		if code, out, errs := as(c.user, c.args...); code != 2 || out != "" || !strings.HasPrefix(errs, "oncewatch: "+c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s %q: exit code %d\n%s%s", c.user, c.args, code, out, errs)
		}
	}
}

// Bad input is one line that names it, and nothing is printed before it; what
// only Kafka will mind is a warning under the answer.
func TestReplayBadInput(t *testing.T) {
	t.Parallel()
	brokers, dsn, fake := replayedOn(t)
	fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "denied", Err: kerr.TopicAuthorizationFailed, Count: -1})
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumerGroup("ledger-writer"), kgo.ConsumeTopics("payments"), kgo.DisableAutoCommit())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	elsewhere := kadm.Offsets{}
	elsewhere.AddOffset("payments", 0, 10, -1)
	if err := kadm.NewClient(client).CommitAllOffsets(t.Context(), "elsewhere", elsewhere); err != nil {
		t.Fatal(err)
	}
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
		{append([]string{"--group=ledger"}, sources...), "--group: Kafka keeps no offsets of a group ledger; the nearest names are elsewhere, ledger-writer"},
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
		{append([]string{"--to=offset:11", "--verify"}, sources...), "--to: offset 11 lies beyond the end of every partition of topic payments (partition 0 ends at 10)"},
		{append([]string{"--to=2030-01-01T00:00:00Z"}, sources...), "--to: 2030-01-01T00:00:00Z lies in the future"},
		{append([]string{"--to=yesterday"}, sources...), `--to: "yesterday" is none of earliest, a time such as 2026-11-28T04:13:00Z, a time ago such as -36h, offset:N`},
		{append([]string{"--group=elsewhere"}, sources...), "--group: no marker of group elsewhere was found in "},
		{append([]string{"--group=elsewhere", "--verify"}, sources...), "--group: no marker of group elsewhere was found in "},
		{append([]string{"--group=ledger-writer", "--topic=denied", "--verify"}, sources...), "--topic: topic denied cannot be read: TOPIC_AUTHORIZATION_FAILED: Not authorized to access topics: [Topic authorization failed.]: grant DESCRIBE on it"},
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
	// Kafka would refuse the reset, or begin elsewhere than was asked: a warning.
	testenv.Eventually(t, "a member has joined", func() bool {
		groups, err := kadm.NewClient(client).DescribeGroups(t.Context(), "ledger-writer")
		return err == nil && groups["ledger-writer"].State == "Stable"
	})
	s.waitFor(t, replay.Path+"?group=ledger-writer", "active member")
	for _, how := range [][]string{sources, append([]string{"--verify"}, sources...), {"--exporter=" + s.url}} {
		for _, c := range []struct{ to, want string }{
			{"earliest", "Warning: Group ledger-writer has 1 active member (it is stable): Kafka refuses to reset its offsets until they are stopped.\n"},
			{"2020-01-01T00:00:00Z", "Warning: 2020-01-01T00:00:00Z lies before the first record of topic payments: the same as earliest.\n"},
		} {
			if code, out, errs := replayIt(t, append([]string{"--to=" + c.to}, how...)...); code != 0 || !strings.Contains(out, c.want) || errs != "" {
				t.Errorf("%q to %s: exit code %d\n%s%s", how, c.to, code, out, errs)
			}
		}
	}
	execute(t, dsn, `TRUNCATE processed_events`)
	if code, _, errs := replayIt(t, append([]string{"--verify"}, sources...)...); code != 2 || !strings.Contains(errs, "--group: no marker of group ledger-writer was found in ") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// Kafka has forgotten the group's offsets: the records up to the highest that
// has a marker are judged, and what came after it was never handled. The topic
// must be named; one that the group never handled is refused.
func TestReplayOfAGroupWhoseOffsetsAreGone(t *testing.T) {
	t.Parallel()
	brokers, dsn := replayed(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.DeleteGroup(t.Context(), "ledger-writer"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTopics(t.Context(), 1, 1, nil, "refunds"); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"payments", "payments", "refunds"} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte("new")}}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, dsn, `DELETE FROM processed_events WHERE "offset" < 3`)
	plan := filepath.Join(t.TempDir(), "plan.csv")
	verify := []string{"--verify", "--kafka.brokers=" + brokers, "--postgres.dsn=" + dsn}
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"--topic=payments", "--plan=" + plan}, 1, []string{"from earliest 3 events would be applied twice.", "Warning: Kafka keeps no offsets of group ledger-writer on 1 partition of payments"}},
		{[]string{"--topic=payments", "--to=offset:3"}, 0, []string{"the markers of all 7 records are there"}},
		// Nothing read tells where the group stands.
		{[]string{"--topic=payments", "--to=offset:11"}, 2, []string{"--topic: Kafka keeps no offset of the group on topic payments, and no record there has a marker of it"}},
		{nil, 2, []string{"--topic: Kafka keeps no offsets of group ledger-writer any more, though it has markers: say which topic to read"}},
		{[]string{"--topic=refunds"}, 2, []string{"--topic: Kafka keeps no offset of the group on topic refunds, and no record there has a marker of it: it has never handled the topic, or all of its markers are gone"}},
		{[]string{"--topic=payment"}, 2, []string{"--group: Kafka keeps no offsets of a group ledger-writer"}},
	} {
		code, out, errs := replayIt(t, append(c.args, verify...)...)
		if code != c.code {
			t.Errorf("%q: exit code %d", c.args, code)
		}
		for _, want := range c.want {
			if !strings.Contains(out+errs, want) {
				t.Errorf("%q: lacks %q\n%s%s", c.args, want, out, errs)
			}
		}
	}
	if text, err := os.ReadFile(plan); err != nil || string(text) != "payments,0,3\n" {
		t.Errorf("plan %q, %v", text, err)
	}
	// A first look counts the markers instead, and comes to the same place.
	if code, out, errs := replayIt(t, "--kafka.brokers="+brokers, "--postgres.dsn="+dsn); code != 2 || !strings.Contains(out, "up to 3 events would be applied twice, or none") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
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
