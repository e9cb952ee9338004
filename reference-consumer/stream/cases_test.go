package stream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/stream"
)

// Only deaths count towards a dead letter. Locks that are waited for, restarts
// in order and members that join and leave put no healthy event aside.
func TestNothingHealthyIsDeadLettered(t *testing.T) {
	sound := func(b *bundle, n int) {
		b.t.Helper()
		if n := b.count("SELECT count(*) FROM dead_letters"); n != 0 {
			b.t.Errorf("%d healthy events are dead letters", n)
		}
		b.wantEntries(n)
	}
	t.Run("a lock through eight restarts", func(t *testing.T) {
		b := setup(t, 1)
		b.publish(0, 30)
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), "LOCK TABLE ledger_entries"); err != nil {
			t.Fatal(err)
		}
		for range 8 {
			cfg := b.config(nil, nil)
			cfg.ShutdownTimeout = 900 * time.Millisecond
			m := b.start(cfg)
			b.eventually("it waits for the lock", func() bool {
				return b.count("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT granted AND datname = current_database()") > 0
			})
			if err := m.end(); err != nil {
				t.Error(err)
			}
		}
		if n := b.count("SELECT starts FROM consumer_progress"); n > 1 {
			t.Errorf("%d beginnings are still counted", n)
		}
		_ = tx.Rollback(t.Context())
		b.start(b.config(nil, nil))
		b.eventually("all", func() bool { return b.committed(0) == 30 })
		sound(b, 30)
	})
	t.Run("members that come and go", func(t *testing.T) {
		b := setup(t, 2)
		b.publish(0, 20)
		b.publish(1, 20)
		var hold atomic.Bool
		hold.Store(true)
		config := func() stream.Config {
			cfg := b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
				if hold.Load() {
					_, err := tx.Exec(ctx, "SELECT pg_sleep(0.3)")
					return errors.Join(err, errors.New("not now"))
				}
				return book(ctx, tx, ev)
			}, func(ic *inbox.Config) { ic.MaxAttempts = 1000 })
			cfg.RevokeTimeout = 200 * time.Millisecond
			return cfg
		}
		b.start(config())
		for range 5 {
			m := b.start(config())
			b.eventually("it has a partition", func() bool { _, n := m.metric("consumer_offset_commit_lag_seconds"); return n == 1 })
			if err := m.end(); err != nil {
				t.Error(err)
			}
		}
		hold.Store(false)
		b.eventually("all", func() bool { return b.committed(0) == 20 && b.committed(1) == 20 })
		sound(b, 40)
	})
	t.Run("a panic on another partition", func(t *testing.T) {
		b := setup(t, 2)
		bad := b.publish(0, 1)[0]
		b.publish(1, 20)
		m := b.start(b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
			if ev.ID == bad {
				panic("not this one")
			}
			return book(ctx, tx, ev)
		}, func(ic *inbox.Config) { ic.MaxAttempts = 5 }))
		b.eventually("all", func() bool { return b.committed(0) == 1 && b.committed(1) == 20 })
		m.want(1, "events_dead_lettered_total", "reason", "panic")
		m.want(1, "events_dead_lettered_total")
		b.wantEntries(20)
	})
}

// Records deleted before the consumer came to them are counted and logged with
// their offsets while it runs, without any help from the producer; also where
// nothing is left to fetch. They are counted once.
func TestLossIsSeenAtTheFetch(t *testing.T) {
	for name, c := range map[string]struct {
		upTo, more int
		lost       float64
		log        string
	}{
		"the head of what waits": {60, 0, 10, "from_offset=50 to_offset=59"},
		"all of it":              {90, 0, 40, "from_offset=50 to_offset=89"},
		"all, and more comes":    {90, 5, 40, "from_offset=50 to_offset=89"},
		"nothing":                {50, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			b.publish(0, 50)
			cfg := b.config(nil, nil)
			cfg.LogStartEvery = 50 * time.Millisecond
			m := b.start(cfg)
			b.eventually("the first 50", func() bool { return b.committed(0) == 50 })
			// Nothing is fetched while the log loses its head, as if the process stood still.
			stopped := make(chan struct{})
			b.k.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
				b.k.KeepControl()
				select {
				case <-stopped:
				default:
					b.k.SleepControl(func() { <-stopped })
				}
				return nil, nil, false
			})
			b.publish(0, 40)
			b.deleteUpTo(0, int64(c.upTo))
			b.publish(0, c.more)
			close(stopped)
			end := int64(90 + c.more)
			b.eventually("the end", func() bool { return b.committed(0) == end })
			b.eventually("the loss", func() bool { n, _ := m.metric("events_lost_total", "partition", "0"); return n == c.lost })
			if c.log != "" && !strings.Contains(m.log.String(), c.log) {
				t.Errorf("the log does not show %s", c.log)
			}
			if err := m.end(); err != nil {
				t.Error(err)
			}
			next := b.start(b.config(nil, nil))
			b.publish(0, 3)
			b.eventually("it goes on", func() bool { return b.committed(0) == end+3 })
			next.want(0, "events_lost_total")
			b.wantEntries(93 + c.more - int(c.lost))
		})
	}
}

