package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/collectors/kafka"
	"oncewatch/collectors/kafkaconn"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// transactional is a producer with a transaction open.
func transactional(t testing.TB, brokers []string, id string) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionTimeout(10*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	return c
}

// end ends the producer's transaction and begins the next.
func end(t testing.TB, c *kgo.Client, how kgo.TransactionEndTry) {
	t.Helper()
	if err := c.EndTransaction(context.Background(), how); err != nil {
		t.Fatal(err)
	}
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
}

func (f *fake) deleteBefore(topic string, partition int32, offset int64) {
	f.t.Helper()
	deleteBefore(f.t, f.admin, topic, partition, offset)
}

func deleteBefore(t testing.TB, admin *kadm.Client, topic string, partition int32, offset int64) {
	t.Helper()
	del := kadm.Offsets{}
	del.AddOffset(topic, partition, offset, -1)
	resp, err := admin.DeleteRecords(context.Background(), del)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// handled20 is 20 events, all handled, and behind them an aborted transaction:
// a record that counts for nothing and the marker of the transaction's end.
func handled20(t *testing.T, client *kgo.Client, brokers []string, admin *kadm.Client, group, topic string) {
	t.Helper()
	produce(t, client, topic, 0, 20, time.Now())
	commitAt(t, admin, group, topic, 0, 20)
	tx := transactional(t, brokers, "tx-"+topic)
	produce(t, tx, topic, 0, 1, time.Now())
	end(t, tx, kgo.TryAbort)
	stableAt(t, admin, topic, 22)
}

// stableAt waits until a transaction's end has come to the log, which its
// coordinator writes by and by.
func stableAt(t testing.TB, admin *kadm.Client, topic string, offset int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		listed, err := admin.ListCommittedOffsets(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		if o, _ := listed.Lookup(topic, 0); o.Offset == offset {
			return
		}
	}
}

// What only transactions wrote behind the last handled event is no lag, and no
// loss once retention takes it away.
func TestAnAbortedTransactionIsNoLagAndNoLoss(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	b := watch(t, c.ListenAddrs())
	handled20(t, c.kgo, c.ListenAddrs(), c.admin, "ledger", "payments")
	b.mustPoll()
	b.next()
	p := b.scrape()
	p.want(t, lag("consumer_committed_offset", "ledger", "payments", 0), 20)
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 0)
	p.want(t, lag("consumer_lag_seconds", "ledger", "payments", 0), 0)
	p.want(t, `kafka_topic_partition_last_stable_offset{partition="0",topic="payments"}`, 22)
	c.deleteBefore("payments", 0, 22)
	b.next()
	p = b.scrape()
	p.want(t, lag("consumer_lag", "ledger", "payments", 0), 0)
	p.want(t, lag("consumer_records_expired", "ledger", "payments", 0), 0)
	p.absent(t, lag("consumer_records_expired_unverified", "ledger", "payments", 0))
	// Events behind it that are deleted unread are lost.
	c.produce("payments", 0, 5, time.Now())
	b.next()
	b.next()
	c.deleteBefore("payments", 0, 27)
	b.next()
	p = b.scrape()
	p.want(t, lag("consumer_records_expired", "ledger", "payments", 0), 5)
	p.want(t, lag("consumer_records_expired_unverified", "ledger", "payments", 0), 0)
}

// Where READ is denied nobody can tell events from transactions' own records:
// then that is said, and asked again only once an interval.
func TestWithoutReadExpiredRecordsMayBeMarkers(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments", "__transaction_state"))
	defer c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "payments", Err: kerr.TopicAuthorizationFailed, Count: -1}).Remove()
	b := watch(t, c.ListenAddrs())
	handled20(t, c.kgo, c.ListenAddrs(), c.admin, "ledger", "payments")
	looks := 0
	c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		looks++
		return nil, nil, false
	})
	for range 10 {
		b.next()
	}
	b.scrape().want(t, lag("consumer_lag", "ledger", "payments", 0), 2)
	if looks != 1 {
		t.Errorf("asked %d times in 10 polls for what is denied, want once", looks)
	}
	c.deleteBefore("payments", 0, 22)
	b.next()
	p := b.scrape()
	p.want(t, lag("consumer_records_expired", "ledger", "payments", 0), 2)
	p.want(t, lag("consumer_records_expired_unverified", "ledger", "payments", 0), 2)
	if n := p.count("oncewatch_errors_total{collector=\"groups\""); n != 0 {
		t.Errorf("%d kinds of errors for a right that need not be there", n)
	}
}

