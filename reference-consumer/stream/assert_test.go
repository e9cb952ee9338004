package stream_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/stream"
)

// Every startup assertion refuses by its name, and --allow waives it. The
// group is not joined before they hold.
func TestStartupAssertions(t *testing.T) {
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		assertion string
		sql       string
		config    func(*stream.Config)
		inbox     func(*inbox.Config)
		topic     map[string]string // configuration
		further   map[string]string // of a second topic, events come back from
	}{
		"markers shorter than the topic": {assertion: stream.AssertMarkerRetention, topic: map[string]string{"retention.ms": "691200000"}}, // 8 d
		"topic for ever":                 {assertion: stream.AssertMarkerRetention, topic: map[string]string{"retention.ms": "-1"}},
		"compacted topic":                {assertion: stream.AssertMarkerRetention, topic: map[string]string{"cleanup.policy": "compact"}},
		// The dead-letter topic outlives the markers.
		"markers shorter than a retry topic": {assertion: stream.AssertMarkerRetention, further: map[string]string{"retention.ms": "2592000000"}}, // 30 d
		"no unique index":                    {assertion: stream.AssertUniqueIndex, sql: "ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey"},
		"a wider unique index": {assertion: stream.AssertUniqueIndex, sql: `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey;
ALTER TABLE processed_events ADD PRIMARY KEY (consumer_group, event_id, processed_at)`},
		"a partial unique index": {assertion: stream.AssertUniqueIndex, sql: `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey;
CREATE UNIQUE INDEX ON processed_events (consumer_group, event_id) WHERE partition > 0`},
		"isolation":           {assertion: stream.AssertIsolation, sql: "ALTER DATABASE %db SET default_transaction_isolation = 'serializable'"},
		"asynchronous commit": {assertion: stream.AssertSyncCommit, sql: "ALTER DATABASE %db SET synchronous_commit = off"},
		"read-only":           {assertion: stream.AssertPrimary, sql: "ALTER DATABASE %db SET default_transaction_read_only = on"},
		"old schema":          {assertion: stream.AssertSchema, sql: "DELETE FROM schema_migrations WHERE version > 1"},
		"idle timeout":        {assertion: stream.AssertTimeouts, inbox: func(ic *inbox.Config) { ic.IdleTimeout = time.Minute }},
		"statement timeout":   {assertion: stream.AssertTimeouts, inbox: func(ic *inbox.Config) { ic.StatementTimeout = time.Minute }},
		"clock":               {assertion: stream.AssertClock, config: func(c *stream.Config) { c.Now = func() time.Time { return time.Now().Add(-3 * time.Second) } }},
		"reset to the end":    {assertion: stream.AssertOffsetPolicy, config: func(c *stream.Config) { c.Consumer = []kgo.Opt{kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd())} }},
		"start at the end":    {assertion: stream.AssertOffsetPolicy, config: func(c *stream.Config) { c.Consumer = []kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd())} }},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			b.alter(topic, c.topic)
			var redeliver []string
			if c.further != nil {
				redeliver = []string{"payments-retry"}
				if _, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, "payments-retry"); err != nil {
					t.Fatal(err)
				}
				b.alter("payments-retry", c.further)
			}
			if c.sql != "" {
				var db string
				if err := b.pool.QueryRow(t.Context(), "SELECT current_database()").Scan(&db); err != nil {
					t.Fatal(err)
				}
				if _, err := b.pool.Exec(t.Context(), strings.ReplaceAll(c.sql, "%db", db)); err != nil {
					t.Fatal(err)
				}
				b.reconnect()
			}
			joins := b.k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Observe: true, Count: -1})
			config := func(allow ...string) stream.Config {
				cfg := b.config(nil, c.inbox)
				cfg.Guard = stream.Guard{MarkerRetention: 8 * day, RedeliverFrom: redeliver, Allow: allow}
				cfg.Guard.StatementTimeout, cfg.Guard.IdleTimeout, cfg.Guard.TransactionTimeout = cfg.Inbox.Timeouts()
				if c.config != nil {
					c.config(&cfg)
				}
				return cfg
			}
			m := b.start(config())
			select {
			case <-m.done:
			case <-time.After(15 * time.Second):
				t.Fatal("it started")
			}
			var refused *stream.RefusedError
			if !errors.As(m.err, &refused) {
				t.Fatalf("%v, want a refusal", m.err)
			}
			var names []string
			for _, v := range refused.Violations {
				names = append(names, v.Name)
				if v.Text == "" || strings.Contains(v.Text, "\n") {
					t.Errorf("%q: want one line", v.Text)
				}
			}
			names = slices.Compact(names)
			if !slices.Equal(names, []string{c.assertion}) {
				t.Errorf("refused for %v, want %s alone: %v", names, c.assertion, m.err)
			}
			if joins.Hits() > 0 && c.assertion != stream.AssertOffsetPolicy {
				t.Error("the group was joined before the assertions held")
			}
			m = b.start(config(c.assertion))
			b.eventually("a start with --allow", func() bool { n, _ := m.metric("consumer_rebalances_total"); return n > 0 })
			m.want(1, "consumer_assertion_waived", "assertion", c.assertion)
			m.want(1, "consumer_assertion_waived")
			if err := m.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Auto-commit cannot be switched on beside our own options: the client library
