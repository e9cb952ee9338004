//go:build linux

package main

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/produce"
)

// realKafka is a broker of this package's tests with session timeouts short
// enough to test with.
func realKafka(t *testing.T) *kafkaserver.Server {
	return testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{
		"group.min.session.timeout.ms":             "500",
		"group.consumer.min.session.timeout.ms":    "1500",
		"group.consumer.session.timeout.ms":        "1500",
		"group.consumer.min.heartbeat.interval.ms": "200",
		"group.consumer.heartbeat.interval.ms":     "200",
	}})
}

// The main boundaries and faults again, against Apache Kafka: its coordinator
// decides when a member is gone, its rebalances take time.
func TestApacheKafka(t *testing.T) {
	k := realKafka(t)
	n := 0
	var mu sync.Mutex
	stageHere := func(t *testing.T, partitions int32) *stage {
		mu.Lock()
		n++
		topic := fmt.Sprintf("payments-%d", n)
		mu.Unlock()
		s := newStage(t, testenv.Postgres(t), k.Brokers(), topic, partitions)
		s.spec.Group = "g-" + topic
		return s
	}
	slots := make(chan struct{}, 2)
	run := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			f(t)
		})
	}
	// The restarts come first: the parallel tests begin when this function ends.
	t.Run("broker restart", func(t *testing.T) {
		for _, fault := range []struct {
			name string
			stop func() error
		}{{"clean", func() error { return k.Stop(t.Context()) }}, {"killed", k.Kill}} {
			s := stageHere(t, 2)
			s.publish(produce.Config{Count: 1500, Duplicates: 0.01, Accounts: 40, Seed: 6})
			p := s.start(func(sp *spec) { sp.Slow = time.Millisecond; sp.Session = 6 * time.Second })
			if err := s.handled(200, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			if err := fault.stop(); err != nil {
				t.Fatal(err)
			}
			if err := k.StartAgain(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.all(60 * time.Second)
			p.stop()
			if err := s.audit(); err != nil {
				t.Errorf("%s: %v", fault.name, err)
			}
		}
	})

	for _, point := range []string{"after_marker", "during_db_commit", "after_db_commit", "during_offset_commit", "revoke"} {
		run("SIGKILL "+point, func(t *testing.T) {
			nth := 3
			if point == "revoke" {
				nth = 1
			}
			if err := killAt(stageHere(t, 4), "", point, nth); err != nil {
				t.Error(err)
			}
		})
	}
	for name, change := range map[string]func(*spec){
		"classic": nil,
		"KIP-848": func(sp *spec) { sp.ServerSide = true },
	} {
		// Two members share the partitions; one is killed, one is stopped
		// and wakes later, others take over.
		run("two members, "+name, func(t *testing.T) {
			s := stageHere(t, 4)
			s.publish(produce.Config{Count: 2000, Duplicates: 0.01, Accounts: 40, Seed: 1})
			slow := func(sp *spec) {
				if sp.Slow = 500 * time.Microsecond; change != nil {
					change(sp)
				}
			}
			first, second := s.start(slow), s.start(slow)
			if err := s.handled(400, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			first.signal(syscall.SIGKILL)
			killed := time.Now()
			third := s.start(slow)
			if err := s.handled(900, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: 500 events handled %s after SIGKILL", name, time.Since(killed).Round(time.Millisecond))
			second.signal(syscall.SIGSTOP)
			stopped := time.Now()
			s.all(40 * time.Second)
			t.Logf("%s: all handled %s after SIGSTOP of another member", name, time.Since(stopped).Round(time.Millisecond))
			second.signal(syscall.SIGCONT)
			s.publish(produce.Config{Count: 500, Accounts: 40, Seed: 2})
			s.all(40 * time.Second)
			second.stop()
			third.stop()
			s.mustAudit()
		})
	}
	// A static member that is restarted within its session takes its
	// partitions back without a rebalance.
	run("static membership", func(t *testing.T) {
		s := stageHere(t, 2)
		s.publish(produce.Config{Count: 400, Accounts: 40, Seed: 1})
		static := func(sp *spec) { sp.Instance, sp.Session = "one", 6*time.Second }
		p := s.start(static)
		s.all(30 * time.Second)
		p.stop()
		p = s.start(static)
		s.publish(produce.Config{Count: 400, Accounts: 40, Seed: 2})
		s.all(30 * time.Second)
		p.stop()
		s.mustAudit()
	})

	// How long a partition stands still when its owner is killed or stopped,
	// beyond the session timeout.
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		run("recovery after "+sig.String(), func(t *testing.T) {
			s := stageHere(t, 1)
			s.publish(produce.Config{Count: 3000, Accounts: 40, Seed: 1})
			owner := s.start(func(sp *spec) { sp.Slow = time.Millisecond })
			if err := s.handled(100, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			standby := s.start(nil)
			if err := s.handled(1000, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			owner.signal(sig)
			began := time.Now()
			time.Sleep(20 * time.Millisecond) // what was already sent arrives
			before, err := s.query(handledSQL)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.handled(before+1, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			t.Logf("RECOVERY %s: %s until the next event, session timeout %s", sig, time.Since(began).Round(10*time.Millisecond), 1500*time.Millisecond)
			owner.signal(syscall.SIGCONT)
			s.all(30 * time.Second)
			standby.stop()
			s.mustAudit()
		})
	}
}
