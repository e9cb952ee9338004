package retention_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/retention"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// The proof, on Apache Kafka and PostgreSQL: the number announced before a
// reset to earliest is the number of effects that a consumer applies twice
// after it, for each partition; and nothing is applied twice where it said 0.
// Days pass by the records' own timestamps, by which the broker rolls and
// deletes segments; where the broker's clock sets those, retentions are short.
func TestProof(t *testing.T) {
	t.Parallel()
	broker := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{
		"log.retention.check.interval.ms": "200",
		"log.initial.task.delay.ms":       "200",
		"log.segment.delete.delay.ms":     "100",
		"log.cleaner.backoff.ms":          "200",
	}})
	for name, f := range map[string]func(*stack){
		"pruner too quick":       prunerTooQuick,
		"segment does not roll":  segmentDoesNotRoll,
		"log append time":        logAppendTime,
		"aborted transactions":   abortedTransactions,
		"compaction":             compaction,
		"wrong clocks":           wrongClocks,
		"table without offsets":  tableWithoutOffsets,
		"exporter started again": exporterStartedAgain,
		"restarts with state":    restartsWithState,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ddl := runbookDDL
			if name == "table without offsets" {
				ddl = plainDDL
			}
			f(newStack(t, broker.Brokers(), ddl))
		})
	}
}

const (
	sevenDays = "604800000"
	halfDay   = "43200000"
)

// tenDays fills a topic with a record every ten minutes for ten days, which a
// group handles as they come. The broker keeps seven.
func (s *stack) tenDays(topic string, groups ...string) {
	s.Helper()
	s.topic(topic, 3, map[string]string{"retention.ms": "-1", "segment.ms": halfDay})
	s.produce(topic, 3, 10*144, time.Now().Add(-10*day), 10*time.Minute)
	for _, group := range groups {
		consumer{stack: s, group: group, topic: topic, at: whenWritten}.run()
	}
}

// keepSevenDays lets the broker delete what is older, a segment at a time.
func (s *stack) keepSevenDays(topic string) {
	s.Helper()
	s.configure(topic, "retention.ms", sevenDays)
	s.untilStart(topic, (10-7)*144-72-1)
	s.until("nothing more is deleted", func() bool {
		was := fmt.Sprint(s.starts(topic))
		time.Sleep(time.Second) // five rounds of the broker
		return was == fmt.Sprint(s.starts(topic))
	})
}

// (a) and (c): the failure table's third row, "markers pruned at 3 days against
// a 7-day topic; a consumer reset replays 4 days of events".
func prunerTooQuick(s *stack) {
	s.config.Retention = 3 * day
	const topic = "quick"
	s.tenDays(topic, "ledger-writer", "mailer")
	s.start()
	if n := s.prove("nothing pruned", "ledger-writer", topic); n != 0 {
		s.Errorf("%d announced", n)
	}
	s.keepSevenDays(topic)
	s.prune("ledger-writer", 8*day)
	s.prune("mailer", 8*day)
	if n := s.prove("8 days against 7", "ledger-writer", topic); n != 0 {
		s.Errorf("%d announced", n)
	}
	s.prune("ledger-writer", 3*day)
	told := s.look("ledger-writer", topic)
	if n := s.prove("3 days against 7", "ledger-writer", topic); n < 3*4*144 || n > 3*(4*144+72) {
		s.Errorf("%d announced, want four days of three partitions, and up to a segment more: %d to %d", n, 3*4*144, 3*(4*144+72))
	}
	if n := s.prove("the group whose markers were kept", "mailer", topic); n != 0 {
		s.Errorf("%d announced", n)
	}
	s.checkNumbers(told, 7*day, 7*day+12*time.Hour, 7*day+6*time.Hour, 3*day, 3*day)
	s.checkChanges(told, "retention of the markers: 3d -> at least 8d 6h", "retention.ms of topic quick: 7d -> at most 2d 5h (190800000)")

	// The operator sees duplicates, stops the replay, and goes on where the
	// group was.
	s.prune("mailer", 3*day)
	said, at := s.announced("mailer", topic), map[int32]int64{}
	for p := range said {
		at[p] = 10 * 144
	}
	s.reset("mailer", topic)
	consumer{stack: s, group: "mailer", topic: topic, limit: 500}.run()
	s.resetTo("mailer", topic, at)
	if left := total(s.announced("mailer", topic)); left != total(said)-500 || total(s.twice("mailer", topic)) != 500 {
		s.Errorf("an interrupted replay: announced %d, %d applied twice, %d announced then", total(said), total(s.twice("mailer", topic)), left)
	}
	s.prove("what the interrupted replay left", "mailer", topic)
}

