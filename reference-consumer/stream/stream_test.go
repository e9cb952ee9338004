package stream_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	names "oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/stream"
)

var book = payments.Handler("g", payments.NotifyNever)

func TestConsumesAndCounts(t *testing.T) {
	b := setup(t, 2)
	ids := b.publish(0, 300)
	b.publish(1, 200)
	m := b.start(b.config(nil, nil))
	b.eventually("500 entries", func() bool { return b.entries() == 500 })
	b.publishIDs(1, ids[:7]) // published twice
	b.eventually("offsets at the end", func() bool { return b.committed(0) == 300 && b.committed(1) == 207 })
	m.want(500, "events_handled_total", "outcome", "processed")
	m.want(7, "events_handled_total", "outcome", "duplicate")
	m.want(7, "events_duplicate_origin_total", "origin", "other_offset")
	m.want(0, "events_duplicate_origin_total", "origin", "same_offset")
	m.want(507, "event_handle_duration_seconds")
	if _, n := m.metric("consumer_offset_commit_lag_seconds"); n != 2 {
		t.Errorf("%d series of commit lag, want one a partition", n)
	}
	if err := m.end(); err != nil {
		t.Error(err)
	}
	if log := m.log.String(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "level=WARN") {
		t.Error("duplicates are no one's alarm, but there are warnings or errors")
	}
	b.wantEntries(500)
}

// A member that stands by, with more members than partitions, is ready too.
func TestStandbyIsAssignedNothing(t *testing.T) {
	b := setup(t, 1)
	for range 2 {
		ready := make(chan struct{}, 10)
		cfg := b.config(nil, nil)
		cfg.Assigned = func(map[string][]int32) { ready <- struct{}{} }
		b.start(cfg)
		select {
		case <-ready:
		case <-time.After(20 * time.Second):
			t.Fatal("a member did not hear of its assignment")
		}
	}
}

// An effect that fails for no fault of the event's: its partition
// stands exactly at it, the others drain, and it goes on once it heals.
func TestOnlyThePartitionStops(t *testing.T) {
	b := setup(t, 3)
	for p := range int32(3) {
		b.publish(p, 100)
	}
	bad := fmt.Sprintf("evt-%06d", 150) // offset 49 of partition 1
	var healed atomic.Bool
	m := b.start(b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.ID == bad && !healed.Load() {
			tx.Queue("SELECT * FROM not_there_yet")
			return nil
		}
		return book(ctx, tx, ev)
	}, nil))
	b.eventually("the others drain", func() bool { return b.committed(0) == 100 && b.committed(2) == 100 })
	b.eventually("the prefix is committed", func() bool { return b.committed(1) == 49 })
	m.want(1, "consumer_partition_stopped", "partition", "1")
	b.wantEntries(249)
	if log := m.log.String(); !strings.Contains(log, "event_id="+bad) || !strings.Contains(log, "partition=1 ") || !strings.Contains(log, "offset=49") {
		t.Error("the log does not name the event and its place")
	}
	healed.Store(true)
	b.eventually("it goes on", func() bool { return b.committed(1) == 100 })
	b.wantEntries(300)
	if err := m.end(); err != nil {
		t.Error(err)
	}
}

// Nor does its gauge stay where the partition was.
func TestStoppedPartitionIsRevoked(t *testing.T) {
	b := setup(t, 2)
	b.publish(0, 1)
	b.publish(1, 1)
	first := b.start(b.config(func(_ context.Context, tx *inbox.Tx, _ inbox.Event) error {
		tx.Queue("SELECT * FROM not_there")
		return nil
	}, nil))
	stopped := func(want int) func() bool {
		return func() bool { _, n := first.metric("consumer_partition_stopped"); return n == want }
	}
	b.eventually("both are stopped", stopped(2))
	b.start(b.config(nil, nil))
	b.eventually("the second applies one", func() bool { return b.entries() == 1 })
	b.eventually("the first shows the other alone", stopped(1))
}