// A replay's records that the broker deletes were handled before: no loss.
func TestDeletedReplayIsNoLoss(t *testing.T) {
	b := setup(t, 1)
	b.publish(0, 100)
	m := b.start(b.config(nil, nil))
	b.eventually("100", func() bool { return b.committed(0) == 100 })
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	b.commit(0, 0)
	// It dies within the replay: the offset in the database has gone back.
	for _, sql := range []string{"UPDATE consumer_progress SET next_offset = 20"} {
		if _, err := b.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	b.deleteUpTo(0, 70)
	m = b.start(b.config(nil, nil))
	b.publish(0, 1)
	b.eventually("101", func() bool { return b.committed(0) == 101 })
	m.want(0, "events_lost_total")
	b.wantEntries(101)
}

// The position passes what ends a transaction, so that the lag behind a
// transactional producer reaches 0, for committed and for aborted ones; and
// that alone is no event.
func TestPositionPassesControlRecords(t *testing.T) {
	b := setup(t, 1)
	tx, err := kgo.NewClient(kgo.SeedBrokers(b.k.ListenAddrs()...), kgo.TransactionalID("t"), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	transaction := func(name string, n int, end kgo.TransactionEndTry) {
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := tx.ProduceSync(t.Context(), &kgo.Record{Value: []byte(`{"account":"a","amount":1}`), Headers: []kgo.RecordHeader{{Key: "event_id", Value: fmt.Append(nil, name, i)}}}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	transaction("one-", 10, kgo.TryCommit)
	m := b.start(b.config(nil, nil))
	b.eventually("lag 0", func() bool { return b.entries() == 10 && b.committed(0) == 11 && b.end(0) == 11 })
	transaction("two-", 3, kgo.TryAbort)
	b.eventually("lag 0", func() bool { return b.committed(0) == 15 && b.end(0) == 15 })
	transaction("three-", 2, kgo.TryCommit)
	b.eventually("lag 0", func() bool { return b.committed(0) == 18 && b.end(0) == 18 })
	m.want(12, "events_handled_total", "outcome", "processed")
	m.want(0, "events_dead_lettered_total")
	m.want(0, "events_lost_total")
	if err := m.end(); err != nil {
		t.Error(err)
	}
	if n := b.count("SELECT next_offset FROM consumer_progress"); n != 18 {
		t.Errorf("the database stands at %d, want 18", n)
	}
	b.wantEntries(12)
}

// A handler that waits for itself is seen within its bound, named in the log
// and by a series, its partition waits and tries it again, the others go on;
// and the consumer ends in time all the same.
func TestHandlerThatHangs(t *testing.T) {
	b := setup(t, 2)
	b.publish(0, 5)
	b.publish(1, 5)
	stuck := fmt.Sprintf("evt-%06d", 3) // offset 2 of partition 0
	var tries atomic.Int64
	release := make(chan struct{})
	defer close(release)
	log := &testenv.Log{}
	cfg := b.config(func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.ID == stuck && tries.Add(1) <= 2 {
			<-release
		}
		return book(ctx, tx, ev)
	}, func(ic *inbox.Config) {
		ic.HandlerTimeout, ic.Log = 700*time.Millisecond, slog.New(slog.NewTextHandler(log, nil))
	})
	cfg.ShutdownTimeout = 3 * time.Second
	m := b.start(cfg)
	b.eventually("the other partition, and what comes before", func() bool { return b.committed(0) >= 2 && b.committed(1) == 5 })
	b.eventually("the series", func() bool {
		v, n := m.metric("event_handler_oldest_running_seconds", "partition", "0")
		return n == 1 && v >= 0.7
	})
	b.eventually("a line that names the event", func() bool {
		return regexp.MustCompile(`a handler does not return.*partition=0 event_id=` + stuck + ` offset=2`).MatchString(log.String())
	})
	b.eventually("it is tried again", func() bool { return b.committed(0) == 5 })
	m.want(0, "event_handler_oldest_running_seconds", "partition", "1")
	began := time.Now()
	if err := m.end(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s to end", took)
	}
	if n := b.count("SELECT count(*) FROM dead_letters"); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	b.wantEntries(10)
}

// Options that would replace what the consumer rests on are refused at start,
// before the group hears of it; others are not.
func TestOptionsThatBreakTheConsumer(t *testing.T) {
	callback := func(context.Context, *kgo.Client, map[string][]int32) {}
	for name, c := range map[string]struct {
		opt     kgo.Opt
		refused bool
	}{
		"OnPartitionsAssigned": {kgo.OnPartitionsAssigned(callback), true},
		"OnPartitionsRevoked":  {kgo.OnPartitionsRevoked(callback), true},
		"OnPartitionsLost":     {kgo.OnPartitionsLost(callback), true},
		"ConsumerGroup":        {kgo.ConsumerGroup("another"), true},
		"ConsumeTopics":        {kgo.ConsumeTopics("another"), true},
		"ConsumePartitions":    {kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtEnd()}}), true},
		"AdjustFetchOffsetsFn": {kgo.AdjustFetchOffsetsFn(func(_ context.Context, o map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return o, nil
		}), true},
		"FetchIsolationLevel": {kgo.FetchIsolationLevel(kgo.ReadUncommitted()), true},
		"SessionTimeout":      {kgo.SessionTimeout(time.Minute), true},
		"InstanceID":          {kgo.InstanceID("me"), true},
		"FetchMaxWait":        {kgo.FetchMaxWait(100 * time.Millisecond), false},
		"Balancers":           {kgo.Balancers(kgo.CooperativeStickyBalancer()), false},
		"ClientID":            {kgo.ClientID("me"), false},
	} {
		for _, where := range []string{"Client", "Consumer"} {
			t.Run(name+" in "+where, func(t *testing.T) {
				b := setup(t, 1)
				joins := b.k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Observe: true, Count: -1})
				cfg := b.config(nil, nil)
				if where == "Client" {
					cfg.Client = append(cfg.Client, c.opt)
				} else {
					cfg.Consumer = append(cfg.Consumer, c.opt)
				}
				m := b.start(cfg)
				if !c.refused {
					b.publish(0, 3)
					b.eventually("it consumes", func() bool { return b.committed(0) == 3 })
					return
				}
				select {
				case <-m.done:
				case <-time.After(20 * time.Second):
					t.Fatal("it started")
				}
				var refused *stream.RefusedError
				if !errors.As(m.err, &refused) || refused.Violations[0].Name != stream.AssertClientOptions || refused.Passes() {
					t.Errorf("%v, want a refusal for good", m.err)
				}
				if joins.Hits() != 0 {
					t.Error("the group was joined first")
				}
			})
		}
	}
}

// A refusal that time mends is told from one that it does not.
func TestRefusalsThatPass(t *testing.T) {
	v := func(names ...string) *stream.RefusedError {
		e := &stream.RefusedError{}
		for _, n := range names {
			e.Violations = append(e.Violations, stream.Violation{Name: n})
		}
		return e
	}
	for want, list := range map[bool][]*stream.RefusedError{
		true:  {v(stream.AssertPrimary), v(stream.AssertClock, stream.AssertPrimary)},
		false: {v(stream.AssertMarkerRetention), v(stream.AssertPrimary, stream.AssertSchema), v(stream.AssertClientOptions)},
	} {
		for _, e := range list {
			if e.Passes() != want {
				t.Errorf("%v: passes = %v, want %v", e.Violations, e.Passes(), want)
			}
		}
	}
}