// (b) and (c): eight days of markers against a seven-day topic are not enough
// where a segment is kept whole for its newest record.
func segmentDoesNotRoll(s *stack) {
	s.config.Retention = 8 * day
	const topic, rolls = "slow", "slow-rolls"
	from := time.Now().Add(-13*day - 30*time.Minute)
	for name, segment := range map[string]string{topic: sevenDays, rolls: halfDay} {
		s.topic(name, 2, map[string]string{"retention.ms": "-1", "segment.ms": segment})
		s.produce(name, 2, 13*24, from, time.Hour)
		consumer{stack: s, group: "g", topic: name, at: whenWritten}.run()
	}
	s.start()
	s.announced("g", topic)
	for _, name := range []string{topic, rolls} {
		s.configure(name, "retention.ms", sevenDays)
	}
	s.untilStart(rolls, (13-7)*24-13)
	for p, start := range s.starts(topic) {
		if start != 0 {
			s.Fatalf("partition %d starts at %d: its first segment was to stay", p, start)
		}
	}
	s.prune("g", 8*day)
	var told *retention.Series
	s.until("the topic's configuration is read again", func() bool {
		told = s.look("g", topic)
		return told.Numbers.Topic.Value == 7*day
	})
	if n := s.prove("the same records in segments that roll", "g", rolls); n != 0 {
		s.Errorf("%d announced", n)
	}
	if n := s.prove("a segment that does not roll", "g", topic); n != 2*(5*24+1) {
		s.Errorf("%d announced, want the five days between 13 days and 8 of two partitions: %d", n, 2*(5*24+1))
	}
	s.checkNumbers(told, 7*day, 14*day, 13*day+30*time.Minute, 8*day, 8*day)
	s.checkChanges(told, "retention of the markers: 8d -> at least 15d 10h", "segment.ms of topic slow: 7d -> at most 6h 32m (23520000)")
	if m := told.Margins[0]; m.Record != retention.WorstCase || m.Value.Round(time.Hour) != -6*day {
		s.Errorf("smallest margin: %s", m)
	}
}

func (s *stack) checkNumbers(one *retention.Series, topic, worst, oldest, configured, observed time.Duration) {
	s.Helper()
	n := one.Numbers
	for _, c := range []struct {
		what      string
		got, want time.Duration
		within    time.Duration
		ok        bool
	}{
		{retention.TopicRetention, n.Topic.Value, topic, 0, n.Topic.OK},
		{retention.WorstCase, n.WorstCase.Value, worst, 0, n.WorstCase.OK},
		{retention.OldestRecord, n.OldestRecord.Value, oldest, 7 * time.Hour, n.OldestRecord.OK},
		{retention.ConfiguredRetention, n.Configured.Value, configured, 0, n.Configured.OK},
		{retention.ObservedRetention, n.Observed.Value, observed, time.Hour + time.Minute, n.Observed.OK},
	} {
		if d := c.got - c.want; !c.ok || max(d, -d) > c.within {
			s.Errorf("%s: %s (known: %v), want %s within %s", c.what, c.got, c.ok, c.want, c.within)
		}
	}
}