// Where READ is denied and there never was a transaction, nothing else than
// events can have expired.
func TestRealWithoutReadAndWithoutTransactions(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Protocol: "SASL_PLAINTEXT", Config: map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
		"listener.name.client.sasl.enabled.mechanisms": "PLAIN",
		"listener.name.client.plain.sasl.jaas.config":  `org.apache.kafka.common.security.plain.PlainLoginModule required user_watcher="w";`,
	}})
	client, admin, topic := real(t, s, "payments", 1, nil)
	acls := kadm.NewACLs().Allow("User:watcher").Topics("*").Groups("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpDescribe).AllowHosts()
	if _, err := admin.CreateACLs(context.Background(), acls); err != nil {
		t.Fatal(err)
	}
	produce(t, client, topic, 0, 10, time.Now())
	commitAt(t, admin, "ledger", topic, 0, 4)
	b := watch(t, s.Brokers(), func(c *kafka.Config) {
		c.SASL = kafkaconn.SASL{Mechanism: kafkaconn.Plain, Username: "watcher", Password: "w"}
	})
	b.until("lag", has(lag("consumer_lag", "ledger", topic, 0)))
	deleteBefore(t, admin, topic, 0, 9)
	unverified := lag("consumer_records_expired_unverified", "ledger", topic, 0)
	p := b.until("loss", func(p page) bool { return p[lag("consumer_records_expired", "ledger", topic, 0)] == 5 })
	p.want(t, unverified, 0)
	// The first transaction anywhere, and it can no longer be told.
	tx := transactional(t, s.Internal(), "tx")
	produce(t, tx, topic, 0, 1, time.Now())
	end(t, tx, kgo.TryAbort)
	b.until("a doubt", func(p page) bool { return p[unverified] == 5 })
}

// Loss that happened before the first look counts whole where the topic shows
// no trace of transactions, and may be less where it does.
func TestLossBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "plain", "mixed"))
	for _, topic := range []string{"plain", "mixed"} {
		c.produce(topic, 0, 9, time.Now().Add(-time.Minute))
		c.commit("ledger", topic, 0, 4)
	}
	c.produce("plain", 0, 1, time.Now())
	tx := transactional(t, c.ListenAddrs(), "tx")
	produce(t, tx, "mixed", 0, 1, time.Now())
	end(t, tx, kgo.TryCommit)
	for _, topic := range []string{"plain", "mixed"} {
		c.deleteBefore(topic, 0, 9)
	}
	b := watch(t, c.ListenAddrs())
	b.mustPoll()
	p := b.scrape()
	for topic, unverified := range map[string]float64{"plain": 0, "mixed": 5} {
		p.want(t, lag("consumer_records_expired", "ledger", topic, 0), 5)
		p.want(t, lag("consumer_records_expired_unverified", "ledger", topic, 0), unverified)
	}
}

// A group that can go no further than an open transaction is told so, with the
// age of its first record.
func TestAGroupWaitsForAnOpenTransaction(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "payments"))
	c.produce("payments", 0, 10, time.Now().Add(-time.Hour))
	tx := transactional(t, c.ListenAddrs(), "tx")
	produce(t, tx, "payments", 0, 1, time.Now().Add(-30*time.Minute))
	c.produce("payments", 0, 5, time.Now())
	c.commit("ledger", "payments", 0, 10)
	c.commit("behind", "payments", 0, 3)
	c.commit("uncommitted", "payments", 0, 16)
	b := watch(t, c.ListenAddrs())
	held := func(group string) bool {
		return b.groups.Latest().(*kafka.Groups).Group(group).Topics[0].Partitions[0].Held
	}
	for range 3 { // also in the poll between two answers
		b.next()
		p := b.scrape()
		p.want(t, `kafka_topic_partition_last_stable_offset{partition="0",topic="payments"}`, 10)
		p.want(t, lag("consumer_lag", "ledger", "payments", 0), 6)
		if !held("ledger") || held("behind") || held("uncommitted") {
			t.Errorf("held: ledger %v, behind %v, uncommitted %v; want the first alone", held("ledger"), held("behind"), held("uncommitted"))
		}
	}
	b.scrape().near(t, lag("consumer_lag_seconds", "ledger", "payments", 0), 30*60+45, 20)
	end(t, tx, kgo.TryCommit)
	b.next()
	b.next()
	if held("ledger") {
		t.Error("still held after the transaction's end")
	}
	b.scrape().want(t, `kafka_topic_partition_last_stable_offset{partition="0",topic="payments"}`, 17)
}