// A handler that commits by itself stops its partition for good.
func TestHandlerBugStopsThePartition(t *testing.T) {
	b := setup(t, 2)
	b.publish(0, 30)
	b.publish(1, 30)
	m := b.start(b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.Partition == 0 && ev.Offset == 10 {
			_, _ = tx.Exec(ctx, "COMMIT")
			return nil
		}
		return book(ctx, tx, ev)
	}, nil))
	b.eventually("the rest", func() bool { return b.committed(0) == 10 && b.committed(1) == 30 })
	b.eventually("a clear message", func() bool {
		return strings.Contains(m.log.String(), "the handler must not control the transaction")
	})
	b.wantEntries(40)
	if err := m.end(); err != nil {
		t.Error(err)
	}
	b.wantEntries(40)
}

// Transient errors are retried a bounded number of times.
func TestTransientErrorIsRetried(t *testing.T) {
	b := setup(t, 1)
	b.publish(0, 10)
	var failures atomic.Int32
	m := b.start(b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.Offset == 4 && failures.Add(1) <= 3 {
			tx.Queue("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
			return nil
		}
		return book(ctx, tx, ev)
	}, nil))
	b.eventually("all", func() bool { return b.committed(0) == 10 })
	if n, _ := m.metric("event_retries_total"); n < 3 {
		t.Errorf("%v retries counted, want at least 3", n)
	}
	m.want(0, "events_dead_lettered_total")
	b.wantEntries(10)
}

func TestDeadLettersAreCounted(t *testing.T) {
	b := setup(t, 1)
	ids := b.publish(0, 5)
	if err := b.client.ProduceSync(t.Context(),
		&kgo.Record{Topic: topic, Value: []byte("{"), Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte("broken")}}},
		&kgo.Record{Topic: topic, Value: []byte(`{"account":"a","amount":0}`), Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte("nothing")}}},
		&kgo.Record{Topic: topic, Value: []byte(`{"account":"a","amount":1}`)},
		&kgo.Record{Topic: topic, Value: []byte(`{"account":"a","amount":1}`), Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte(ids[0])}}},
	).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.config(nil, nil))
	b.eventually("all", func() bool { return b.committed(0) == 9 })
	m.want(2, "events_dead_lettered_total", "reason", "decode")
	m.want(1, "events_dead_lettered_total", "reason", "data")
	m.want(1, "events_dead_lettered_total", "reason", "id_conflict")
	m.want(1, "events_duplicate_origin_total", "origin", "other_offset")
	// Both offsets are in the log.
	if log := m.log.String(); !strings.Contains(log, "reason=id_conflict") || !strings.Contains(log, "offset=8") || !strings.Contains(log, "first_offset=0") {
		t.Error("the log does not show both offsets of an id conflict")
	}
	b.wantEntries(5)
}

// Whatever bytes a record is made of, its event is handled or in the
// dead letters, and those behind it are applied.
func TestHostileRecords(t *testing.T) {
	b := setup(t, 1)
	long := make([]byte, 100_000) // does not compress into an index row
	for i := range long {
		long[i] = 'a' + byte(rand.IntN(26))
	}
	header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	one := header(names.Sequence, "1")
	for _, name := range []string{"a\x00b", "a\xffb", string(long)} {
		b.publish(0, 2, header(names.Producer, name), one)
	}
	b.numbered(0, strings.Repeat("p", 255), 1)
	ok := b.seq // events that can be applied
	for i, r := range []*kgo.Record{
		{Value: []byte("{"), Headers: []kgo.RecordHeader{header("a\x00b", "v")}},
		{Value: []byte("{"), Headers: []kgo.RecordHeader{header("a\xffb", "v")}},
		{Value: []byte("{"), Headers: []kgo.RecordHeader{header("event_id", string(long))}},
		{Value: fmt.Appendf(nil, `{"account":"%s","amount":5}`, long)},
		{Value: fmt.Appendf(nil, `{"account":"a","amount":5,"payment_id":"%s"}`, long)},
	} {
		r.Topic, r.Headers = topic, append([]kgo.RecordHeader{header(names.EventID, fmt.Sprint("hostile-", i))}, r.Headers...)
		if err := b.client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		ok += len(b.publish(0, 1))
	}
	m := b.start(b.config(payments.Handler("g", payments.NotifyOperation), nil))
	b.eventually("all", func() bool { return b.committed(0) == int64(ok)+5 })
	if n := b.count("SELECT count(*) FROM dead_letters"); n != 5 {
		t.Errorf("%d dead letters, want 5", n)
	}
	if n := b.count("SELECT count(*) FROM producer_sequences"); n != 1 {
		t.Errorf("%d producers numbered, want the one that can be", n)
	}
	m.want(2, "events_dead_lettered_total", "reason", "data")
	b.wantEntries(ok)
}

