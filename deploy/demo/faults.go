package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/prune"
)

// Fault is one thing that goes wrong in a stack.
type Fault struct {
	Name string
	// Story says what happens and what to look for.
	Story string

	prepare func(*Stack)
	inject  func(context.Context, *Stack) error
}

// Prepare changes the stack before it starts, for what a fault needs to be
// there from the beginning.
func (f Fault) Prepare(s *Stack) {
	if f.prepare != nil {
		f.prepare(s)
	}
}

// Inject makes it go wrong in a stack that runs. What goes on in the
// background ends with the stack.
func (f Fault) Inject(ctx context.Context, s *Stack) error {
	if f.inject == nil {
		return nil
	}
	return f.inject(ctx, s)
}

// always is often enough for a crash loop.
const always = math.MaxInt64

const day = 24 * time.Hour

// Faults are the faults the demo knows, by name: the failure tables of the two
// documents first.
func Faults() []Fault {
	return []Fault{
		{Name: "own-connection", Story: "The handler writes every other effect on a connection of its own: marker and effect commit apart. Both tables still count the same; processed_events_divergent_rows tells once the minute is closed.",
			inject: func(ctx context.Context, s *Stack) error {
				s.Consumer.Inbox.Handler = s.ownConnection()
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "offset-first", Story: "A consumer commits its offset before its transaction and crashes in between: the events were never applied and will not be delivered again. The gap in the producer's sequence tells.",
			inject: func(ctx context.Context, s *Stack) error {
				s.StopConsumer(0)
				if !sleep(ctx, 2*time.Second) { // events that it fetched, and acknowledged at once
					return ctx.Err()
				}
				if err := s.CommitTo(ctx, true); err != nil {
					return err
				}
				// The reference consumer would go back to the offset it keeps in
				// the database; other consumers keep none.
				if err := s.SQL(ctx, "DELETE FROM consumer_progress"); err != nil {
					return err
				}
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "offset-ahead", Story: "The same happens to the reference consumer: it keeps the next offset in the database too, in the same transaction, and goes back to it.",
			inject: func(ctx context.Context, s *Stack) error {
				s.StopConsumer(0)
				if !sleep(ctx, 2*time.Second) {
					return ctx.Err()
				}
				if err := s.CommitTo(ctx, true); err != nil {
					return err
				}
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "short-retention", Story: "The pruner keeps 3 days of markers on a 7-day topic: watch the retention ratio fall below 1 and the unprotected records grow.",
			inject: prunerKeeps(3 * day)},
		{Name: "pruner-stopped", Story: "The pruner has stopped: the table grows past its full retention, until somebody deletes 400 million rows at once.",
			inject: func(_ context.Context, s *Stack) error { s.StopPruner(); return nil }},
		{Name: "unbounded-delete", Story: "Somebody deletes all that is old in one statement. In PostgreSQL that blocks no insert: nothing should happen.",
			prepare: func(s *Stack) { s.Pruner.Retention = 9 * day },
			inject: func(ctx context.Context, s *Stack) error {
				return s.SQL(ctx, "DELETE FROM processed_events WHERE processed_at < now() - interval '8 days'")
			}},
		{Name: "table-locked", Story: "Something holds the marker table exclusively, as DROP of a partition or VACUUM FULL does behind a long reader: the consumer stalls and retries, its lag grows.",
			inject: func(_ context.Context, s *Stack) error {
				s.Go("lock", func(ctx context.Context) error {
					err := s.SQL(ctx, "BEGIN", "LOCK TABLE processed_events IN ACCESS EXCLUSIVE MODE", "SELECT pg_sleep(86400)")
					if ctx.Err() != nil {
						return nil
					}
					return err
				})
				return nil
			}},
		{Name: "id-reuse", Story: "The producer gives 2 % of its events an id that another event had: they vanish as duplicates of another offset.",
			inject: func(_ context.Context, s *Stack) error {
				s.Producer.ReuseIDs = 0.02
				s.StartProducer()
				return nil
			}},

		{Name: "crash-once", Story: "The consumer is killed between the database's commit and the offset's, once: what it had handled is delivered again and skipped.",
			inject: func(_ context.Context, s *Stack) error { s.members[0].crashes.Store(1); return nil }},
		{Name: "crash-loop", Story: "The consumer is killed between the database's commit and the offset's, again and again: the redelivered events are skipped, and the group never comes to rest.",
			prepare: shortSessions,
			inject:  func(_ context.Context, s *Stack) error { s.members[0].crashes.Store(always); return nil }},
		{Name: "outbox-refused", Story: "The receiver refuses the confirmations for good (400): they are given up, and nobody gets them.",
			prepare: confirmations,
			inject:  func(_ context.Context, s *Stack) error { s.receiver.status.Store(http.StatusBadRequest); return nil }},
		{Name: "email-crash", Story: "The email worker crashes each time it has sent a certain confirmation, before it has noted it: the same one is sent again and again, and the outbox keeps it.",
			prepare: confirmations,
			inject:  func(_ context.Context, s *Stack) error { s.receiver.deadly.Store(true); return nil }},
		{Name: "email-twice", Story: "The email worker crashes once after it has sent a confirmation, before it has noted it: that one is sent a second time. Nothing shows it but the receiver's log, where the same Idempotency-Key stands twice.",
			prepare: confirmations,
			inject: func(_ context.Context, s *Stack) error {
				s.receiver.once.Store(true)
				s.receiver.deadly.Store(true)
				return nil
			}},
		{Name: "poison", Story: "1 % of the events cannot be applied: they go to the dead letters and hold nothing up.",
			inject: func(_ context.Context, s *Stack) error {
				s.Producer.Poison = 0.01
				s.StartProducer()
				return nil
			}},
		{Name: "transient-failures", Story: "Every transaction fails with an error that may pass (a serialization failure), and does not pass: bounded retries, then the partition pauses.",
			inject: func(ctx context.Context, s *Stack) error {
				return s.SQL(ctx,
					`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$`,
					`CREATE TRIGGER fail BEFORE INSERT ON ledger_entries FOR EACH ROW EXECUTE FUNCTION fail()`)
			}},

		{Name: "exporter-down", Story: "The exporter is gone: its page too.",
			inject: func(_ context.Context, s *Stack) error { s.StopExporter(); return nil }},
		{Name: "database-down", Story: "PostgreSQL has crashed and does not come back: the consumer retries, the exporter's polls fail, its series are withheld.",
			inject: func(ctx context.Context, s *Stack) error { return s.PG.Stop(ctx, "immediate") }},
		{Name: "broker-down", Story: "The broker is gone: the exporter's polls fail, its series are withheld.",
			inject: func(ctx context.Context, s *Stack) error { return s.Broker.Stop(ctx) }},
		{Name: "permission-revoked", Story: "The exporter's role may no longer read the marker table: the poll fails by name, the series are withheld.",
			inject: func(ctx context.Context, s *Stack) error {
				return s.SQL(ctx, "REVOKE SELECT ON processed_events FROM "+watcher)
			}},
		{Name: "topic-config-denied", Story: "The exporter may no longer read the topic's configuration: the retention to hold the markers against is unknown, and nothing else is.",
			inject: onOwnBroker(func(_ *Stack, c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: Topic, Err: kerr.TopicAuthorizationFailed, Count: -1})
			})},
		{Name: "retention-raised", Story: "The topic's retention is raised to 30 days; the markers still live for 8.",
			inject: func(ctx context.Context, s *Stack) error {
				return s.SetTopicConfig(ctx, "retention.ms", fmt.Sprint((30 * day).Milliseconds()))
			}},
		{Name: "retention-unlimited", Story: "The topic keeps its records for ever from now on; no marker may be pruned any more.",
			inject: func(ctx context.Context, s *Stack) error { return s.SetTopicConfig(ctx, "retention.ms", "-1") }},
		{Name: "retention-misconfigured", Story: "The configuration says that the pruner keeps 7 days for a 7-day topic. Nothing has been pruned too early yet.",
			inject: func(ctx context.Context, s *Stack) error {
				s.Exporter.Postgres.Retention = 7 * day
				return s.StartExporter(ctx)
			}},
		{Name: "topic-recreated", Story: "The topic is deleted and created again under everybody's feet. Offsets start at 0 again; the markers keep their meaning, because their key is the event's id. What nobody had read is gone.",
			inject: func(ctx context.Context, s *Stack) error {
				if err := s.DeleteTopic(ctx); err != nil {
					return err
				}
				return s.createAgain(ctx)
			}},
		{Name: "topic-recreated-behind", Story: "The topic is deleted and created again while the consumer is down and behind. What it had not read is gone, with the group's offsets; the producer begins to count anew.",
			inject: func(ctx context.Context, s *Stack) error {
				s.StopConsumer(0)
				if !sleep(ctx, 2*time.Second) {
					return ctx.Err()
				}
				if err := s.DeleteTopic(ctx); err != nil {
					return err
				}
				if err := s.createAgain(ctx); err != nil {
					return err
				}
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "group-reset", Story: "An operator resets the group to the earliest offset: seven days are delivered again, and every one of them is skipped.",
			inject: func(ctx context.Context, s *Stack) error {
				s.StopConsumer(0)
				if err := s.CommitTo(ctx, false); err != nil {
					return err
				}
				s.Consumer.Stream.BatchSize = 10
				s.Consumer.Inbox.Failpoint = pause("before_write", 80*time.Millisecond)
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "pruner-too-fast", Story: "The pruner keeps 7.3 days of markers on a 7-day topic: nothing is exposed yet, and the margin is gone.",
			inject: prunerKeeps(73 * day / 10)},
		{Name: "table-truncated", Story: "Somebody truncates the marker table: each record that is still on the broker would be applied again.",
			inject: func(ctx context.Context, s *Stack) error { return s.SQL(ctx, "TRUNCATE processed_events") }},
		{Name: "sequence-gap", Story: "The producer loses 1 % of its events after numbering them: events_lost_total counts the gaps.",
			inject: func(_ context.Context, s *Stack) error {
				s.Producer.Gaps = 0.01
				s.StartProducer()
				return nil
			}},
		{Name: "stuck-outbox", Story: "The receiver of the confirmations refuses them all: the outbox grows old.",
			prepare: confirmations,
			inject: func(_ context.Context, s *Stack) error {
				s.receiver.status.Store(http.StatusServiceUnavailable)
				return nil
			}},
		{Name: "rebalance-loop", Story: "A second consumer joins the group and is killed, again and again.",
			prepare: shortSessions,
			inject: func(ctx context.Context, s *Stack) error {
				s.members[1].crashes.Store(always)
				return s.StartConsumer(ctx, 1)
			}},
		{Name: "slow-handler", Story: "Every transaction takes longer than the objective of 200 ms, as with an index that has bloated out of memory.",
			inject: func(ctx context.Context, s *Stack) error {
				s.Consumer.Stream.TargetLatency = 2 * time.Second // keeps its batches all the same
				s.Consumer.Inbox.Failpoint = pause("before_db_commit", 700*time.Millisecond)
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "slow-tail", Story: "Each fiftieth event takes longer than a second, the rest does not: the p99 is over the objective, the error budget hardly notices.",
			inject: func(ctx context.Context, s *Stack) error {
				s.Consumer.Stream.BatchSize = 2
				s.Consumer.Inbox.Handler = s.slowSQL(1200*time.Millisecond, 50)
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "commit-blocked", Story: "The broker refuses every offset commit: the database runs ahead, and a crash would redeliver all of it.",
			inject: onOwnBroker(func(_ *Stack, c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
			})},
		{Name: "slow-commits", Story: "The broker takes two seconds for each offset commit: the window in which a crash redelivers grows.",
			inject: onOwnBroker(func(_ *Stack, c *kfake.Cluster) {
				c.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
					c.KeepControl()
					c.SleepControl(func() { time.Sleep(2 * time.Second) })
					return nil, nil, false
				})
			})},
		{Name: "consumer-too-slow", Story: "The handler needs 40 ms an event and the producer sends 200 a second: the lag grows, though every event is handled.",
			inject: func(ctx context.Context, s *Stack) error {
				s.Consumer.Inbox.Handler = s.slow(40 * time.Millisecond)
				s.Consumer.Stream.BatchSize = 2
				if err := s.StartConsumer(ctx, 0); err != nil {
					return err
				}
				s.Producer.Rate = 200
				s.StartProducer()
				return nil
			}},
		{Name: "partition-stopped", Story: "A deploy brings a handler that ends the transaction itself. The consumer stops its partitions rather than break its promise: it runs, and its lag does not recover.",
			inject: func(ctx context.Context, s *Stack) error {
				s.Consumer.Inbox.Handler = commits
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "markers-vanish", Story: "A trigger deletes each marker as it is written: events are processed, and nothing remembers that they were.",
			inject: func(ctx context.Context, s *Stack) error {
				return s.SQL(ctx,
					`CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM processed_events WHERE consumer_group = NEW.consumer_group AND event_id = NEW.event_id; RETURN NULL; END $$`,
					`CREATE TRIGGER forget AFTER INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION forget()`)
			}},
		{Name: "consumer-unscraped", Story: "The consumer's metrics are no longer scraped: duplicates, latency and lost events of the group go unseen.",
			inject: func(_ context.Context, s *Stack) error { s.HideConsumer(0); return nil }},
		{Name: "records-expired", Story: "The consumer is down for longer than the broker keeps records: some are deleted before it has handled them.",
			inject: func(ctx context.Context, s *Stack) error {
				s.StopConsumer(0)
				if !sleep(ctx, 3*time.Second) {
					return ctx.Err()
				}
				if err := s.DeleteRecords(ctx); err != nil {
					return err
				}
				return s.StartConsumer(ctx, 0)
			}},
		{Name: "row-limit", Story: "The traffic doubles, and with it the table: it will pass its limit within the week.",
			prepare: func(s *Stack) { s.Exporter.Postgres.RowLimit = 150_000 },
			inject: func(_ context.Context, s *Stack) error {
				s.Producer.Rate *= 2
				s.StartProducer()
				return nil
			}},
		{Name: "ids-never-match", Story: "The producer gives each attempt a new id, so that no redelivery is ever recognized: there are no duplicates at all.",
			prepare: func(s *Stack) { s.Consumer.Stream.Redeliver = 0 }},
	}
}

func prunerKeeps(d time.Duration) func(context.Context, *Stack) error {
	return func(_ context.Context, s *Stack) error {
		s.Pruner.Retention, s.Pruner.Allow = d, []string{prune.AssertRetention}
		s.StartPruner()
		return nil
	}
}

// onOwnBroker is a fault of the broker in this process.
func onOwnBroker(f func(*Stack, *kfake.Cluster)) func(context.Context, *Stack) error {
	return func(_ context.Context, s *Stack) error {
		b, ok := s.Broker.(*inProcess)
		if !ok {
			return errors.New("only the broker of the demo itself can do this: run it without --kafka.brokers")
		}
		f(s, b.Cluster)
		return nil
	}
}

// shortSessions lets the group notice a dead member soon.
func shortSessions(s *Stack) {
	if s.Consumer.Stream.SessionTimeout == 0 {
		s.Consumer.Stream.SessionTimeout = 6 * time.Second
	}
}

// confirmations lets the consumer leave an intent for each payment.
func confirmations(s *Stack) { s.Consumer.Notify = payments.NotifyOperation }

// pause stops at a failpoint of the inbox.
func pause(at string, d time.Duration) func(string) {
	return func(name string) {
		if name == at {
			time.Sleep(d)
		}
	}
}

// createAgain creates the topic once the deleted one is gone.
func (s *Stack) createAgain(ctx context.Context) error {
	for {
		err := s.CreateTopic(ctx)
		if !errors.Is(err, errTopicThere) {
			return err
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func findFault(name string) (*Fault, error) {
	if name == "" {
		return nil, nil
	}
	for _, f := range Faults() {
		if f.Name == name {
			return &f, nil
		}
	}
	return nil, fmt.Errorf("--fault=%s is not known: want %s", name, FaultNames())
}

// FaultNames lists the names for help and errors.
func FaultNames() string {
	var names []string
	for _, f := range Faults() {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}
