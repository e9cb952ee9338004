package retention_test

import (
	"testing"
	"time"
)

// A restart forgets nothing, on a broker in memory; TestProof does the same on
// Apache Kafka.
func TestRestartsWithState(t *testing.T) {
	t.Parallel()
	restartsWithState(fakeStack(t, runbookDDL))
}

// exact is what is announced where nothing is unverified.
func (s *stack) exact(what, group, topic string) int64 {
	s.Helper()
	one := s.look(group, topic)
	if u := one.Unverified(); !u.OK || u.Value != 0 {
		s.Errorf("%s: %+v unverified, want none", what, u)
		for _, p := range one.Partitions {
			s.Logf("%+v", *p)
		}
	}
	return one.Unprotected().Value
}

// restartsWithState stops the exporter, lets happen what can, starts it from
// what was kept, and does what it warns of: the number announced is the number
// of effects applied twice, and nothing is unverified.
func restartsWithState(s *stack) {
	const topic, per = "kept", 240
	s.config.Retention = 5 * day
	s.topic(topic, 2, map[string]string{"retention.ms": "-1"})
	s.produce(topic, 2, per, time.Now().Add(-10*day), time.Hour)
	groups := []string{"a", "b", "c", "d", "e"}
	for _, g := range groups {
		consumer{stack: s, group: g, topic: topic, at: whenWritten}.run()
	}
	restart := func() {
		s.Helper()
		s.stop()
		s.start()
	}
	s.start()
	for _, g := range groups {
		if n := total(s.announced(g, topic)); n != 0 {
			s.Errorf("%d announced of group %s", n, g)
		}
	}
	s.save()

	// Pruned while it was away.
	s.stop()
	s.prune("a", 4*day)
	restart()
	said := s.exact("a prune while it was away", "a", topic)
	if said != 2*6*24 && said != 2*(6*24+1) {
		s.Errorf("%d announced, want six days of two partitions", said)
	}
	// Killed: what was saved is older than what it saw.
	s.prune("a", 3*day)
	s.exact("before it is killed", "a", topic)
	restart()
	if n := s.exact("killed before it saved", "a", topic); n <= said {
		s.Errorf("%d announced, want more than %d", n, said)
	}
	s.prove("killed before it saved", "a", topic)
	s.save()
	restart()
	if n := s.exact("after the replay", "a", topic); n != 0 {
		s.Errorf("%d announced after the replay", n)
	}

	// Pruned, replayed in part, and pruned again while it was away.
	s.stop()
	s.prune("b", 2*day)
	s.reset("b", topic)
	consumer{stack: s, group: "b", topic: topic, at: whenWritten, limit: 150}.run()
	s.resetTo("b", topic, map[int32]int64{0: per, 1: per})
	s.exec(`DELETE FROM processed_events WHERE consumer_group = 'b' AND partition = 0 AND "offset" < 20`)
	restart()
	s.exact("a prune, a replay and a prune while it was away", "b", topic)
	s.prove("a prune, a replay and a prune while it was away", "b", topic)

	// Two days away: the groups went on, the pruner too.
	s.save()
	s.stop()
	s.produce(topic, 2, 50, time.Now(), time.Second)
	consumer{stack: s, group: "c", topic: topic}.run()
	s.prune("c", 4*day)
	s.later = 2 * day
	s.start()
	if n := s.exact("two days away", "c", topic); n == 0 {
		s.Error("none announced after a prune")
	}
	s.prove("two days away", "c", topic)

	// Away for longer than markers are kept: what was handled and pruned
	// meanwhile left no trace, and that is said.
	s.save()
	s.stop()
	s.produce(topic, 2, 50, time.Now(), time.Second)
	consumer{stack: s, group: "d", topic: topic}.run()
	s.exec(`DELETE FROM processed_events WHERE consumer_group = 'd' AND "offset" BETWEEN 290 AND 309`)
	s.later = 12 * day
	s.start()
	one := s.look("d", topic)
	if n, u := one.Unprotected(), one.Unverified(); n.Value != 0 || u.Value != 40 {
		s.Errorf("%d announced and %d unverified, want the 40 of which nobody knows", n.Value, u.Value)
	}

	// A clock that went back is no evidence of anything.
	s.save()
	s.later = 0
	restart()
	one = s.look("d", topic)
	if n, u := one.Unprotected(), one.Unverified(); n.Value+u.Value != 40 {
		s.Errorf("%d announced and %d unverified, want 40 in all", n.Value, u.Value)
	}
	s.reset("d", topic)
	consumer{stack: s, group: "d", topic: topic}.run()
	if n := total(s.twice("d", topic)); n != 40 {
		s.Errorf("%d applied twice, want 40", n)
	}
}

// A group that begins while the exporter watches, and one that began while it
// was away for a moment: nothing of them is unknown.
func TestBeginnings(t *testing.T) {
	t.Parallel()
	s := fakeStack(t, runbookDDL)
	topic := s.topic("payments", 1, nil)
	s.produce(topic, 1, 600, time.Now().Add(-10*day), 24*time.Minute)
	consumer{stack: s, group: "old", topic: topic, at: whenWritten}.run()
	s.start()
	s.look("old", topic)
	begin := func(group string) {
		s.resetTo(group, topic, map[int32]int64{0: 500})
		consumer{stack: s, group: group, topic: topic, at: whenWritten}.run()
	}
	begin("latest")
	if n := s.exact("began at latest while it watched", "latest", topic); n != 0 {
		t.Errorf("%d announced", n)
	}
	s.save()
	s.stop()
	begin("meanwhile")
	s.start()
	s.exact("began while it was away for a moment", "meanwhile", topic)
	s.exact("began before", "latest", topic)
	if n := s.prove("began at latest", "latest", topic); n != 0 {
		t.Errorf("%d announced", n)
	}
}
