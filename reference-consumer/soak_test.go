//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/produce"
)

var (
	soakFor   = flag.Duration("soak", 6*time.Second, "how long TestSoak makes trouble; from one minute on against Apache Kafka")
	soakSeed  = flag.Uint64("soak.seed", 0, "seed of TestSoak; 0: a random one, printed")
	soakKafka = flag.Bool("soak.kafka", false, "run TestSoak against Apache Kafka, however short")
)

// TestSoak makes random trouble for a bounded time. Members are killed at
// random points or moments, stopped and woken, ended, started, with all sorts
// of batches, by both group protocols, some through a proxy that cuts or holds
// their connections exactly around COMMIT, some through pgbouncer; the database
// crashes; offsets are reset, groups and progress deleted, partitions added,
// records deleted under running members, markers pruned; more is published all
// the while. Then every event must have been applied once, or be among those
// that were deleted before anybody came to them, all of which the consumer must
// have counted; and no sound event may be a dead letter. The long form:
//
//	go test ./reference-consumer -run Soak -soak 1h -timeout 80m
func TestSoak(t *testing.T) {
	t.Parallel()
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again with -run Soak -soak %s -soak.seed %d", *soakFor, seed)
	server := testenv.PostgresServer(t, pgserver.Options{Config: map[string]string{"fsync": "on", "max_connections": "200"}})
	real := *soakKafka || *soakFor >= time.Minute
	var brokers []string
	if real {
		brokers = realKafka(t).Brokers()
	} else {
		brokers = fake(t)
	}
	s := newSoak(t, seed, server, brokers, real)
	s.publish(500)
	for deadline := time.Now().Add(*soakFor); time.Now().Before(deadline); {
		s.trouble()
		time.Sleep(time.Duration(s.random.IntN(400)) * time.Millisecond)
	}
	s.counts["cut or held at COMMIT"] = int(s.cuts.n.Load())
	t.Logf("trouble so far: %v", s.counts)
	s.drain()
	s.verdict()
}

// soak is a stage with trouble.
type soak struct {
	*stage
	random           *rand.Rand
	server           *pgserver.Server
	real, serverSide bool
	cuts             *cutter
	pooled           string // DSN behind pgbouncer
	tape             *tape
	kafka            *kgo.Client
	admin            *kadm.Client
	members, stopped []*process
	all              []*process
	counts           map[string]int
	// forgotten is the end of each partition when the progress was deleted:
	// what lies below may be counted as lost although it was handled.
	forgotten map[int32]int64
}