// The revoked partition's transaction is late; nothing is committed
// for it after the revocation.
func TestNoCommitAfterRevoke(t *testing.T) {
	b := setup(t, 2)
	b.publish(0, 20)
	b.publish(1, 20)
	release := make(chan struct{})
	holding := make(chan int32, 10)
	var free sync.Once
	defer free.Do(func() { close(release) })
	cfg := b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.Offset == 10 {
			holding <- ev.Partition
			<-release
		}
		return book(ctx, tx, ev)
	}, nil)
	cfg.RevokeTimeout = 300 * time.Millisecond
	first := b.start(cfg)
	<-holding
	<-holding // both partitions hold an effect

	second := b.start(b.config(nil, nil))
	b.eventually("the second has a partition", func() bool { _, n := second.metric("consumer_offset_commit_lag_seconds"); return n == 1 })
	var gone int32 = -1
	for p := range int32(2) {
		if _, n := second.metric("consumer_offset_commit_lag_seconds", "partition", fmt.Sprint(p)); n == 1 {
			gone = p
		}
	}
	b.eventually("the second is through", func() bool { return b.committed(gone) == 20 })
	// The first no longer shows it.
	if _, n := first.metric("consumer_offset_commit_lag_seconds", "partition", fmt.Sprint(gone)); n != 0 {
		t.Error("the first still shows the revoked partition's commit lag")
	}
	commits := b.k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: topic, Partitions: []int32{gone}, Observe: true, Count: -1})
	free.Do(func() { close(release) })
	b.eventually("the first finishes its other one", func() bool { return b.committed(1-gone) == 20 })
	if n := commits.Hits(); n != 0 {
		t.Errorf("%d offset commits for the revoked partition after it was revoked", n)
	}
	if got := b.committed(gone); got != 20 {
		t.Errorf("its offset went back to %d", got)
	}
	b.wantEntries(40)
}

// A handler slower than the rebalance may take.
func TestSlowHandlerOutlivesTheRebalance(t *testing.T) {
	b := setup(t, 2)
	b.publish(0, 5)
	b.publish(1, 5)
	var slow atomic.Bool
	slow.Store(true)
	started := make(chan struct{}, 20)
	cfg := b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if slow.Load() {
			started <- struct{}{}
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(3)"); err != nil {
				return err
			}
		}
		return book(ctx, tx, ev)
	}, func(ic *inbox.Config) {
		ic.StatementTimeout, ic.TransactionTimeout = time.Second, 1500*time.Millisecond
	})
	cfg.RebalanceTimeout, cfg.RevokeTimeout = 2*time.Second, time.Second
	b.start(cfg)
	<-started
	quick := b.config(nil, func(ic *inbox.Config) {
		ic.StatementTimeout, ic.TransactionTimeout = time.Second, 1500*time.Millisecond
	})
	quick.RebalanceTimeout = 2 * time.Second
	b.start(quick)
	time.AfterFunc(2*time.Second, func() { slow.Store(false) })
	b.eventually("all", func() bool { return b.committed(0) == 5 && b.committed(1) == 5 })
	b.wantEntries(10)
}