// log is what a random history wrote: whether each offset holds an event. Those
// of an open transaction are undecided.
type log struct {
	kinds     []byte // e: event, v: void, o: of an open transaction
	start     int64
	committed int64
	open      []int64
}

func (l *log) events(from, to int64) (n int64) {
	for _, k := range l.kinds[max(0, from):max(from, to)] {
		if k == 'e' {
			n++
		}
	}
	return n
}

// A random history of plain records, transactions that are committed, aborted
// or left open, commits of the group and deletions. What is said of lag and loss
// is compared with what was written: never a loss that was none, and where the
// exporter has looked in between, exactly whether there is one.
func randomHistory(t *testing.T, seed uint64, steps int, brokers []string, client *kgo.Client, admin *kadm.Client, topic string, b *bundle, settle func(*bundle)) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	group := "group-" + topic
	var l log
	tx := transactional(t, brokers, "tx-"+topic)
	attentive := true
	write := func(c *kgo.Client, n int, kind byte) {
		produce(t, c, topic, 0, n, time.Now().Add(-time.Minute))
		for range n {
			if kind == 'o' {
				l.open = append(l.open, int64(len(l.kinds)))
			}
			l.kinds = append(l.kinds, kind)
		}
	}
	write(client, 1, 'e')
	commitAt(t, admin, group, topic, 0, 0)
	var done []string
	for range steps {
		switch op := rnd.IntN(10); op {
		case 0, 1:
			write(client, 1+rnd.IntN(3), 'e')
			done = append(done, "plain")
		case 2, 3, 4:
			write(tx, 1+rnd.IntN(3), 'o')
			done = append(done, "transactional")
		case 5, 6:
			if len(l.open) == 0 {
				continue
			}
			how, kind := kgo.TryCommit, byte('e')
			if op == 6 {
				how, kind = kgo.TryAbort, 'v'
			}
			end(t, tx, how)
			for _, o := range l.open {
				l.kinds[o] = kind
			}
			l.open, l.kinds = nil, append(l.kinds, 'v')
			stableAt(t, admin, topic, int64(len(l.kinds)))
			done = append(done, fmt.Sprintf("end %c", kind))
		case 7:
			// As a consumer does: past an event that it has handled.
			to := l.committed + rnd.Int64N(int64(len(l.kinds))-l.committed+1)
			for to > l.committed && l.kinds[to-1] != 'e' {
				to--
			}
			if len(l.open) > 0 {
				to = min(to, l.open[0])
			}
			if to > l.committed && to >= l.start {
				l.committed = to
				commitAt(t, admin, group, topic, 0, to)
			}
			done = append(done, fmt.Sprintf("commit %d", l.committed))
		case 8:
			end := int64(len(l.kinds))
			if len(l.open) > 0 {
				end = l.open[0]
			}
			if to := l.start + rnd.Int64N(end-l.start+1); to > l.start {
				deleteBefore(t, admin, topic, 0, to)
				l.start = to
			}
			done = append(done, fmt.Sprintf("delete before %d", l.start))
		case 9:
			attentive = rnd.IntN(4) > 0
			done = append(done, fmt.Sprintf("look: %v", attentive))
		}
		if !attentive && rnd.IntN(3) > 0 {
			continue
		}
		settle(b)
		if t.Failed() {
			t.Fatalf("seed %d, after %v: %s", seed, done, l.kinds)
		}
		gp := b.groups.Latest().(*kafka.Groups).Group(group).Topic(topic).Partitions[0]
		lost := l.events(l.committed, l.start)
		if gp.Expired.Value < lost || gp.Expired.Value-gp.Unverified > lost {
			t.Fatalf("seed %d, after %v: %s, committed %d, start %d: lost %d, told %d with %d unverified", seed, done, l.kinds, l.committed, l.start, lost, gp.Expired.Value, gp.Unverified)
		}
		left := l.events(max(l.committed, l.start), int64(len(l.kinds)))
		if gp.Lag.Value < left || gp.Lag.Value > 0 && left == 0 && len(l.open) == 0 {
			t.Fatalf("seed %d, after %v: %s, committed %d, start %d: %d events wait, told %d", seed, done, l.kinds, l.committed, l.start, left, gp.Lag.Value)
		}
		if left > 0 != !gp.Waiting.Value.IsZero() && gp.Waiting.OK && len(l.open) == 0 {
			t.Fatalf("seed %d, after %v: %s, committed %d: %d events wait, since %v", seed, done, l.kinds, l.committed, left, gp.Waiting.Value)
		}
	}
}

