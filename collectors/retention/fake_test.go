package retention_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
)

func fakeStack(t *testing.T, ddl string) *stack {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return newStack(t, cluster.ListenAddrs(), ddl)
}

// deleteBefore deletes a topic's records below an offset, in every partition.
func (s *stack) deleteBefore(topic string, offset int64) {
	s.Helper()
	var offsets kadm.Offsets
	for p := range s.starts(topic) {
		offsets.AddOffset(topic, p, offset, -1)
	}
	resp, err := s.admin.DeleteRecords(s.ctx(), offsets)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		s.Fatal(err)
	}
}

// A group's life: deleted records, a pruner, an interrupted replay, a reset to
// the middle, everything deleted by accident.
func TestLifeOfAGroup(t *testing.T) {
	t.Parallel()
	s := fakeStack(t, runbookDDL)
	topic := s.topic("payments", 2, nil)
	s.topic("refunds", 1, nil)
	now := time.Now()
	s.produce(topic, 2, 1000, now.Add(-10*day), 14*time.Minute)
	s.produce("refunds", 1, 300, now.Add(-10*day), 45*time.Minute)
	for _, c := range []consumer{{group: "ledger-writer", topic: topic}, {group: "ledger-writer", topic: "refunds"}, {group: "mailer", topic: topic}} {
		c.stack, c.at = s, whenWritten
		c.run()
	}
	s.start()
	others := func(what string) {
		t.Helper()
		if n := total(s.announced("mailer", topic)); n != 0 {
			t.Errorf("%s: %d announced for a group whose markers are all there", what, n)
		}
	}
	if n := s.prove("all markers there", "ledger-writer", topic); n != 0 {
		t.Errorf("%d announced", n)
	}
	s.deleteBefore(topic, 300)
	s.prune("ledger-writer", 8*day) // about 205 of each partition
	if n := s.prove("pruned below the log start", "ledger-writer", topic); n != 0 {
		t.Errorf("%d announced", n)
	}
	others("sound pruning")
	s.prune("ledger-writer", 5*day)
	if n := total(s.announced("ledger-writer", "refunds")); n == 0 {
		t.Error("0 announced of the other topic")
	}
	// The operator sees what happens and stops, half-way through.
	said := total(s.announced("ledger-writer", topic))
	before := total(s.twice("ledger-writer", topic))
	s.reset("ledger-writer", topic)
	consumer{stack: s, group: "ledger-writer", topic: topic, limit: 150}.run()
	s.resetTo("ledger-writer", topic, map[int32]int64{0: 1000, 1: 1000})
	done := total(s.twice("ledger-writer", topic)) - before
	if left := total(s.announced("ledger-writer", topic)); left != said-done || done != 150 {
		t.Errorf("%d announced, %d applied twice, %d announced then", said, done, left)
	}
	if n := s.prove("the rest", "ledger-writer", topic); n != said-done {
		t.Errorf("%d announced, want %d", n, said-done)
	}
	s.prove("the other topic", "ledger-writer", "refunds")

	s.exec(`DELETE FROM processed_events WHERE consumer_group = 'ledger-writer' AND "offset" BETWEEN 900 AND 949 AND topic = $1`, topic)
	if n := s.prove("a deletion in the middle", "ledger-writer", topic); n != 100 {
		t.Errorf("%d announced, want 100", n)
	}
	s.exec("DELETE FROM processed_events WHERE consumer_group = 'ledger-writer'")
	if n := s.prove("everything", "ledger-writer", topic); n != 1400 {
		t.Errorf("%d announced, want 1400", n)
	}
	others("all of that")
	s.deleteBefore(topic, 1000)
	s.exec("TRUNCATE processed_events")
	if n := s.prove("an empty log", "mailer", topic); n != 0 {
		t.Errorf("%d announced", n)
	}
}