func newSoak(t *testing.T, seed uint64, server *pgserver.Server, brokers []string, real bool) *soak {
	t.Helper()
	s := &soak{stage: newStage(t, server.DSN("postgres"), brokers, "payments", 4), random: rand.New(rand.NewPCG(seed, 1)), server: server, real: real,
		counts: map[string]int{}, forgotten: map[int32]int64{}}
	if _, err := s.pool.Exec(t.Context(), "CREATE TABLE soak_pruned (event_id text PRIMARY KEY, topic text, partition int, \"offset\" bigint)"); err != nil {
		t.Fatal(err)
	}
	s.cuts = newCutter(t, server.Port, seed)
	s.pooled = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&default_query_exec_mode=cache_describe", testenv.Pgbouncer(t, server, 20))
	client, err := kgo.NewClient(s.client...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s.kafka, s.admin = client, kadm.NewClient(client)
	if _, err := s.admin.CreateTopic(t.Context(), s.partitions, 1, nil, s.spec.Topic); err != nil {
		t.Fatal(err)
	}
	s.tape = newTape(t, s.client, s.spec.Topic)
	return s
}

func (s *soak) publish(n int) {
	s.stage.publish(produce.Config{Count: int64(n), Duplicates: 0.02, Poison: 0.01, Accounts: 50, Seed: s.random.Uint64()})
}

func (s *soak) start() {
	p := s.stage.start(func(sp *spec) {
		sp.Slow, sp.BatchSize = time.Duration(s.random.IntN(800))*time.Microsecond, 1+s.random.IntN(60)
		if s.random.IntN(4) == 0 {
			sp.BatchSize = 1
		}
		sp.SetBased, sp.ServerSide = s.random.IntN(3) == 0, s.serverSide
		switch s.random.IntN(4) {
		case 0:
			sp.DSN = s.pooled
			s.counts["behind pgbouncer"]++
		case 1, 2:
			sp.DSN = s.cuts.dsn
		}
		if s.random.IntN(2) == 0 {
			sp.Point, sp.Nth, sp.Signal = points[s.random.IntN(len(points))], 1+s.random.IntN(40), syscall.SIGKILL
		}
	})
	s.members, s.all = append(s.members, p), append(s.all, p)
	s.counts["started"]++
}

// take a member out of those that run.
func (s *soak) take() *process {
	i := s.random.IntN(len(s.members))
	p := s.members[i]
	s.members = append(s.members[:i], s.members[i+1:]...)
	return p
}

func (s *soak) trouble() {
	alive := s.members[:0]
	for _, p := range s.members {
		if !p.wait(0) {
			alive = append(alive, p)
			continue
		}
		s.counts["died at their point or ended"]++
	}
	s.members = alive
	if len(s.members) < 2 {
		s.start()
		return
	}
	minutes := 1 + int(*soakFor/time.Minute)
	switch what := s.random.IntN(40); {
	case what < 9 && len(s.members) < 4:
		s.start()
	case what < 14:
		s.take().kill()
		s.counts["killed"]++
	case what < 17:
		p := s.take()
		p.signal(syscall.SIGSTOP)
		s.stopped = append(s.stopped, p)
		s.counts["stopped"]++
	case what < 21 && len(s.stopped) > 0:
		s.stopped[0].signal(syscall.SIGCONT)
		s.members, s.stopped = append(s.members, s.stopped[0]), s.stopped[1:]
		s.counts["woken"]++
	case what < 24:
		s.take().signal(syscall.SIGTERM)
		s.counts["ended"]++
	case what == 24 && s.counts["database crashed"] < 3*minutes:
		if err := s.server.Restart(s.t.Context(), pgserver.Immediate); err != nil {
			s.t.Fatal(err)
		}
		s.counts["database crashed"]++
	case what < 27 && s.counts["records deleted"] < 12*minutes:
		s.deleteRecords()
	case what == 27 && s.counts["offsets reset"]+s.counts["group deleted"]+s.counts["group and progress deleted"] < 4*minutes:
		s.reset()
	case what == 28 && s.partitions < 8 && s.random.IntN(3) == 0:
		s.partitions++
		if _, err := s.admin.CreatePartitions(s.t.Context(), 1, s.spec.Topic); err != nil {
			s.t.Fatal(err)
		}
		s.counts["partitions added"]++
	case what == 29 && len(s.stopped) == 0:
		s.prune()
	default:
		s.publish(100 + s.random.IntN(400))
	}
}

// deleteRecords takes the head of a partition away, mostly what was handled,
// sometimes a little more.
func (s *soak) deleteRecords() {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	id := int32(s.random.IntN(int(s.partitions)))
	var next int64
	if err := s.pool.QueryRow(ctx, "SELECT coalesce((SELECT next_offset FROM consumer_progress WHERE partition = $1), 0)", id).Scan(&next); err != nil {
		return // the database is down just now
	}
	ends, err := s.admin.ListEndOffsets(ctx, s.spec.Topic)
	end, ok := ends.Lookup(s.spec.Topic, id)
	if err != nil || !ok || end.Err != nil {
		return
	}
	upTo := min(end.Offset, next-int64(s.random.IntN(60)))
	if s.random.IntN(2) == 0 {
		upTo = min(end.Offset, next+int64(s.random.IntN(40)))
	}
	if upTo <= 0 {
		return
	}
	s.tape.wait(id, upTo)
	var o kadm.Offsets
	o.AddOffset(s.spec.Topic, id, upTo, -1)
	if _, err := s.admin.DeleteRecords(ctx, o); err != nil {
		s.t.Fatal(err)
	}
	s.counts["records deleted"]++
}

// reset ends all members and leaves the group's offsets in another state. It
// also is the moment to change the group's protocol.
func (s *soak) reset() {
	for _, p := range append(s.members, s.stopped...) {
		if s.random.IntN(2) == 0 {
			p.signal(syscall.SIGCONT)
			p.signal(syscall.SIGTERM)
			p.wait(20 * time.Second)
		}
		p.kill()
	}
	s.members, s.stopped = nil, nil
	ctx, cancel := context.WithTimeout(s.t.Context(), 60*time.Second)
	defer cancel()
	starts, err1 := s.admin.ListStartOffsets(ctx, s.spec.Topic)
	ends, err2 := s.admin.ListEndOffsets(ctx, s.spec.Topic)
	if err := errors.Join(err1, err2); err != nil {
		s.t.Fatal(err)
	}
	try := func(what string, f func() error) { // until the members' sessions have ended
		for err := f(); err != nil; err = f() {
			if ctx.Err() != nil {
				s.t.Fatalf("%s: %v", what, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	remove := func() error {
		r, err := s.admin.DeleteGroup(ctx, s.spec.Group)
		if err == nil {
			err = r.Err
		}
		if err != nil && strings.Contains(err.Error(), "GROUP_ID_NOT_FOUND") {
			return nil
		}
		return err
	}
	switch how := s.random.IntN(6); how {
	case 0:
		try("delete the group", remove)
		s.counts["group deleted"]++
	case 1:
		try("delete the group", remove)
		try("delete the progress", func() error { _, err := s.pool.Exec(ctx, "DELETE FROM consumer_progress"); return err })
		ends.Each(func(o kadm.ListedOffset) { s.forgotten[o.Partition] = o.Offset })
		s.counts["group and progress deleted"]++
	default:
		known := map[int32]bool{}
		try("read the progress", func() error {
			rows, err := s.pool.Query(ctx, "SELECT partition FROM consumer_progress")
			if err != nil {
				return err
			}
			var id int32
			_, err = pgx.ForEachRow(rows, []any{&id}, func() error { known[id] = true; return nil })
			return err
		})
		var o kadm.Offsets
		ends.Each(func(end kadm.ListedOffset) {
			start, _ := starts.Lookup(end.Topic, end.Partition)
			at := start.Offset // earliest
			switch how {
			case 2: // latest
				at = end.Offset
			case 3, 4: // anywhere
				at += s.random.Int64N(end.Offset - start.Offset + 1)
			}
			if !known[end.Partition] {
				at = start.Offset // nobody but the operator could tell that this skips events
			}
			o.AddOffset(end.Topic, end.Partition, at, -1)
		})
		try("reset the offsets", func() error { return s.admin.CommitAllOffsets(ctx, s.spec.Group, o) })
		s.counts["offsets reset"]++
	}
	if s.real {
		s.serverSide = s.random.IntN(2) == 0
		s.counts[map[bool]string{true: "phases by KIP-848", false: "phases by the classic protocol"}[s.serverSide]]++
	}
}

// prune makes markers old whose records are gone from the log, and runs the
// pruner. Fifty offsets are left for what was published twice, and what has
// just been fetched is left alone: in life it is days away from being pruned.
func (s *soak) prune() {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	starts, err := s.admin.ListStartOffsets(ctx, s.spec.Topic)
	if err != nil {
		return
	}
	starts.Each(func(o kadm.ListedOffset) {
		_, err = s.pool.Exec(ctx, `UPDATE processed_events SET processed_at = now() - interval '9 days'
WHERE partition = $1 AND "offset" < $2 AND processed_at < now() - interval '20 seconds'`, o.Partition, o.Offset-50)
	})
	if err != nil {
		return
	}
	if _, err := s.pool.Exec(ctx, `INSERT INTO soak_pruned SELECT event_id, topic, partition, "offset" FROM processed_events WHERE processed_at < now() - interval '8 days' ON CONFLICT DO NOTHING`); err != nil {
		return
	}
	p := s.stage.start(func(sp *spec) { sp.Mode = "prune" })
	p.wait(60 * time.Second)
	s.counts["pruned"]++
}

// drain wakes and ends everybody and lets a sound member do the rest.
func (s *soak) drain() {
	for _, p := range s.members {
		p.kill()
	}
	for _, p := range s.stopped {
		p.signal(syscall.SIGCONT)
	}
	last := s.stage.start(func(sp *spec) { sp.ServerSide = s.serverSide })
	s.all = append(s.all, last)
	began := time.Now()
	err := s.drained(20 * time.Second)
	for err != nil && time.Since(began) < 2*time.Minute+*soakFor {
		if !s.real {
			s.evict()
		}
		err = s.drained(20 * time.Second)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("drained in %s", time.Since(began).Round(time.Millisecond))
	last.stop()
	for _, p := range s.stopped {
		p.kill()
	}
}

// evict takes all members out of the group; those that live join again. kfake
// watches over a member from its first heartbeat on: one that was killed between
// joining and that would keep its partitions for ever.
func (s *soak) evict() {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	groups, err := s.admin.DescribeGroups(ctx, s.spec.Group)
	if err != nil {
		s.t.Fatal(err)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = s.spec.Group
	for _, m := range groups[s.spec.Group].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		leave.Members = append(leave.Members, member)
	}
	if _, err := leave.RequestWith(ctx, s.kafka); err != nil {
		s.t.Fatal(err)
	}
	s.counts["evicted"] += len(leave.Members)
}

var lossLine = regexp.MustCompile(`the broker deleted records before they were handled" .*partition=(\d+) from_offset=(\d+) to_offset=(\d+)`)

// verdict compares what was published with what was applied, put aside and
// counted as lost.
func (s *soak) verdict() {
	ends, err := s.admin.ListEndOffsets(s.t.Context(), s.spec.Topic)
	if err != nil {
		s.t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { s.tape.wait(o.Partition, o.Offset) })
	counted := map[place]bool{}
	for _, p := range s.all {
		text, err := os.ReadFile(p.log)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, m := range lossLine.FindAllSubmatch(text, -1) {
			partition, _ := strconv.Atoi(string(m[1]))
			from, _ := strconv.ParseInt(string(m[2]), 10, 64)
			to, _ := strconv.ParseInt(string(m[3]), 10, 64)
			for o := from; o <= to; o++ {
				counted[place{int32(partition), o}] = true
			}
		}
		if bytes.Contains(text, []byte("panic:")) {
			s.t.Errorf("a member panicked: %s", p.log)
		}
	}
	applied, at := map[string]bool{}, map[place]bool{}
	rows, err := s.pool.Query(s.t.Context(), `SELECT event_id, partition, "offset" FROM processed_events UNION ALL SELECT event_id, partition, "offset" FROM soak_pruned p WHERE NOT EXISTS (SELECT FROM processed_events m WHERE m.event_id = p.event_id)`)
	if err != nil {
		s.t.Fatal(err)
	}
	for rows.Next() {
		var id string
		var pl place
		if err := rows.Scan(&id, &pl.partition, &pl.offset); err != nil {
			s.t.Fatal(err)
		}
		applied[id], at[pl] = true, true
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	entries, err1 := s.query("SELECT count(*) FROM ledger_entries")
	distinct, err2 := s.query("SELECT count(DISTINCT event_id) FROM ledger_entries")
	torn, err3 := s.query("SELECT count(*) FROM processed_events m FULL JOIN ledger_entries e USING (event_id) WHERE m.txid IS DISTINCT FROM e.txid AND NOT EXISTS (SELECT FROM soak_pruned p WHERE p.event_id = e.event_id)")
	balances, err4 := s.query(`SELECT count(*) FROM (SELECT account, sum(amount) AS sum, count(*) AS n FROM ledger_entries GROUP BY account) e
FULL JOIN accounts a USING (account) WHERE a.balance IS DISTINCT FROM e.sum OR a.entries IS DISTINCT FROM e.n`)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		s.t.Fatal(err)
	}
	if entries != distinct || int(distinct) != len(applied) || torn != 0 || balances != 0 {
		s.t.Errorf("DOUBLED OR TORN: %d entries, %d distinct ids, %d markers (with pruned ones), %d not from one transaction, %d balances wrong", entries, distinct, len(applied), torn, balances)
	}
	letters := map[string]bool{}
	rows, err = s.pool.Query(s.t.Context(), "SELECT event_id, reason FROM dead_letters")
	if err != nil {
		s.t.Fatal(err)
	}
	falseLetters := 0
	for rows.Next() {
		var id, reason string
		if err := rows.Scan(&id, &reason); err != nil {
			s.t.Fatal(err)
		}
		letters[id] = true
		if !s.tape.poison[id] {
			falseLetters++
			s.t.Errorf("FALSE DEAD LETTER: %s (%s)", id, reason)
		}
	}
	unseen, lost := 0, 0
	for id, where := range s.tape.where {
		if applied[id] || letters[id] {
			continue
		}
		lost++
		for _, pl := range where {
			if !counted[pl] {
				unseen++
				s.t.Errorf("LOST UNSEEN: %s at %d/%d", id, pl.partition, pl.offset)
			}
		}
	}
	falsely := 0
	for pl := range counted {
		if at[pl] && pl.offset >= s.forgotten[pl.partition] {
			falsely++
			s.t.Errorf("COUNTED AS LOST, but handled: %d/%d", pl.partition, pl.offset)
		}
	}
	s.t.Logf("SOAK %d events, %d published twice, %d poisoned: %d applied, %d dead letters, %d deleted before they were handled (%d offsets counted as lost): %d lost unseen, %d doubled, %d false dead letters, %d falsely counted as lost; %v",
		len(s.tape.where), s.stats.Duplicates, s.stats.Poison, len(applied), len(letters), lost, len(counted), unseen, entries-distinct, falseLetters, falsely, s.counts)
}