func TestRandomHistoryOfTransactions(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(1))
	for seed := range uint64(30) {
		topic := fmt.Sprintf("t%d", seed)
		if err := c.CreateTopic(topic, 1, nil); err != nil {
			t.Fatal(err)
		}
		b := watch(t, c.ListenAddrs(), func(conf *kafka.Config) { conf.Topic = topic })
		randomHistory(t, seed, 60, c.ListenAddrs(), c.kgo, c.admin, topic, b, func(b *bundle) {
			for range 4 {
				b.next()
			}
		})
		b.client.Close()
	}
}

func TestRealRandomHistoryOfTransactions(t *testing.T) {
	t.Parallel()
	s := testenv.Kafka(t)
	client, admin, topic := real(t, s, "payments", 1, nil)
	b := watch(t, s.Brokers(), func(c *kafka.Config) { c.Topic = topic })
	b.clock.follow()
	randomHistory(t, uint64(time.Now().UnixNano()), 40, s.Brokers(), client, admin, topic, b, func(b *bundle) {
		for range 4 {
			b.poll()
		}
	})
}

// The broker's own retention takes handled events and an aborted transaction
// behind them, and later events that nobody read.
func retentionAfterAnAbortedTransaction(t *testing.T, s *kafkaserver.Server) {
	client, admin, topic := real(t, s, "payments", 1, map[string]string{"retention.ms": "60000", "segment.ms": "1000"})
	b := watch(t, s.Brokers())
	handled20(t, client, s.Brokers(), admin, "ledger", topic)
	b.poll()
	b.poll()
	lagOf := lag("consumer_lag", "ledger", topic, 0)
	b.until("no lag", func(p page) bool { v, ok := p[lagOf]; return ok && v == 0 })
	// The marker is as young as its transaction: a shorter retention spares waiting.
	alter(t, admin, topic, "retention.ms", "2000")
	expired := lag("consumer_records_expired", "ledger", topic, 0)
	start := fmt.Sprintf("kafka_topic_partition_log_start_offset{partition=\"0\",topic=%q}", topic)
	p := b.until("the broker deletes it all", func(p page) bool { return p[start] == 22 })
	p.want(t, expired, 0)
	p.want(t, lagOf, 0)
	produce(t, client, topic, 0, 5, time.Now())
	b.until("lag", func(p page) bool { return p[lagOf] == 5 })
	b.poll()
	p = b.until("the broker deletes the events too", func(p page) bool { return p[start] == 27 })
	p.want(t, expired, 5)
	p.want(t, lag("consumer_records_expired_unverified", "ledger", topic, 0), 0)
}

// alter sets one configuration of a topic.
func alter(t testing.TB, admin *kadm.Client, topic, key, value string) {
	t.Helper()
	resp, err := admin.AlterTopicConfigs(context.Background(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
	if err == nil {
		for _, r := range resp {
			err = r.Err
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
