//go:build linux

package main

import (
	"flag"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/produce"
)

var (
	soakFor  = flag.Duration("soak", 6*time.Second, "how long TestSoak makes trouble")
	soakSeed = flag.Uint64("soak.seed", 0, "seed of TestSoak; 0: a random one, printed")
)

// TestSoak makes random trouble for a bounded time: members are killed at
// random points or moments, stopped and woken, ended, started; the database
// crashes; more is published all the while. Then everything must have been
// applied once. The long form:
//
//	go test ./reference-consumer -run Soak -soak 30m -timeout 40m
func TestSoak(t *testing.T) {
	t.Parallel()
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again with -run Soak -soak %s -soak.seed %d", *soakFor, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	server := testenv.PostgresServer(t, pgserver.Options{Config: map[string]string{"fsync": "on"}})
	s := newStage(t, server.DSN("postgres"), fake(t), "payments", 4)
	publish := func(n int64) {
		s.publish(produce.Config{Count: n, Duplicates: 0.02, Poison: 0.01, Accounts: 50, Seed: random.Uint64()})
	}
	publish(500)

	var members, stopped []*process
	start := func() {
		members = append(members, s.start(func(sp *spec) {
			sp.Slow, sp.BatchSize = time.Duration(random.IntN(800))*time.Microsecond, 1+random.IntN(60)
			sp.SetBased = random.IntN(3) == 0
			if random.IntN(2) == 0 {
				sp.Point, sp.Nth, sp.Signal = points[random.IntN(len(points))], 1+random.IntN(40), syscall.SIGKILL
			}
		}))
	}
	take := func() *process {
		i := random.IntN(len(members))
		p := members[i]
		members = append(members[:i], members[i+1:]...)
		return p
	}
	counts := map[string]int{}
	for deadline := time.Now().Add(*soakFor); time.Now().Before(deadline); {
		alive := members[:0]
		for _, p := range members {
			if !p.wait(0) {
				alive = append(alive, p)
				continue
			}
			counts["died at its point"]++
		}
		members = alive
		switch what := random.IntN(12); {
		case len(members) < 2, what < 4 && len(members) < 4:
			start()
			counts["started"]++
		case what < 6:
			take().kill()
			counts["killed"]++
		case what < 7:
			p := take()
			p.signal(syscall.SIGSTOP)
			stopped = append(stopped, p)
			counts["stopped"]++
		case what < 8 && len(stopped) > 0:
			stopped[0].signal(syscall.SIGCONT)
			members, stopped = append(members, stopped[0]), stopped[1:]
			counts["woken"]++
		case what < 9:
			p := take()
			p.signal(syscall.SIGTERM)
			counts["ended"]++
		case what == 9 && counts["database crashed"] < 1+int(*soakFor/(20*time.Second)):
			if err := server.Restart(t.Context(), pgserver.Immediate); err != nil {
				t.Fatal(err)
			}
			counts["database crashed"]++
		default:
			publish(int64(100 + random.IntN(400)))
		}
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
	}
	for _, p := range members {
		p.kill()
	}
	for _, p := range stopped {
		p.signal(syscall.SIGCONT)
	}
	last := s.start(nil)
	trouble := time.Now()
	s.all(2*time.Minute + *soakFor)
	last.stop()
	for _, p := range stopped {
		p.kill()
	}
	s.mustAudit()
	t.Logf("drained in %s", time.Since(trouble).Round(time.Millisecond))
	t.Logf("%d events, %d published twice, %d poisoned: %v", s.stats.Events, s.stats.Duplicates, s.stats.Poison, counts)
}