// refuses the contradiction.
func TestAutoCommitIsRefused(t *testing.T) {
	b := setup(t, 1)
	cfg := b.config(nil, nil)
	cfg.Consumer = []kgo.Opt{kgo.AutoCommitMarks()}
	m := b.start(cfg)
	<-m.done
	if m.err == nil || !strings.Contains(m.err.Error(), "disable autocommitting") {
		t.Errorf("%v, want a refusal", m.err)
	}
}

func TestUnknownWaiver(t *testing.T) {
	b := setup(t, 1)
	cfg := b.config(nil, nil)
	cfg.Guard.Allow = []string{"retention"}
	m := b.start(cfg)
	<-m.done
	if m.err == nil || !strings.Contains(m.err.Error(), "marker-retention") {
		t.Errorf("%v, want the names there are", m.err)
	}
}

// A topic's retention raised while the consumer runs is noticed.
func TestAssertionsAreRepeated(t *testing.T) {
	b := setup(t, 1)
	cfg := b.config(nil, nil)
	cfg.AssertEvery = 50 * time.Millisecond
	m := b.start(cfg)
	b.eventually("holds", func() bool {
		v, n := m.metric("consumer_assertion_holds", "assertion", stream.AssertMarkerRetention)
		return n == 1 && v == 1
	})
	b.alter(topic, map[string]string{"retention.ms": "2592000000"})
	b.eventually("no longer holds", func() bool {
		v, n := m.metric("consumer_assertion_holds", "assertion", stream.AssertMarkerRetention)
		return n == 1 && v == 0
	})
	b.eventually("a log line", func() bool { return strings.Contains(m.log.String(), "raise --retention to at least 33d") })
	b.publish(0, 10)
	b.eventually("it goes on handling", func() bool { return b.entries() == 10 })
}

func (b *bundle) alter(topic string, configs map[string]string) {
	b.t.Helper()
	var alter []kadm.AlterConfig
	for k, v := range configs {
		alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: kmsg.StringPtr(v)})
	}
	if len(alter) == 0 {
		return
	}
	resp, err := b.admin.AlterTopicConfigs(context.Background(), alter, topic)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, r := range resp {
		if r.Err != nil {
			b.t.Fatal(r.Err)
		}
	}
}

// reconnect makes the pool forget sessions that began before a setting
// changed.
func (b *bundle) reconnect() {
	b.t.Helper()
	dsn := b.pool.Config().ConnString()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(pool.Close)
	b.pool = pool
}
