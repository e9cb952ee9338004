//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/schema"
)

// points at which a consumer is killed: every boundary between the write, the
// effect, the two commits, the dead letter and the revocation.
var points = []string{
	"before_write", "after_marker", "in_effect", "dead_letter",
	"before_db_commit", "during_db_commit", "after_db_commit",
	"before_offset_commit", "during_offset_commit", "after_offset_commit",
	"revoke",
}

// stage is a database and a topic with events in it.
type stage struct {
	t          *testing.T
	dsn        string
	pool       *pgxpool.Pool
	spec       spec
	client     []kgo.Opt
	stats      produce.Stats
	partitions int32
}

const group = "ledger-writer"

func fake(t *testing.T) []string {
	t.Helper()
	return fakeCluster(t).ListenAddrs()
}

func fakeCluster(t *testing.T) *kfake.Cluster {
	t.Helper()
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// heartbeats watches which members of the group have sent one, by generation.
type heartbeats struct {
	mu      sync.Mutex
	members map[int32]map[string]bool
}

func watchHeartbeats(k *kfake.Cluster) *heartbeats {
	h := &heartbeats{members: map[int32]map[string]bool{}}
	k.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		beat := r.(*kmsg.HeartbeatRequest)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.members[beat.Generation] == nil {
			h.members[beat.Generation] = map[string]bool{}
		}
		h.members[beat.Generation][beat.MemberID] = true
		return nil, nil, false
	})
	return h
}

// settled says whether n members have sent a heartbeat in the newest
// generation, which nobody has left.
func (h *heartbeats) settled(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	newest := int32(-1)
	for generation := range h.members {
		newest = max(newest, generation)
	}
	return len(h.members[newest]) == n
}

func newStage(t *testing.T, dsn string, brokers []string, topic string, partitions int32) *stage {
	t.Helper()
	if err := schema.Migrate(t.Context(), dsn, schema.Options{}); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &stage{t: t, dsn: dsn, pool: pool, client: []kgo.Opt{kgo.SeedBrokers(brokers...)},
		partitions: partitions,
		spec:       spec{DSN: dsn, Brokers: brokers, Topic: topic, Group: group, BatchSize: 20}}
	return s
}