// Members join and leave all the time.
func TestRebalanceStorm(t *testing.T) {
	b := setup(t, 6)
	const n = 3000
	for p := range int32(6) {
		b.publish(p, n/6)
	}
	handler := func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		time.Sleep(time.Millisecond)
		return book(ctx, tx, ev)
	}
	config := func() *member {
		cfg := b.config(handler, nil)
		cfg.BatchSize = 10
		return b.start(cfg)
	}
	random := rand.New(rand.NewPCG(1, 2))
	members := []*member{config()}
	deadline := time.Now().Add(10 * time.Second)
	changes := 0
	for time.Now().Before(deadline) && b.entries() < n {
		if len(members) < 5 && random.IntN(2) == 0 || len(members) == 1 {
			members = append(members, config())
		} else {
			i := random.IntN(len(members))
			if err := members[i].end(); err != nil {
				t.Error(err)
			}
			members = append(members[:i], members[i+1:]...)
		}
		changes++
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
	}
	b.eventually("all", func() bool { return b.entries() >= n })
	b.wantEntries(n)
	t.Logf("%d changes of membership", changes)
}

// Shutdown within a batch: it is finished, its offset committed,
// nothing is redelivered, and no goroutine stays.
func TestShutdownFinishesTheBatch(t *testing.T) {
	b := setup(t, 1)
	b.publish(0, 200)
	inBatch := make(chan struct{})
	var once sync.Once
	cfg := b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		once.Do(func() { close(inBatch) })
		time.Sleep(2 * time.Millisecond)
		return book(ctx, tx, ev)
	}, nil)
	cfg.BatchSize = 50
	m := b.start(cfg)
	<-inBatch
	began := time.Now()
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("shutdown took %s", took)
	}
	done := b.entries()
	if done == 0 || done == 200 {
		t.Fatalf("%d applied: the test must stop within the topic", done)
	}
	if got := b.committed(0); got != int64(done) {
		t.Errorf("committed %d, applied %d", got, done)
	}
	next := b.start(b.config(nil, nil))
	b.eventually("all", func() bool { return b.committed(0) == 200 })
	next.want(0, "events_handled_total", "outcome", "duplicate")
	b.wantEntries(200)
}

// The deadline holds even if a handler never returns in time.
func TestShutdownDeadline(t *testing.T) {
	b := setup(t, 1)
	b.publish(0, 5)
	started := make(chan struct{}, 1)
	cfg := b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		select {
		case started <- struct{}{}:
		default:
		}
		_, err := tx.Exec(ctx, "SELECT pg_sleep(4)")
		return err
	}, nil)
	cfg.ShutdownTimeout = 900 * time.Millisecond
	m := b.start(cfg)
	<-started
	began := time.Now()
	err := m.end()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("shutdown took %s (%v), deadline 900 ms", took, err)
	}
	if got := b.committed(0); got > 0 {
		t.Errorf("committed %d although nothing was applied", got)
	}
	b.wantEntries(0)
}

// Told to stop while its join waits for a member that is not coming:
// it leaves at once, or after it has waited in vain to commit.
func TestShutdownDuringARebalance(t *testing.T) {
	for _, pending := range []bool{false, true} {
		t.Run(fmt.Sprint("pending=", pending), func(t *testing.T) {
			b := setup(t, 2)
			b.publish(0, 5)
			cfg := b.config(nil, nil)
			cfg.ShutdownTimeout = 4 * time.Second
			m := b.start(cfg)
			b.eventually("committed", func() bool { return b.committed(0) == 5 })
			groups, err := b.admin.DescribeGroups(t.Context(), "g")
			if err != nil {
				t.Fatal(err)
			}
			me := groups["g"].Members[0].MemberID
			joining, gone := make(chan struct{}), make(chan struct{})
			var once sync.Once
			b.k.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
				b.k.KeepControl()
				if req.(*kmsg.JoinGroupRequest).MemberID == me {
					once.Do(func() { close(joining) })
					b.k.SleepControl(func() { <-gone })
				}
				return nil, nil, false
			})
			defer close(gone)
			other := b.start(b.config(nil, nil)) // makes the group rebalance
			<-joining
			if pending {
				b.publish(0, 5)
				b.eventually("applied", func() bool { return b.entries() == 10 })
			}
			began := time.Now()
			if err := m.end(); err != nil {
				t.Error(err)
			}
			took := time.Since(began)
			warned := strings.Contains(m.log.String(), "final offset commit failed")
			if limit := map[bool]time.Duration{false: 3 * time.Second, true: 5 * time.Second}[pending]; took > limit || warned != pending {
				t.Errorf("it took %s, warned %v, want at most %s and %v", took, warned, limit, pending)
			}
			if strings.Contains(m.log.String(), "could not leave") {
				t.Error("it did not leave the group")
			}
			t.Logf("ended after %s", took.Round(time.Millisecond))
			b.eventually("the other goes on", func() bool { return b.committed(0) == int64(b.entries()) })
			if err := other.end(); err != nil {
				t.Error(err)
			}
			b.wantEntries(b.entries())
		})
	}
}

