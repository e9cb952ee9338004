package retention_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/replay"
	"oncewatch/collectors/retention"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// replayed is what oncewatch replay answers, from what the exporter has seen.
func (s *stack) replayed(group, topic, to string) *replay.Answer {
	s.Helper()
	one := s.look(group, topic)
	seen := replay.Seen{Databases: []string{one.Database}}
	seen.Groups, _ = s.exporter.groups.Latest().(*kafka.Groups)
	seen.Topics, _ = s.exporter.topics.Latest().(*kafka.Topics)
	seen.Retention, _ = s.exporter.retained.Latest().(*retention.Snapshot)
	a, err := seen.Answer(s.ctx(), replay.Question{Group: group, Topic: topic, To: to}, s.exporter.kafka, time.Now())
	if err != nil {
		s.Fatal(err)
	}
	return a
}

// plan is the answer's plan, by partition.
func (s *stack) plan(a *replay.Answer) (text string, offsets map[int32]int64) {
	s.Helper()
	var b strings.Builder
	if err := a.WritePlan(&b); err != nil {
		s.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
	if err != nil {
		s.Fatal(err)
	}
	offsets = map[int32]int64{}
	for _, row := range rows {
		p, err1 := strconv.Atoi(row[1])
		at, err2 := strconv.ParseInt(row[2], 10, 64)
		if err1 != nil || err2 != nil {
			s.Fatal(row)
		}
		offsets[int32(p)] = at
	}
	return b.String(), offsets
}

// planned resets a group by the plan, lets it handle everything again, and
// finds nothing applied twice.
func (s *stack) planned(what, group, topic string) {
	s.Helper()
	before := s.twice(group, topic)
	a := s.replayed(group, topic, "earliest")
	_, offsets := s.plan(a)
	s.resetTo(group, topic, offsets)
	consumer{stack: s, group: group, topic: topic}.run()
	if after := s.twice(group, topic); fmt.Sprint(after) != fmt.Sprint(before) {
		s.Errorf("%s: group %s, topic %s: reset by the plan %v, applied twice %v, before %v", what, group, topic, offsets, after, before)
	}
	s.Logf("%s: %s", what, a.Sentence)
}

// For any target the number that is announced is the number applied twice.
func TestReplayToAnyTarget(t *testing.T) {
	t.Parallel()
	s := fakeStack(t, runbookDDL)
	topic := s.topic("payments", 2, nil)
	s.produce(topic, 2, 1000, time.Now().Add(-10*day), 14*time.Minute)
	middle := time.Now().Add(-6 * day).UTC().Truncate(time.Second)
	targets := []string{"earliest", "offset:0", "offset:200", "offset:900", "-8d", "-30h", middle.Format(time.RFC3339), "-11d"}
	group := func(i int) string { return fmt.Sprint("group-", i) }
	for i := range targets {
		consumer{stack: s, group: group(i), topic: topic, at: whenWritten}.run()
	}
	s.start()
	s.announced(group(0), topic)
	for i := range targets {
		s.prune(group(i), 3*day)
	}
	s.exec(`DELETE FROM processed_events WHERE partition = 1 AND "offset" BETWEEN 900 AND 909`)
	for i, target := range targets {
		a := s.replayed(group(i), topic, target)
		to := map[int32]int64{}
		for _, p := range a.Topics[0].Partitions {
			to[p.Partition] = p.Target
		}
		s.resetTo(group(i), topic, to)
		consumer{stack: s, group: group(i), topic: topic}.run()
		if n := total(s.twice(group(i), topic)); n != a.Totals.Twice || a.Totals.Unknown != 0 {
			t.Errorf("to %s: announced %+v, applied twice %d", target, a.Totals, n)
		}
		t.Log(a.Sentence)
	}
}

// Kafka's own tool takes the plan as it is, and a reset to earliest by the tool
// applies the announced number.
func TestReplayByKafkasOwnTool(t *testing.T) {
	t.Parallel()
	broker := testenv.KafkaServer(t, kafkaserver.Options{})
	tool, err := kafkaserver.Tool(t.Context(), "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand")
	if err != nil {
		testenv.Missing(t, "Kafka's command line tools", err)
	}
	s := newStack(t, broker.Brokers(), runbookDDL)
	topic := s.topic("payments", 2, nil)
	s.produce(topic, 2, 1000, time.Now().Add(-10*day), 14*time.Minute)
	consumer{stack: s, group: "ledger-writer", topic: topic, at: whenWritten}.run()
	s.start()
	s.announced("ledger-writer", topic)
	s.prune("ledger-writer", 3*day)
	reset := func(args ...string) string {
		t.Helper()
		args = append(append(tool[1:], "--bootstrap-server", strings.Join(broker.Brokers(), ","), "--group", "ledger-writer", "--reset-offsets"), args...)
		out, err := exec.CommandContext(s.ctx(), tool[0], args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	committed := func() string {
		t.Helper()
		got, err := s.admin.FetchOffsets(s.ctx(), "ledger-writer")
		if err != nil {
			t.Fatal(err)
		}
		at := map[int32]int64{}
		got.Each(func(o kadm.OffsetResponse) { at[o.Partition] = o.At })
		return fmt.Sprint(at)
	}
	a := s.replayed("ledger-writer", topic, "earliest")
	text, offsets := s.plan(a)
	file := filepath.Join(t.TempDir(), "plan.csv")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	before := committed()
	out := reset("--from-file", file, "--dry-run")
	for p, at := range offsets {
		if at < 700 || !regexp.MustCompile(fmt.Sprintf(`(?m)^ledger-writer\s+payments\s+%d\s+%d\s*$`, p, at)).MatchString(out) {
			t.Errorf("partition %d, plan %d: the tool says\n%s", p, at, out)
		}
	}
	if committed() != before {
		t.Errorf("a dry run has moved the offsets to %s", committed())
	}
	reset("--from-file", file, "--execute")
	if got := committed(); got != fmt.Sprint(offsets) {
		t.Errorf("the group stands at %s, the plan was %v", got, offsets)
	}
	consumer{stack: s, group: "ledger-writer", topic: topic}.run()
	if n := total(s.twice("ledger-writer", topic)); n != 0 {
		t.Errorf("reset by the plan, %d applied twice", n)
	}
	a = s.replayed("ledger-writer", topic, "earliest")
	reset("--topic", topic, "--to-earliest", "--execute")
	consumer{stack: s, group: "ledger-writer", topic: topic}.run()
	if n := total(s.twice("ledger-writer", topic)); n != a.Totals.Twice || n == 0 {
		t.Errorf("reset to earliest, announced %+v, applied twice %d", a.Totals, n)
	}
	t.Log(a.Sentence)
}