// publish more events; what is published is added up for the audit.
func (s *stage) publish(cfg produce.Config) {
	s.t.Helper()
	cfg.Client, cfg.Topic, cfg.Partitions = s.client, s.spec.Topic, s.partitions
	stats, err := produce.Run(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.stats.Events += stats.Events
	s.stats.Poison += stats.Poison
	s.stats.Duplicates += stats.Duplicates
}

func (s *stage) start(change func(*spec)) *process {
	s.t.Helper()
	return s.startBinary("", change)
}

func (s *stage) startBinary(binary string, change func(*spec)) *process {
	s.t.Helper()
	sp := s.spec
	if change != nil {
		change(&sp)
	}
	return start(s.t, binary, sp)
}

func (s *stage) query(sql string) (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = s.pool.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// A poisoned event that was published twice has two dead letters.
const handledSQL = `SELECT (SELECT count(DISTINCT event_id) FROM processed_events) + (SELECT count(DISTINCT event_id) FROM dead_letters)`

// handled waits until n events have been handled.
func (s *stage) handled(n int64, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	var got int64
	var err error
	for time.Now().Before(deadline) {
		if got, err = s.query(handledSQL); err == nil && got >= n {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%d of %d events handled after %s (%v)", got, n, limit, err)
}

// all waits until every event that was published has been handled, and the
// group's offsets stand at the end.
func (s *stage) all(limit time.Duration) {
	s.t.Helper()
	if err := errors.Join(s.handled(s.stats.Events, limit), s.drained(limit)); err != nil {
		s.t.Fatal(err)
	}
}

// audit: 0 lost, 0 doubled, entries = distinct ids = markers, each pair from
// one transaction, balances add up, poison in the dead letters.
func (s *stage) audit() error {
	applied := s.stats.Events - s.stats.Poison
	var errs []error
	for _, c := range []struct {
		what, sql string
		want      int64
	}{
		{"ledger entries", "SELECT count(*) FROM ledger_entries", applied},
		{"distinct event ids in the ledger", "SELECT count(DISTINCT event_id) FROM ledger_entries", applied},
		{"markers", "SELECT count(*) FROM processed_events", applied},
		{"markers and entries not from one transaction", "SELECT count(*) FROM processed_events m FULL JOIN ledger_entries e USING (event_id) WHERE m.txid IS DISTINCT FROM e.txid", 0},
		{"accounts whose balance is not the sum of its entries", `SELECT count(*) FROM (SELECT account, sum(amount) AS sum, count(*) AS n FROM ledger_entries GROUP BY account) e
FULL JOIN accounts a USING (account) WHERE a.balance IS DISTINCT FROM e.sum OR a.entries IS DISTINCT FROM e.n`, 0},
		{"dead-lettered events", "SELECT count(DISTINCT event_id) FROM dead_letters", s.stats.Poison},
	} {
		got, err := s.query(c.sql)
		if err != nil {
			errs = append(errs, err)
		} else if got != c.want {
			errs = append(errs, fmt.Errorf("%s: %d, want %d", c.what, got, c.want))
		}
	}
	return errors.Join(errs...)
}

func (s *stage) mustAudit() {
	s.t.Helper()
	if err := s.audit(); err != nil {
		s.t.Error(err)
	}
}

// killAt is the core of the proof: a consumer is killed at a point, another
// takes over, and everything must have been applied once.
func killAt(s *stage, binary, point string, nth int) error {
	s.t.Helper()
	s.publish(produce.Config{Count: 400, Duplicates: 0.02, Poison: 0.02, Accounts: 20, Seed: 11})
	first := s.startBinary(binary, func(sp *spec) { sp.Point, sp.Nth, sp.Signal = point, nth, syscall.SIGKILL })
	if point == "revoke" {
		if err := s.handled(50, 30*time.Second); err != nil {
			return err
		}
	}
	second := (*process)(nil)
	if point == "revoke" { // what makes the first give something up
		second = s.startBinary(binary, nil)
		s.publish(produce.Config{Count: 200, Accounts: 20, Seed: 12})
	}
	first.killed(40 * time.Second)
	if second == nil {
		second = s.startBinary(binary, nil)
	}
	err := s.drained(40 * time.Second)
	second.stop()
	return errors.Join(err, s.audit())
}

// drained waits until the group's offsets stand at the end of every partition.
func (s *stage) drained(limit time.Duration) error {
	client, err := kgo.NewClient(s.client...)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		committed, err := admin.FetchOffsets(ctx, s.spec.Group)
		if err != nil && ctx.Err() == nil {
			continue // the broker is being restarted
		}
		ends, endErr := admin.ListEndOffsets(ctx, s.spec.Topic)
		if ctx.Err() != nil {
			return fmt.Errorf("the group did not reach the end within %s: %v", limit, committed)
		}
		if endErr != nil {
			continue
		}
		behind := 0
		ends.Each(func(end kadm.ListedOffset) {
			c, ok := committed.Lookup(end.Topic, end.Partition)
			if end.Offset > 0 && (!ok || c.At < end.Offset) {
				behind++
			}
		})
		if behind == 0 {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Every boundary, against kfake.
func TestKill9(t *testing.T) {
	slots := make(chan struct{}, 3)
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			nth := 3
			if point == "revoke" || point == "dead_letter" {
				nth = 1
			}
			s := newStage(t, testenv.Postgres(t), fake(t), "payments", 2)
			if err := killAt(s, "", point, nth); err != nil {
				t.Error(err)
			}
		})
	}
}

// An event whose handler kills the process, every time, before
// anything can be counted. It ends in the dead letters and nothing else does.
func TestEventThatKillsTheProcess(t *testing.T) {
	t.Parallel()
	s := newStage(t, testenv.Postgres(t), fake(t), "payments", 2)
	s.publish(produce.Config{Count: 300, Accounts: 20, Seed: 5})
	records := s.records()
	deadly := records[len(records)/2]
	deaths := 0
	for {
		p := s.start(func(sp *spec) { sp.KillOn = deadly; sp.Session = 500 * time.Millisecond })
		died := make(chan struct{})
		go func() { <-p.done; close(died) }()
		done := make(chan error, 1)
		go func() { done <- s.handled(s.stats.Events, 30*time.Second) }()
		select {
		case <-died:
			// Four beginnings of its batch, as many of the event alone, and what
			// was committed in between.
			if deaths++; deaths > 12 {
				t.Fatal("still dying after 12 starts")
			}
			continue
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		}
		p.stop()
		break
	}
	s.stats.Poison = 1
	s.mustAudit()
	if n, err := s.query("SELECT count(*) FROM dead_letters WHERE reason = 'crash' AND event_id = '" + deadly + "'"); err != nil || n != 1 {
		t.Errorf("dead letters of the deadly event: %d, %v, want 1", n, err)
	}
	t.Logf("%d processes died", deaths)
}

// records are the ids of what was published, by partition and offset.
func (s *stage) records() []string {
	s.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.ConsumeTopics(s.spec.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}, s.client...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	var ids []string
	for int64(len(ids)) < s.stats.Events+s.stats.Duplicates {
		f := client.PollFetches(ctx)
		if ctx.Err() != nil {
			s.t.Fatal("the topic does not hold what was published")
		}
		f.EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if h.Key == header.EventID {
					ids = append(ids, string(h.Value))
				}
			}
		})
	}
	return ids
}