// Told to stop while it still checks its surroundings: no error.
func TestStopBeforeTheStart(t *testing.T) {
	b := setup(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := stream.Run(ctx, b.config(nil, nil)); err != nil {
		t.Error(err)
	}
}

// The broker refuses the commit of one partition in an answer that
// is otherwise a success.
func TestRefusedCommit(t *testing.T) {
	b := setup(t, 2)
	for _, refusal := range []*kerr.Error{kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.UnknownServerError} {
		refused := b.k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: topic, Partitions: []int32{1}, Err: refusal, Count: 3})
		before := b.committed(1)
		b.publish(0, 50)
		b.publish(1, 50)
		m := b.start(b.config(nil, nil))
		b.eventually("commit in spite of "+refusal.Message, func() bool { return refused.Hits() == 3 && b.committed(1) == max(before, 0)+50 })
		if err := m.end(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(m.log.String(), refusal.Message) {
			t.Errorf("%s is not logged", refusal.Message)
		}
	}
	b.wantEntries(300)
}

// The commit lag grows while the broker takes no commits, and falls when it
// does.
func TestCommitLagGrows(t *testing.T) {
	b := setup(t, 1)
	fault := b.k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: topic, Err: kerr.CoordinatorNotAvailable, Count: -1})
	var skew atomic.Int64
	cfg := b.config(nil, nil)
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	m := b.start(cfg)
	b.publish(0, 10)
	b.eventually("handled", func() bool { return b.entries() == 10 })
	skew.Store(int64(time.Minute))
	b.eventually("a growing lag", func() bool {
		lag, _ := m.metric("consumer_offset_commit_lag_seconds")
		return lag >= 60 && lag < 80
	})
	skew.Store(int64(2 * time.Minute))
	if lag, _ := m.metric("consumer_offset_commit_lag_seconds"); lag < 120 {
		t.Errorf("lag %v a minute later, want 120 or more", lag)
	}
	fault.Remove()
	b.eventually("the commit", func() bool { return b.committed(0) == 10 })
	b.publish(0, 1)
	b.eventually("the next commit", func() bool { return b.committed(0) == 11 })
	b.eventually("a small lag", func() bool { lag, _ := m.metric("consumer_offset_commit_lag_seconds"); return lag < 1 })
}