func (s *stack) checkChanges(one *retention.Series, want ...string) {
	s.Helper()
	var got []string
	for _, c := range one.Changes {
		got = append(got, c.String())
	}
	if !slices.Equal(got, want) {
		s.Errorf("changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// case: message.timestamp.type=LogAppendTime, with a retention of seconds by the
// broker's clock, whatever the producers claim.
func logAppendTime(s *stack) {
	const topic = "append"
	s.topic(topic, 2, map[string]string{"message.timestamp.type": "LogAppendTime", "retention.ms": "-1", "segment.ms": "500"})
	s.produce(topic, 2, 100, time.Now(), 0)
	consumer{stack: s, group: "g", topic: topic}.run()
	s.start()
	s.announced("g", topic)
	time.Sleep(time.Second) // two segments of the broker
	s.produce(topic, 2, 80, time.Now().Add(-100*day), 0)
	s.configure(topic, "retention.ms", "2000")
	s.untilStart(topic, 100)
	s.configure(topic, "retention.ms", sevenDays) // no more goes while we look
	s.produce(topic, 2, 60, time.Now().Add(-100*day), 0)
	consumer{stack: s, group: "g", topic: topic}.run()
	if n := s.prove("markers kept", "g", topic); n != 0 {
		s.Errorf("%d announced", n)
	}
	for p, start := range s.starts(topic) {
		s.exec(`DELETE FROM processed_events WHERE partition = $1 AND "offset" < $2`, p, start+30)
	}
	if n := s.prove("a pruner that is too quick", "g", topic); n != 60 {
		s.Errorf("%d announced, want 30 for each partition", n)
	}
}

// Transactions' control records and aborted records have offsets and
// no effect.
func abortedTransactions(s *stack) {
	const topic = "transactions"
	s.topic(topic, 2, map[string]string{"retention.ms": "-1", "segment.ms": halfDay})
	client, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID("tx"), kgo.UnknownTopicRetries(-1))
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	from := time.Now().Add(-10 * day)
	for i := range 80 { // a transaction every three hours; each third is aborted
		if err := client.BeginTransaction(); err != nil {
			s.Fatal(err)
		}
		for n := range 10 {
			for p := range int32(2) {
				client.Produce(s.ctx(), s.event(topic, p, from.Add(time.Duration(i)*3*time.Hour+time.Duration(n)*time.Minute)), nil)
			}
		}
		if err := client.Flush(s.ctx()); err != nil {
			s.Fatal(err)
		}
		if err := client.EndTransaction(s.ctx(), kgo.TransactionEndTry(i%3 != 2)); err != nil {
			s.Fatal(err)
		}
	}
	consumer{stack: s, group: "g", topic: topic, at: whenWritten}.run()
	s.start()
	if n := s.prove("nothing pruned", "g", topic); n != 0 {
		s.Errorf("%d announced", n)
	}
	s.configure(topic, "retention.ms", sevenDays)
	// Control records carry the broker's time, so a segment is kept for them;
	// let go of the head otherwise.
	s.deleteBefore(topic, 300)
	s.prune("g", 8*day)
	if n := s.prove("8 days", "g", topic); n != 0 {
		s.Errorf("%d announced", n)
	}
	s.prune("g", 3*day)
	s.prove("3 days", "g", topic)
}

// Compaction leaves fewer records than there were: the head is told exactly,
// further up the number is what there can be at most.
func compaction(s *stack) {
	const topic = "compacted"
	s.topic(topic, 1, map[string]string{"cleanup.policy": "compact", "segment.ms": halfDay, "min.cleanable.dirty.ratio": "1"})
	var batch []*kgo.Record
	for i := range 400 {
		r := s.event(topic, 0, time.Now().Add(-10*day+time.Duration(i)*30*time.Minute))
		r.Headers = []kgo.RecordHeader{{Key: "id", Value: r.Key}}
		r.Key = fmt.Appendf(nil, "account-%d", i/2) // two for each, beside one another
		if batch = append(batch, r); len(batch) == 10 {
			if err := s.client.ProduceSync(s.ctx(), batch...).FirstErr(); err != nil {
				s.Fatal(err)
			}
			batch = nil
		}
	}
	consumer{stack: s, group: "g", topic: topic, at: whenWritten}.run()
	s.start()
	if n := s.announced("g", topic); total(n) != 0 {
		s.Errorf("%v announced before anything was pruned", n)
	}
	s.configure(topic, "min.cleanable.dirty.ratio", "0.01")
	s.until("the head is compacted", func() bool {
		listed, err := s.admin.ListOffsetsAfterMilli(s.ctx(), 0, topic)
		return s.offsets(listed, err)[0] == 1
	})
	s.exec(`DELETE FROM processed_events WHERE "offset" < 100`)
	told := s.look("g", topic)
	if n := told.Unprotected(); !n.OK || n.Value != 99 {
		s.Errorf("%+v announced, want the 99 markers that are gone from offset 1 on", n)
	}
	if n := told.Numbers; n.Topic.Value != retention.Unlimited {
		s.Errorf("topic retention %s of a topic that never deletes", n.Topic.Value)
	}
	s.reset("g", topic)
	consumer{stack: s, group: "g", topic: topic}.run()
	twice := total(s.twice("g", topic))
	if twice > 99 || twice == 0 {
		s.Errorf("%d applied twice of the 99 announced", twice)
	}
	s.Logf("compaction: announced 99, applied twice %d", twice)
}

// case: producers whose clocks are days off, in both directions. By offset no
// clock matters.
func wrongClocks(s *stack) {
	const topic = "clocks"
	s.topic(topic, 1, map[string]string{"retention.ms": "-1", "segment.ms": halfDay, "message.timestamp.after.max.ms": "9223372036854775807"})
	real := map[string]time.Time{}
	for i := range 10 * 24 {
		at := time.Now().Add(-10*day - 30*time.Minute + time.Duration(i)*time.Hour)
		r := s.event(topic, 0, at.Add([]time.Duration{0, 5 * day, -400 * day}[i%3]))
		real[string(r.Key)] = at
		if err := s.client.ProduceSync(s.ctx(), r).FirstErr(); err != nil {
			s.Fatal(err)
		}
	}
	consumer{stack: s, group: "g", topic: topic, at: func(r *kgo.Record) time.Time { return real[string(r.Key)] }}.run()
	s.start()
	if n := s.prove("nothing pruned", "g", topic); n != 0 {
		s.Errorf("%d announced", n)
	}
	s.prune("g", 3*day)
	if n := s.prove("3 days", "g", topic); n != 7*24+1 {
		s.Errorf("%d announced, want %d", n, 7*24+1)
	}
}

const plainDDL = `CREATE TABLE processed_events (
    consumer_group text        NOT NULL,
    event_id       text        NOT NULL,
    topic          text        NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX processed_events_processed_at ON processed_events (processed_at);
` + effectsDDL

// By time: never more than is applied twice, and as much but for the margin,
// which here is a minute of a record every ten.
func tableWithoutOffsets(s *stack) {
	s.columns = "consumer_group, event_id, topic, processed_at"
	const topic = "plain"
	s.tenDays(topic, "g")
	s.start()
	for _, p := range s.look("g", topic).Partitions { // the first record is as old as the first marker: too close
		if p.Unprotected.Value != 0 {
			s.Errorf("partition %d: %d announced before anything was pruned", p.Partition, p.Unprotected.Value)
		}
	}
	s.keepSevenDays(topic)
	if n := s.announced("g", topic); total(n) != 0 {
		s.Errorf("%v announced of markers older than every record", n)
	}
	s.prune("g", 8*day)
	if n := s.announced("g", topic); total(n) != 0 {
		s.Errorf("%v announced at 8 days against 7", n)
	}
	s.prune("g", 3*day)
	said := s.announced("g", topic)
	s.reset("g", topic)
	consumer{stack: s, group: "g", topic: topic}.run()
	twice := s.twice("g", topic)
	for p, n := range said {
		if n > twice[p] || n < twice[p]-1 || n == 0 {
			s.Errorf("partition %d: announced %d, applied twice %d", p, n, twice[p])
		}
	}
	s.Logf("by time: announced %d, applied twice %d", total(said), total(twice))
	for _, p := range s.look("g", topic).Partitions {
		if p.Unprotected.Value != 0 {
			s.Errorf("partition %d: %d announced after the replay", p.Partition, p.Unprotected.Value)
		}
	}
}

// The exporter forgets what it has seen: unverified, then what it sees go from
// then on; the sum is what is applied twice.
func exporterStartedAgain(s *stack) {
	const topic = "again"
	s.tenDays(topic, "g")
	s.start()
	s.announced("g", topic)
	s.keepSevenDays(topic)
	s.prune("g", 4*day)
	s.announced("g", topic)
	s.start()
	for _, p := range s.look("g", topic).Partitions {
		if p.Unprotected.Value != 0 || p.Unverified.Value == 0 {
			s.Errorf("partition %d: %d told after a restart that hid a prune, and %d unverified", p.Partition, p.Unprotected.Value, p.Unverified.Value)
		}
	}
	s.prune("g", 3*day)
	one := s.look("g", topic)
	n := one.Unprotected()
	if n.Value != 3*144 {
		s.Errorf("%+v told of the day that went since the restart, want %d", n, 3*144)
	}
	unseen := one.Unverified().Value
	s.reset("g", topic)
	consumer{stack: s, group: "g", topic: topic}.run()
	if twice := total(s.twice("g", topic)); twice != n.Value+unseen {
		s.Errorf("%d applied twice, want the %d told and the %d unverified", twice, n.Value, unseen)
	}
	if n := s.announced("g", topic); total(n) != 0 {
		s.Errorf("%v announced after the replay", n)
	}
}