// An owner stopped inside its transaction. The next owner is through
// in seconds; the stopped one wakes to nothing and doubles nothing.
func TestStoppedOwner(t *testing.T) {
	t.Parallel()
	s := newStage(t, testenv.Postgres(t), fake(t), "payments", 1)
	s.publish(produce.Config{Count: 500, Accounts: 20, Seed: 3})
	zombie := s.start(func(sp *spec) { sp.Point, sp.Nth, sp.Signal = "after_marker", 5, syscall.SIGSTOP })
	testenv.Eventually(t, "it stands still", zombie.stopped)
	next := s.start(nil)
	began := time.Now()
	s.all(15 * time.Second)
	took := time.Since(began)
	t.Logf("drained %s after the next owner began (session timeout 1.5 s)", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("drained after %s, want 5 s at most", took)
	}
	zombie.signal(syscall.SIGCONT)
	s.publish(produce.Config{Count: 200, Accounts: 20, Seed: 4})
	s.all(15 * time.Second)
	zombie.stop()
	next.stop()
	s.mustAudit()
}

// The database crashes and comes back; sessions are terminated.
func TestDatabaseCrash(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{Config: map[string]string{"fsync": "on"}})
	s := newStage(t, server.DSN("postgres"), fake(t), "payments", 2)
	s.publish(produce.Config{Count: 2000, Duplicates: 0.01, Accounts: 20, Seed: 8})
	p := s.start(func(sp *spec) { sp.Slow = time.Millisecond })
	for i, fault := range []func() error{
		func() error { return server.Restart(t.Context(), pgserver.Immediate) },
		func() error {
			_, err := s.query("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
			return err
		},
		func() error { return server.Restart(t.Context(), pgserver.Fast) },
	} {
		if err := s.handled(int64(200*(i+1)), 30*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := fault(); err != nil {
			t.Fatal(err)
		}
	}
	s.all(60 * time.Second)
	p.stop()
	s.mustAudit()
}

// Any number of members, some coming and going, some by SIGKILL.
func TestScaleOut(t *testing.T) {
	t.Parallel()
	k := fakeCluster(t)
	group := watchHeartbeats(k)
	s := newStage(t, testenv.Postgres(t), k.ListenAddrs(), "payments", 8)
	for round, members := range []int{1, 2, 4} {
		s.publish(produce.Config{Count: 1500, Duplicates: 0.01, Accounts: 50, Seed: uint64(20 + round)})
		before, err := s.query(handledSQL)
		if err != nil {
			t.Fatal(err)
		}
		var running []*process
		for range members {
			running = append(running, s.start(func(sp *spec) { sp.Slow = 500 * time.Microsecond }))
		}
		if members > 1 {
			if err := s.handled(before+300, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			// kfake watches over a member from its first heartbeat on: one that
			// is killed before would stay in the group for ever.
			testenv.Eventually(t, "a heartbeat of every member", func() bool { return group.settled(members) })
			running[0].signal(syscall.SIGKILL)
			running = append(running[1:], s.start(nil))
			if err := s.handled(before+700, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			running[0].stop()
			running = running[1:]
		}
		s.all(40 * time.Second)
		for _, p := range running {
			p.stop()
		}
		s.mustAudit()
	}
}