// What the group has committed is wrong or gone; the
// database's own offset decides.
func TestReconciliation(t *testing.T) {
	for name, c := range map[string]struct {
		spoil      func(b *bundle)
		duplicates float64
		lost       float64
		entries    int
	}{
		"group deleted": {spoil: func(b *bundle) {
			if _, err := b.admin.DeleteGroups(context.Background(), "g"); err != nil {
				b.t.Fatal(err)
			}
		}, entries: 150},
		"committed ahead of the database": {spoil: func(b *bundle) {
			b.publish(0, 40) // 100..139
			b.commit(0, 130)
		}, entries: 190},
		"replay by an operator": {spoil: func(b *bundle) { b.commit(0, 25) }, duplicates: 75, entries: 150},
		"committed beyond the end": {spoil: func(b *bundle) {
			b.commit(0, 100_000)
		}, entries: 150},
		"committed below the start": {spoil: func(b *bundle) {
			b.commit(0, 10)
			b.deleteUpTo(0, 60)
		}, entries: 150},
		"records deleted before they were handled": {spoil: func(b *bundle) {
			b.publish(0, 40)
			b.deleteUpTo(0, 120)
		}, lost: 20, entries: 170},
		"database restored to an older state": {spoil: func(b *bundle) {
			for _, sql := range []string{
				`DELETE FROM ledger_entries WHERE event_id IN (SELECT event_id FROM processed_events WHERE "offset" >= 70)`,
				`DELETE FROM processed_events WHERE "offset" >= 70`,
				`UPDATE consumer_progress SET next_offset = 70`,
			} {
				if _, err := b.pool.Exec(context.Background(), sql); err != nil {
					b.t.Fatal(err)
				}
			}
		}, entries: 150},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			b.publish(0, 100)
			m := b.start(b.config(nil, nil))
			b.eventually("100", func() bool { return b.committed(0) == 100 })
			if err := m.end(); err != nil {
				t.Fatal(err)
			}
			c.spoil(b)
			m = b.start(b.config(nil, nil))
			b.publish(0, 50)
			b.eventually(fmt.Sprintf("%d entries", c.entries), func() bool { return b.entries() >= c.entries })
			end := b.end(0)
			b.eventually("offset at the end", func() bool { return b.committed(0) == end })
			m.want(c.duplicates, "events_handled_total", "outcome", "duplicate")
			m.want(c.duplicates, "events_duplicate_origin_total", "origin", "same_offset")
			m.want(c.lost, "events_lost_total")
			b.wantEntries(c.entries)
		})
	}
}

// The topic is deleted and created anew: its offsets mean nothing.
func TestRecreatedTopic(t *testing.T) {
	b := setup(t, 1)
	ids := b.publish(0, 100)
	m := b.start(b.config(nil, nil))
	b.eventually("100", func() bool { return b.committed(0) == 100 })
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	// A producer keeps the old topic's id and sequence: take a new one.
	b.connect()
	b.eventually("the new topic", func() bool {
		return b.client.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte(`{"account":"a","amount":5}`), Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte("first-of-the-new")}}}).FirstErr() == nil
	})
	b.publishIDs(0, ids[:30]) // markers of the old topic still hold
	b.publish(0, 20)
	m = b.start(b.config(nil, nil))
	b.eventually("121", func() bool { return b.entries() == 121 })
	b.eventually("offset", func() bool { return b.committed(0) == 51 })
	m.want(30, "events_handled_total", "outcome", "duplicate")
	b.wantEntries(121)
}

// Under a running consumer, which cannot follow the new topic's id:
// it ends with the remedy, once the brokers have had time to know it.
func TestRecreatedTopicUnderARunningConsumer(t *testing.T) {
	b := setup(t, 1)
	ids := b.publish(0, 50)
	m := b.start(b.config(nil, nil))
	b.eventually("50", func() bool { return b.committed(0) == 50 })
	fault := b.k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: topic, Err: kerr.UnknownTopicID, Count: -1})
	select {
	case <-m.done:
	case <-time.After(time.Minute):
		t.Fatal("the consumer goes on without its topic")
	}
	if m.err == nil || !strings.Contains(m.err.Error(), "created anew: start the consumer again") {
		t.Errorf("error: %v", m.err)
	}
	if n := strings.Count(m.log.String(), "do not know the topic's id"); n != 1 {
		t.Errorf("%d lines of it in the log, want 1", n)
	}
	fault.Remove()
	b.start(b.config(nil, nil))
	b.publish(0, 1)
	b.eventually("51", func() bool { return b.committed(0) == 51 })
	b.wantEntries(len(ids) + 1)
}