// A group that began at latest, and an exporter that comes late or again: what
// cannot be known is absent, and what is told holds.
func TestYoungGroupsAndRestarts(t *testing.T) {
	t.Parallel()
	s := fakeStack(t, runbookDDL)
	topic := s.topic("payments", 1, nil)
	now := time.Now()
	s.produce(topic, 1, 600, now.Add(-10*day), 24*time.Minute)
	s.resetTo("young", topic, map[int32]int64{0: 500}) // began at what was latest then
	consumer{stack: s, group: "young", topic: topic, at: whenWritten}.run()
	consumer{stack: s, group: "old", topic: topic, at: whenWritten}.run()
	s.start()
	p := s.look("young", topic).Partitions[0]
	if p.Unprotected.Value != 0 || p.Unverified.Value != 500 {
		t.Errorf("%+v of a young group, want none known, and 500 unverified", p)
	}
	s.deleteBefore(topic, 520)
	if p = s.look("young", topic).Partitions[0]; !p.Unprotected.OK || p.Unprotected.Value != 0 || p.Unverified.Value != 0 {
		t.Errorf("%+v once the log start has come by, want 0", p)
	}
	if n := s.prove("a young group", "young", topic); n != 0 {
		t.Errorf("%d announced", n)
	}
	s.prune("old", day)
	before := s.look("old", topic).Partitions[0].Unprotected
	if !before.OK || before.Value == 0 {
		t.Fatalf("%+v after a prune, want some", before)
	}
	s.start() // again: what it had seen is forgotten
	if p = s.look("old", topic).Partitions[0]; p.Unprotected.Value != 0 || p.Unverified.Value != before.Value {
		t.Errorf("%+v after a restart, want none known, and %d unverified", p, before.Value)
	}
	s.exec(`DELETE FROM processed_events WHERE consumer_group = 'old' AND "offset" < 570`)
	after := s.look("old", topic).Partitions[0]
	if !after.Unprotected.OK || after.Unprotected.Value+after.Unverified.Value != 50 || after.Unprotected.Value == 0 {
		t.Errorf("%+v, want 50 known or unverified", after)
	}
	s.reset("old", topic)
	consumer{stack: s, group: "old", topic: topic}.run()
	if n := total(s.twice("old", topic)); n != 50 {
		t.Errorf("%d applied twice, want 50", n)
	}
	if p = s.look("old", topic).Partitions[0]; !p.Unprotected.OK || p.Unprotected.Value != 0 {
		t.Errorf("%+v after the replay, want 0", p)
	}
}

// A topic that is deleted and made again: the old one's markers protect and
// expose nothing.
func TestRecreated(t *testing.T) {
	t.Parallel()
	s := fakeStack(t, runbookDDL)
	topic := s.topic("payments", 1, nil)
	s.produce(topic, 1, 500, time.Now().Add(-10*day), 20*time.Minute)
	consumer{stack: s, group: "g", topic: topic, at: whenWritten}.run()
	s.start()
	s.announced("g", topic)
	if resp, err := s.admin.DeleteTopics(s.ctx(), topic); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
	if resp, err := s.admin.DeleteGroups(s.ctx(), "g"); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
	s.client.PurgeTopicsFromClient(topic)
	s.topic(topic, 1, nil)
	s.produce(topic, 1, 300, time.Now().Add(-time.Hour), time.Second)
	s.resetTo("g", topic, map[int32]int64{0: 200}) // begins at latest
	consumer{stack: s, group: "g", topic: topic}.run()
	if n := s.announced("g", topic); total(n) != 0 {
		t.Errorf("%v announced while the old topic's markers are there", n)
	}
	s.prune("g", 5*day)
	if n := s.announced("g", topic); total(n) != 0 {
		t.Errorf("%v announced when some of the old topic's markers go", n)
	}
	s.prune("g", time.Minute)
	if n := s.announced("g", topic); total(n) != 0 {
		t.Errorf("%v announced when all of them have gone", n)
	}
	s.reset("g", topic)
	consumer{stack: s, group: "g", topic: topic}.run()
	if n := total(s.twice("g", topic)); n != 0 {
		t.Errorf("%d applied twice", n)
	}
}