// Gaps in a producer's numbers are lost events, after a time of grace in which
// they may still come; the memory of them survives a restart.
func TestSequenceGaps(t *testing.T) {
	b := setup(t, 1)
	var skew atomic.Int64
	config := func() *member {
		cfg := b.config(nil, nil)
		cfg.GapGrace = time.Minute
		cfg.Guard.Allow = []string{stream.AssertClock} // this test sets it
		cfg.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
		return b.start(cfg)
	}
	m := config()
	b.numbered(0, "a", 5, 6, 7, 10, 11, 14) // begins at 5: what was before is unknown; 8, 9, 12, 13 missing
	b.numbered(0, "b", 1, 2, 3)
	b.numbered(0, "a", 9)    // late, not lost
	b.numbered(0, "a", 6, 7) // redelivered
	b.eventually("12", func() bool { return b.committed(0) == 12 })
	m.want(0, "events_lost_total")
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	m = config()
	b.numbered(0, "a", 15)
	b.eventually("13", func() bool { return b.committed(0) == 13 })
	m.want(0, "events_lost_total")
	skew.Store(int64(2 * time.Minute))
	b.numbered(0, "a", 16)
	b.eventually("14", func() bool { return b.committed(0) == 14 })
	m.want(3, "events_lost_total") // 8, 12, 13
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	m = config()
	b.numbered(0, "a", 17)
	b.eventually("15", func() bool { return b.committed(0) == 15 })
	m.want(0, "events_lost_total") // counted once
}

// A gap is counted although nothing comes after it.
func TestGapOfAnIdlePartition(t *testing.T) {
	b := setup(t, 1)
	cfg := b.config(nil, nil)
	cfg.GapGrace = 200 * time.Millisecond
	m := b.start(cfg)
	b.numbered(0, "a", 1, 5)
	b.eventually("the loss is counted", func() bool { n, _ := m.metric("events_lost_total"); return n == 3 })
}

// An aborted transaction leaves a gap in the offsets, not a loss.
func TestAbortedTransactionIsNoLoss(t *testing.T) {
	b := setup(t, 1)
	b.publish(0, 10)
	tx, err := kgo.NewClient(kgo.SeedBrokers(b.k.ListenAddrs()...), kgo.TransactionalID("t"), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	if err := tx.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		if err := tx.ProduceSync(t.Context(), &kgo.Record{Value: []byte(`{"account":"a","amount":1}`), Headers: []kgo.RecordHeader{{Key: "event_id", Value: fmt.Append(nil, "aborted-", i)}}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	b.publish(0, 10)
	m := b.start(b.config(nil, nil))
	b.eventually("20", func() bool { return b.entries() == 20 })
	b.eventually("offset", func() bool { return b.committed(0) == b.end(0) })
	m.want(0, "events_lost_total")
	b.wantEntries(20)
}

// A partition whose records wait does not fill the memory, nor keep the others
// from being fetched.
func TestOnePartitionIsPausedAlone(t *testing.T) {
	b := setup(t, 2)
	release := make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	b.publish(0, 30_000)
	cfg := b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.Partition == 0 {
			<-release
		}
		return book(ctx, tx, ev)
	}, func(ic *inbox.Config) { ic.IdleTimeout = 20 * time.Second; ic.TransactionTimeout = 20 * time.Second })
	cfg.SessionTimeout, cfg.RebalanceTimeout = 30*time.Second, 60*time.Second
	b.start(cfg)
	for range 5 {
		b.publish(1, 100)
		end := b.end(1)
		b.eventually("the other partition", func() bool { return b.committed(1) == end })
	}
	once.Do(func() { close(release) })
	b.eventually("the paused one resumes", func() bool { return b.committed(0) >= 15_000 })
}

func (b *bundle) commit(partition int32, at int64) {
	b.t.Helper()
	var o kadm.Offsets
	o.AddOffset(topic, partition, at, -1)
	b.eventually("an empty group", func() bool {
		err := b.admin.CommitAllOffsets(context.Background(), "g", o)
		return err == nil && b.committed(partition) == at
	})
}

func (b *bundle) deleteUpTo(partition int32, at int64) {
	b.t.Helper()
	var o kadm.Offsets
	o.AddOffset(topic, partition, at, -1)
	if _, err := b.admin.DeleteRecords(context.Background(), o); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) end(partition int32) int64 {
	b.t.Helper()
	ends, err := b.admin.ListEndOffsets(context.Background(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	o, ok := ends.Lookup(topic, partition)
	if !ok {
		b.t.Fatal(errors.New("no end offset"))
	}
	return o.Offset
}
