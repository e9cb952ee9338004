package checklist_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/alerts"
	"oncewatch/collectors/checklist"
	"oncewatch/collectors/consumer"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/retention"
	"oncewatch/collectors/web"
)

const day = 24 * time.Hour

var now = time.Unix(1_800_000_000, 0)

func known[T any](v T) kafka.Known[T] { return kafka.Known[T]{Value: v, OK: true} }

func fig(v float64) consumer.Figure { return consumer.Figure{Value: v, From: "metric of 1 consumer"} }

func lacks(what string) consumer.Figure {
	return consumer.Figure{Missing: "consumer-1 exports no " + what}
}

// world is a healthy group on a seven-day topic; tests break one thing.
type world struct {
	checklist.Facts
	series    *postgres.Series
	markers   *postgres.Markers
	table     *postgres.Table
	health    *postgres.TableHealth
	topic     *kafka.Topic
	partition *kafka.GroupPartition
	consumed  *consumer.Values
	compared  *retention.Series
	noBefore  bool // commits were not read before the markers
}

func healthy() *world {
	w := &world{
		table: &postgres.Table{
			Schema: "public", Name: "processed_events", Kind: "r",
			Has: postgres.Columns{Group: "consumer_group", EventID: "event_id", Topic: "topic", Partition: "partition", Offset: "offset", ProcessedAt: "processed_at"},
			Indexes: []postgres.Index{
				{Name: "pkey", Unique: true, Valid: true, Columns: []string{"consumer_group", "event_id"}},
				{Name: "by_time", Valid: true, Columns: []string{"processed_at"}},
			},
			TimeIndex: "by_time",
		},
		health: &postgres.TableHealth{
			Indexes: []postgres.IndexHealth{{Name: "pkey", Bytes: 1e6, Valid: true, Bloat: 1.1}},
			Holders: []postgres.Holder{{Kind: "session", Age: time.Second}}, LastVacuum: now.Add(-time.Hour),
			Autovacuum: postgres.Autovacuum{DeadRows: 250},
		},
		topic:     &kafka.Topic{Name: "payments", Retention: known(kafka.Retention{Seconds: known(7 * 86400.0), WorstCaseSeconds: known(7.2 * 86400)})},
		partition: &kafka.GroupPartition{Committed: 101, Lag: known(int64(3)), Expired: known(int64(0)), OutOfRange: known(false), Waiting: known(now.Add(-time.Second))},
		consumed: &consumer.Values{
			Processed: fig(9990), Duplicates: fig(10), Elsewhere: fig(0), LongHandled: fig(10_000), LongDuplicates: fig(10), EverDuplicate: fig(10),
			P99: fig(0.15), P99Low: 0.1, P99High: 0.2, Timed: fig(10_000), DeadLettered: fig(0), Lost: fig(0), Retries: fig(0), CommitLag: fig(0.1),
		},
		compared: &retention.Series{Database: "db", Group: "g", Topic: "payments", Exact: true, Partitions: []*retention.Partition{{Unprotected: known(int64(0)), Unverified: known(int64(0))}}},
	}
	w.markers = &postgres.Markers{
		Database: "db", Table: w.table, Ready: true, ServerTime: now, ReadAt: now,
		Config: postgres.Config{Retention: 8 * day},
		Series: []postgres.Series{{
			Group: "g", Topic: "payments", Rows: 1000, Counted: true, LastDay: 125, Oldest: now.Add(-8 * day), Newest: now,
			Pruning: true, ObservedRetention: 8 * day, Handled: map[int64]postgres.Handled{0: {From: 0, To: 100}},
		}},
	}
	w.series, w.health.Table = &w.markers.Series[0], w.table
	w.Facts = checklist.Facts{
		Now: now, Thresholds: alerts.Defaults(), ConsumersNamed: true,
		Topics:    &kafka.Topics{Topics: map[string]*kafka.Topic{"payments": w.topic}},
		Stores:    []checklist.Store{{Name: "db", Markers: w.markers, Health: w.health, Effect: "ledger_entries"}},
		Retention: &retention.Snapshot{Series: []*retention.Series{w.compared}},
	}
	w.Stores[0].Divergence = &postgres.Divergence{Effects: "ledger_entries", Compared: 1, Rows: []postgres.Diverging{{Group: "g", Kind: postgres.DifferentTransaction}}}
	return w
}

// lines evaluates; what is shared by pointer is put in place first.
func (w *world) lines() map[string]checklist.Line {
	if w.partition != nil {
		w.Groups = &kafka.Groups{At: now, Groups: []*kafka.Group{{Name: "g", Readable: true, Topics: []kafka.GroupTopic{{Topic: "payments", Partitions: []kafka.GroupPartition{*w.partition}}}}}}
	}
	if w.Stores[0].Before = w.Groups; w.noBefore {
		w.Stores[0].Before = nil
	}
	if w.consumed != nil {
		w.Consumers = &consumer.Snapshot{Sources: 1, Enough: 1000, Values: map[consumer.Key]consumer.Values{{Group: "g", Topic: "payments"}: *w.consumed}}
	}
	byRule := map[string]checklist.Line{}
	for _, l := range checklist.Evaluate(w.Facts) {
		byRule[l.Rule] = l
	}
	return byRule
}

func TestHealthy(t *testing.T) {
	lines := healthy().lines()
	for rule, l := range lines {
		if l.Verdict != checklist.OK && !l.Outside {
			t.Errorf("%s: %s: %s %s", rule, l.Verdict, l.Value, l.Meaning)
		}
		if l.Meaning == "" || l.Title == "" {
			t.Errorf("%s says nothing: %+v", rule, l)
		}
		if l.Verdict == checklist.OK && l.Remedy != "" {
			t.Errorf("%s is fine and has a remedy: %s", rule, l.Remedy)
		}
	}
	for n := 1; n <= 6; n++ {
		if !slices.ContainsFunc(checklist.Evaluate(healthy().Facts), func(l checklist.Line) bool { return l.Number == n }) {
			t.Errorf("line %d of the checklist is missing", n)
		}
	}
}

// Each fault moves its own line and says what to do.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(*world)
		rule  string
		want  checklist.Verdict
		says  string // in value, meaning, remedy or evidence
	}{
		"hanging transaction": {func(w *world) {
			w.partition.Held, w.partition.Next, w.partition.Waiting = true, 101, known(now.Add(-2*time.Hour))
		}, "open-transaction", checklist.Violated, "find-hanging --topic payments"},
		"slow transaction": {func(w *world) { w.partition.Held, w.partition.Waiting = true, known(now.Add(-5*time.Minute)) }, "open-transaction", checklist.Warning, "open for 5m"},
		"commits gone": {func(w *world) {
			w.partition = nil
			w.Groups = &kafka.Groups{Groups: []*kafka.Group{{Name: "g", Readable: true, State: "Dead"}}}
			w.Retention.Missing = []retention.Missing{{Group: "g", Topic: "payments", Gone: true, Partitions: []int32{0, 2}}}
		}, "committed-offsets", checklist.Warning, "partition 0, 2"},
		"commits expire soon": {func(w *world) {
			w.partition = nil
			w.Groups = &kafka.Groups{Groups: []*kafka.Group{{Name: "g", Readable: true, State: "Empty", Topics: []kafka.GroupTopic{{Topic: "payments", Partitions: []kafka.GroupPartition{{Committed: 101}}}}}}}
			w.series.Newest, w.Topics.OffsetsRetention = now.Add(-5*day), known(7*day)
		}, "committed-offsets", checklist.Warning, "for about 2d more"},
		"expired, perhaps markers":      {func(w *world) { w.partition.Expired, w.partition.Unverified = known(int64(2)), 2 }, "records-lost", checklist.Warning, "Grant READ"},
		"expired, some perhaps markers": {func(w *world) { w.partition.Expired, w.partition.Unverified = known(int64(7)), 2 }, "records-lost", checklist.Violated, "at most 2 of these"},
		"a commit that only markers passed": {func(w *world) {
			w.partition.OutOfRange, w.partition.Next = known(true), 103
		}, "records-lost", checklist.OK, "lost nothing"},
		"a topic that deletes by size": {func(w *world) {
			w.topic.Retention.Value = kafka.Retention{Seconds: known(math.Inf(1)), Bytes: known(1e9), WorstCaseSeconds: known(math.Inf(1))}
			w.compared.Numbers.OldestRecord = known(2 * time.Hour)
		}, "retention-ratio", checklist.OK, "by size alone (retention.bytes 1,000,000,000 a partition); the oldest record really there is 2h old"},
		"one that compacts too": {func(w *world) {
			w.topic.Retention.Value.WorstCaseSeconds = known(math.Inf(1))
			w.compared.Numbers.OldestRecord = known(9 * day)
		}, "retention-ratio", checklist.Violated, "the oldest record really there is 9d old"},
		"id reuse":       {func(w *world) { w.consumed.Duplicates, w.consumed.Elsewhere = fig(500), fig(480) }, "duplicate-ratio", checklist.Violated, "fresh UUIDv7"},
		"rebalance loop": {func(w *world) { w.consumed.Duplicates = fig(500) }, "duplicate-ratio", checklist.Warning, "rebalance loop"},
		"few events":     {func(w *world) { w.consumed.Processed, w.consumed.Duplicates = fig(989), fig(10) }, "duplicate-ratio", checklist.Unknown, "Too few events to say: 999, of 1,000"},
		"nobody asked":   {func(w *world) { w.consumed, w.ConsumersNamed = nil, false }, "duplicate-ratio", checklist.Unknown, "--consumer.metrics-url"},
		"pruner stopped": {func(w *world) { w.series.Oldest = now.Add(-12 * day) }, "row-count", checklist.Warning, "should have been pruned 4d ago"},
		"over the limit": {func(w *world) { w.markers.Config.RowLimit = 900 }, "row-count", checklist.Violated, "below 900"},
		"limit in a day": {func(w *world) {
			w.markers.Config.RowLimit, w.series.Oldest, w.series.LastDay = 1250, now.Add(-4*day), 200
		}, "row-count", checklist.Warning, "passes its limit in 1d 6h"},
		"limit without a retention": {func(w *world) {
			w.markers.Config.RowLimit, w.markers.Config.Retention, w.series.LastDay = 1500, 0, 125
		}, "row-count", checklist.Warning, "passes its limit in 4d"},
		"busier than a retention ago": {func(w *world) {
			w.markers.Config.RowLimit, w.series.LastDay = 1100, 150
		}, "row-count", checklist.Warning, "passes its limit in 4d"},
		"levels off below the limit": {func(w *world) {
			w.markers.Config.RowLimit, w.series.Oldest, w.series.LastDay = 1250, now.Add(-4*day), 150
		}, "row-count", checklist.OK, "150 markers a day"},
		"autovacuum off": {func(w *world) { w.health.Autovacuum.Off = true }, "autovacuum", checklist.Warning, "RESET (autovacuum_enabled)"},
		"autovacuum rare": {func(w *world) {
			w.health.Autovacuum.DeadRows, w.series.LastDay = 80_000_000, 50_000_000
		}, "autovacuum", checklist.Warning, "1d 14h"},
		"partitions are dropped": {func(w *world) {
			w.table.PartitionedBy = "RANGE (event_id)"
			w.health.Autovacuum.DeadRows, w.series.LastDay = 80_000_000, 50_000_000
		}, "autovacuum", checklist.OK, "1d 14h"},
		"autovacuum daily": {func(w *world) {
			w.health.Autovacuum.DeadRows, w.series.LastDay = 49_000_000, 50_000_000
		}, "autovacuum", checklist.OK, "23h 31m"},
		"still counting":       {func(w *world) { w.series.Counted, w.markers.Progress = false, 0.4 }, "row-count", checklist.Unknown, "40 %"},
		"retention too short":  {func(w *world) { w.markers.Config.Retention = 3 * day }, "retention-ratio", checklist.Violated, "do not reset"},
		"retention just there": {func(w *world) { w.series.ObservedRetention = 7 * day }, "retention-ratio", checklist.Warning, "hardly later"},
		"rogue deletion":       {func(w *world) { w.series.ObservedRetention = 3 * day }, "retention-ratio", checklist.Violated, "Find who deletes them"},
		"young table":          {func(w *world) { w.series.Oldest, w.series.Pruning = now.Add(-day), false }, "retention-ratio", checklist.OK, "young"},
		"young and unconfigured": {func(w *world) {
			w.series.Oldest, w.series.Pruning, w.markers.Config.Retention = now.Add(-day), false, 0
		}, "retention-ratio", checklist.Unknown, "--postgres.retention"},
		"unlimited topic":     {func(w *world) { w.topic.Retention.Value.Seconds.Value = math.Inf(1) }, "retention-ratio", checklist.Violated, "finite retention"},
		"retention denied":    {func(w *world) { w.topic.Retention.OK = false }, "retention-ratio", checklist.Unknown, "DESCRIBE_CONFIGS"},
		"unprotected records": {func(w *world) { w.compared.Partitions[0].Unprotected = known(int64(42)) }, "replay-exposure", checklist.Violated, "42 events"},
		"unprotected, and more perhaps": {func(w *world) {
			w.compared.Partitions[0].Unprotected, w.compared.Partitions[0].Unverified = known(int64(42)), known(int64(8))
		}, "replay-exposure", checklist.Violated, "at least 42, at most 50 events"},
		"unverified": {func(w *world) { w.compared.Partitions[0].Unverified = known(int64(7)) }, "replay-exposure", checklist.Unknown, "at least 0, at most 7 events"},
		"unverified, and markers kept for too short": {func(w *world) {
			w.compared.Partitions[0].Unverified = known(int64(7))
			w.compared.Compare(retention.Numbers{OldestRecord: known(7 * day), Configured: known(3 * day)}, 1.1)
		}, "replay-exposure", checklist.Warning, "loss is likely"},
		"exposure unknown": {func(w *world) {
			w.compared.Partitions[0] = &retention.Partition{Why: "could not be read"}
		}, "replay-exposure", checklist.Unknown, "could not be read"},
		"consumers away": {func(w *world) { w.consumed = nil }, "handle-latency", checklist.Unknown, "None of the consumers' metrics could be read"},
		"commits stuck":  {func(w *world) { w.consumed.CommitLag = fig(31) }, "commit-lag", checklist.Violated, "refused offset commits"},
		"markers far ahead": {func(w *world) {
			w.consumed.CommitLag, w.partition.Committed = lacks("commit lag"), 1
			w.series.Handled[0] = postgres.Handled{To: 5000}
			w.series.Newest = now.Add(-time.Hour)
		}, "commit-lag", checklist.Warning, "partition 0: newest marker at offset 5000, committed 1"},
		"offset before marker":                                  {func(w *world) { w.partition.Committed = 112 }, "commit-order", checklist.Warning, "11 records past the last marker"},
		"as many past the last marker as there were duplicates": {func(w *world) { w.partition.Committed = 111 }, "commit-order", checklist.OK, "10 duplicates and dead letters"},
		"past the last marker, duplicates not known": {func(w *world) {
			w.partition.Committed, w.consumed.EverDuplicate = 111, lacks("outcome")
		}, "commit-order", checklist.Unknown, "replay --verify --group=g --topic=payments"},
		"far past the last marker, duplicates not known": {func(w *world) {
			w.partition.Committed, w.consumed.EverDuplicate = 1200, lacks("outcome")
		}, "commit-order", checklist.Warning, "1,099 records"},
		"commits read after the markers": {func(w *world) { w.noBefore = true; w.partition.Committed = 1200 }, "commit-order", checklist.Unknown, "before the markers"},
		"a count that may lack late markers": {func(w *world) {
			w.partition.Committed, w.markers.Inexact = 1200, []postgres.Reason{postgres.ReasonStandby}
		}, "commit-order", checklist.Unknown, "may not have been counted"},
		"the consumer does not tell the outcome": {func(w *world) { w.consumed.Duplicates = lacks("outcome=duplicate") }, "duplicate-ratio", checklist.Unknown, "exports no outcome=duplicate"},
		"nothing was handled":                    {func(w *world) { w.consumed.Processed, w.consumed.Duplicates = fig(0), fig(0) }, "duplicate-ratio", checklist.Unknown, "No event has been handled"},
		"almost no duplicates in a day":          {func(w *world) { w.consumed.LongHandled, w.consumed.LongDuplicates = fig(2e6), fig(10) }, "duplicate-ratio", checklist.Warning, "Hardly any"},
		"slow":                                   {func(w *world) { w.consumed.P99, w.consumed.P99Low, w.consumed.P99High = fig(0.3), 0.2, 0.5 }, "handle-latency", checklist.Warning, "locks"},
		"no bound at the objective":              {func(w *world) { w.consumed.P99Low, w.consumed.P99High = 0.1, 0.25 }, "handle-latency", checklist.Unknown, "100ms to 250ms"},
		"few events timed":                       {func(w *world) { w.consumed.Timed = fig(999) }, "handle-latency", checklist.Unknown, "Too few events"},
		"no buckets":                             {func(w *world) { w.consumed.P99 = lacks("buckets") }, "handle-latency", checklist.Unknown, "exports no buckets"},
		"dead letters not told":                  {func(w *world) { w.consumed.DeadLettered = lacks("dead letters") }, "dead-letters", checklist.Unknown, "exports no dead letters"},
		"the log's ends not read":                {func(w *world) { w.partition.Lag.OK = false }, "lag", checklist.Unknown, "could not be read"},
		"nobody knows since when a record waits": {func(w *world) { w.partition.Waiting.OK = false }, "lag", checklist.Unknown, "not known in 1 partition"},
		"losses not known":                       {func(w *world) { w.partition.Expired.OK = false }, "records-lost", checklist.Unknown, "1 of 1 partitions"},
		"records expired":                        {func(w *world) { w.partition.Expired = known(int64(5)) }, "records-lost", checklist.Violated, "5 records"},
		"topic made anew":                        {func(w *world) { w.partition.OutOfRange = known(true) }, "records-lost", checklist.Violated, "made anew"},
		"sequence gap":                           {func(w *world) { w.consumed.Lost = fig(2) }, "records-lost", checklist.Violated, "2 records"},
		"poison":                                 {func(w *world) { w.consumed.DeadLettered = fig(12) }, "dead-letters", checklist.Warning, "deadletters list"},
		"a view":                                 {func(w *world) { w.table.Kind, w.table.TimeIndex = "v", "" }, "time-index", checklist.Warning, "the table beneath"},
		"waits long":                             {func(w *world) { w.partition.Waiting = known(now.Add(-4 * day)) }, "lag", checklist.Warning, "far behind"},
		"far behind":                             {func(w *world) { w.partition.Waiting = known(now.Add(-6*day - 12*time.Hour)) }, "lag", checklist.Violated, "deleted unread"},
		"split transactions":                     {func(w *world) { w.Stores[0].Divergence.Rows[0].Rows = 3 }, "effect-divergence", checklist.Violated, "different transactions"},
		"no effect table":                        {func(w *world) { w.Stores[0].Effect = "" }, "effect-divergence", checklist.Unknown, "--postgres.effect.table"},
		"no unique key":                          {func(w *world) { w.table.Indexes[0].Unique = false }, "unique-key", checklist.Violated, "CREATE UNIQUE INDEX CONCURRENTLY"},
		"invalid unique key":                     {func(w *world) { w.table.Indexes[0].Valid = false }, "unique-key", checklist.Violated, "invalid"},
		"day partitions":                         {func(w *world) { w.table.Indexes[0].Columns = append(w.table.Indexes[0].Columns, "processed_at") }, "unique-key", checklist.Violated, "migrate --partitioned"},
		"no time index":                          {func(w *world) { w.table.TimeIndex = "" }, "time-index", checklist.Warning, "CREATE INDEX CONCURRENTLY"},
		"no time":                                {timeless, "time-index", checklist.Warning, "ADD COLUMN \"processed_at\" timestamptz NOT NULL DEFAULT now();"},
		"no time, and an age is asked for":       {timeless, "retention-ratio", checklist.Unknown, "carry no time"},
		"no time, and pruning is judged":         {timeless, "row-count", checklist.Unknown, "carry no time"},
		"no time, and the counts lag":            {timeless, "ledger-exact", checklist.Warning, "page by page"},
		"invalid index":                          {func(w *world) { w.table.Indexes = append(w.table.Indexes, postgres.Index{Name: "x_ccnew"}) }, "time-index", checklist.Warning, "x_ccnew"},
		"old snapshot":                           {func(w *world) { w.health.Holders[0].Age = 3 * time.Hour }, "vacuum-horizon", checklist.Warning, "pg_stat_activity"},
		"bloated":                                {func(w *world) { w.health.Indexes[0].Bloat = 2.5 }, "index-bloat", checklist.Warning, `REINDEX INDEX CONCURRENTLY "public"."pkey";`},
		"vacuum behind":                          {func(w *world) { w.health.DeadRows = 1_000_000 }, "dead-rows", checklist.Warning, "1,000,000"},
		"doubted for a moment":                   {func(w *world) { w.markers.Inexact = []postgres.Reason{postgres.ReasonUnexplained} }, "ledger-exact", checklist.Unknown, "being verified"},
		"plain role":                             {func(w *world) { w.markers.Inexact = []postgres.Reason{postgres.ReasonRole} }, "ledger-exact", checklist.Warning, "pg_read_all_stats"},
	} {
		t.Run(name, func(t *testing.T) {
			w := healthy()
			c.fault(w)
			lines := w.lines()
			l := lines[c.rule]
			text := strings.Join(append([]string{l.Value, l.Threshold, l.Meaning, l.Remedy}, l.Evidence...), "\n")
			if l.Verdict != c.want || !strings.Contains(text, c.says) {
				t.Errorf("%s, want %s and %q:\n%s", l.Verdict, c.want, c.says, text)
			}
			if l.Verdict == checklist.Violated && l.Remedy == "" {
				t.Errorf("violated without a remedy: %+v", l)
			}
			for rule, other := range lines {
				if rule != c.rule && other.Verdict == checklist.Violated {
					t.Errorf("%s is violated too: %s", rule, other.Meaning)
				}
			}
		})
	}
}

func TestSourcesAway(t *testing.T) {
	f := checklist.Facts{Now: now, Thresholds: alerts.Defaults(), Stores: []checklist.Store{{Name: "db"}},
		Sources: []poll.Status{{ID: poll.ID{Subject: "markers"}, Err: errors.New("connection refused"), Stale: true}}}
	r := checklist.NewReport(f)
	if r.Whole() || r.Verdict != checklist.Unknown || r.Unread[0].Error != "connection refused" {
		t.Errorf("%+v", r)
	}
	// A source that hung until the end was not read either.
	f.Sources = []poll.Status{{ID: poll.ID{Subject: "topics"}, Stale: true}}
	if r := checklist.NewReport(f); r.Whole() || r.Unread[0].Source != "topics" {
		t.Errorf("%+v", r)
	}
	// A group that Kafka does not tell of is judged by what is known.
	w := healthy()
	w.partition, w.Topics, w.Retention, w.consumed = nil, nil, nil, nil
	for rule, l := range w.lines() {
		if l.Verdict == checklist.Violated {
			t.Errorf("%s is violated for want of Kafka: %s", rule, l.Meaning)
		}
	}
}

// With several stores each says what keeps it itself from being read.
func TestEachStoresOwnCause(t *testing.T) {
	f := checklist.Facts{Now: now, Thresholds: alerts.Defaults(),
		Stores: []checklist.Store{{Name: "orders", Source: "orders"}, {Name: "store 2 (inbox)", Source: "2"}, {Name: "waits", Source: "waits"}},
		Sources: []poll.Status{
			{ID: poll.ID{Subject: poll.Table, Store: "orders"}, Err: errors.New("another subject")},
			{ID: poll.ID{Subject: poll.Markers, Store: "orders"}, Err: errors.New("connection refused")},
			{ID: poll.ID{Subject: poll.Markers, Store: "2"}, Err: errors.New("password authentication failed")},
			{ID: poll.ID{Subject: poll.Markers, Store: "waits"}},
		}}
	want := map[string]string{
		"orders":          "See to the source markers:orders: connection refused",
		"store 2 (inbox)": "See to the source markers:2: password authentication failed",
		"waits":           "Wait for the source markers:waits: it has not answered yet.",
	}
	for _, l := range checklist.Evaluate(f) {
		if l.Rule == "markers" && l.Remedy != want[l.Database] {
			t.Errorf("%s: %q, want %q", l.Database, l.Remedy, want[l.Database])
		}
		delete(want, l.Database)
	}
	if len(want) > 0 {
		t.Errorf("nothing is said of %v", want)
	}
	// A topic that alone could not be read says so where it is missed.
	w := healthy()
	w.topic.Retention.OK = false
	w.Sources = []poll.Status{{ID: poll.ID{Subject: poll.Topics}, LastSuccess: now, Problems: []poll.Problem{
		{Kind: "denied", Entity: "topic other", Err: errors.New("no")}, {Kind: "denied", Entity: "topic payments", Err: errors.New("TOPIC_AUTHORIZATION_FAILED")}}}}
	if l := w.lines()["retention-ratio"]; !strings.Contains(l.Remedy, "TOPIC_AUTHORIZATION_FAILED") {
		t.Errorf("%+v", l)
	}
}

// An expression that lets nothing in must not pass as an audit.
func TestFilterThatMatchesNothing(t *testing.T) {
	f := checklist.Facts{Now: now, Thresholds: alerts.Defaults(), TopicFilter: checklist.Filter{Include: "paymets"}, GroupFilter: checklist.Filter{Include: "g"},
		Topics: &kafka.Topics{}, Groups: &kafka.Groups{Groups: []*kafka.Group{{Name: "g"}}}}
	r := checklist.NewReport(f)
	if r.Whole() || len(r.Unread) != 1 || !strings.Contains(r.Unread[0].Error, "--kafka.topic=paymets lets no topic in") {
		t.Errorf("%+v", r.Unread)
	}
	f.TopicFilter = checklist.Filter{Exclude: ".*"}
	if r := checklist.NewReport(f); r.Whole() || !strings.Contains(r.Unread[0].Error, "--kafka.topic-exclude=.* lets no topic in") {
		t.Errorf("%+v", r.Unread)
	}
	f.TopicFilter = checklist.Filter{}
	if !checklist.NewReport(f).Whole() {
		t.Error("no expression, and a broker without topics is no slip")
	}
}

// A table without a topic column is joined with the group's commits.
func TestJoinWithoutTopicColumn(t *testing.T) {
	w := healthy()
	w.series.Topic = ""
	if l := w.lines()["retention-ratio"]; l.Topic != "payments" || l.Verdict != checklist.OK {
		t.Errorf("%+v", l)
	}
}

func TestReport(t *testing.T) {
	w := healthy()
	w.markers.Config.Retention = 3 * day
	w.table.TimeIndex = ""
	w.lines() // puts the shared parts in place
	r := checklist.NewReport(w.Facts)
	if r.Lines[0].Verdict != checklist.Violated || r.Lines[1].Verdict != checklist.Warning || r.Counts["violated"] != 1 {
		t.Errorf("not worst first: %+v", r.Counts)
	}
	if !r.Fails(checklist.Violated) || !r.Fails(checklist.Warning) || !r.Whole() {
		t.Error("the report does not fail")
	}
	var plain, coloured, machine bytes.Buffer
	if err := errors.Join(r.Text(&plain, false, 80), r.Text(&coloured, true, 80), r.JSON(&machine)); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plain.String(), "\x1b") || !strings.Contains(coloured.String(), "\x1b[31m✖ violated") {
		t.Error("colour")
	}
	for line := range strings.Lines(plain.String()) {
		if len([]rune(line)) > 82 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	var back checklist.Report
	if err := json.Unmarshal(machine.Bytes(), &back); err != nil || back.Lines[0].Rule != r.Lines[0].Rule || back.Lines[0].Verdict != checklist.Violated {
		t.Errorf("%v: %+v", err, back)
	}

	r.Lines[0].Group = "evil\x1b[2J\n"
	plain.Reset()
	if err := r.Text(&plain, false, 80); err != nil || strings.Contains(plain.String(), "\x1b") {
		t.Error("a group's name steers the terminal")
	}
}

// A thousand groups are judged and written as a page at once, the worst first.
func TestThousandGroups(t *testing.T) {
	w := healthy()
	w.lines()
	groups, first := w.Groups.Groups[0], w.markers.Series[0]
	w.Groups.Groups, w.markers.Series, w.Facts.Retention.Series = nil, nil, nil
	for i := range 1000 {
		name := fmt.Sprintf("group-%04d", i)
		g, m, r, v := *groups, first, *w.compared, *w.consumed
		g.Name, m.Group, r.Group = name, name, name
		if i == 777 {
			v.CommitLag = fig(600)
		}
		w.Groups.Groups, w.markers.Series, w.Facts.Retention.Series = append(w.Groups.Groups, &g), append(w.markers.Series, m), append(w.Facts.Retention.Series, &r)
		w.Consumers.Values[consumer.Key{Group: name, Topic: "payments"}] = v
	}
	best, body := time.Hour, ""
	for range 5 {
		began := time.Now()
		rec := httptest.NewRecorder()
		page(web.View{Now: now, Refresh: 15 * time.Second, Lines: checklist.Evaluate(w.Facts)}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
		best, body = min(best, time.Since(began)), rec.Body.String()
	}
	t.Logf("1,000 groups judged and written: %s, %d kB", best, len(body)/1000)
	if len(body) > 2_000_000 || best > time.Second { // 200 ms on a quiet machine; this one may be busy
		t.Errorf("%d bytes in %s", len(body), best)
	}
	if _, rest, _ := strings.Cut(body, "<h2>"); !strings.HasPrefix(rest, "group-0777 ") {
		t.Errorf("the worst group is not first, but %.40s", rest)
	}
}

// Lines judge by the thresholds that rules and dashboards are made from: what
// is ok by the defaults is none by others.
func TestThresholdsAreTheRules(t *testing.T) {
	for key, c := range map[string]struct {
		value, rule string
		want        checklist.Verdict
	}{
		"duplicate_ratio_max":      {"0.0005", "duplicate-ratio", checklist.Warning},
		"duplicate_min_events":     {"20000", "duplicate-ratio", checklist.Unknown},
		"latency_p99":              {"0.1", "handle-latency", checklist.Warning},
		"latency_min_events":       {"20000", "handle-latency", checklist.Unknown},
		"commit_lag_critical":      {"0.01", "commit-lag", checklist.Violated},
		"retention_ratio_warning":  {"1.2", "retention-ratio", checklist.Violated},
		"expiring_soon_share":      {"0.000001", "lag", checklist.Warning},
		"duplicate_low_min_events": {"100", "duplicate-ratio", checklist.Warning},
	} {
		w := healthy()
		if verdict := w.lines()[c.rule].Verdict; verdict != checklist.OK {
			t.Fatalf("%s is %s by the defaults", c.rule, verdict)
		}
		set := map[string]string{key: c.value}
		switch key {
		case "duplicate_ratio_max":
			set["duplicate_ratio_min"] = "0.0001"
		case "duplicate_low_min_events":
			set["duplicate_ratio_min"] = "0.002"
		}
		var err error
		if w.Thresholds, err = alerts.Load("", set); err != nil {
			t.Fatal(err)
		}
		if verdict := w.lines()[c.rule].Verdict; verdict != c.want {
			t.Errorf("%s=%s: %s is %s, want %s", key, c.value, c.rule, verdict, c.want)
		}
	}
}

// What the consumers themselves missed is a loss, wherever they are by now.
func TestLossOnATopicThatTheGroupLeft(t *testing.T) {
	w := healthy()
	w.consumed.Lost = fig(2)
	w.lines()
	w.Groups.Groups[0].Topics[0].Subscribed = known(false)
	w.partition = nil
	if l := w.lines()["records-lost"]; l.Verdict != checklist.Violated {
		t.Errorf("%+v", l)
	}
}

// What a group left behind on a topic that its members no longer consume is
// nobody's loss.
func TestATopicThatTheGroupLeft(t *testing.T) {
	for subscribed, want := range map[bool]checklist.Verdict{true: checklist.Violated, false: checklist.OK} {
		w := healthy()
		w.partition.Expired, w.partition.Waiting = known(int64(5)), known(now.Add(-6*day-12*time.Hour))
		w.lines()
		w.Groups.Groups[0].Topics[0].Subscribed = known(subscribed)
		w.partition = nil
		for rule, l := range w.lines() {
			if (rule == "records-lost" || rule == "lag") && l.Verdict != want {
				t.Errorf("subscribed: %v: %s is %s, want %s", subscribed, rule, l.Verdict, want)
			}
		}
	}
}

// timeless makes the table one without a time column.
func timeless(w *world) {
	w.table.Has.ProcessedAt, w.table.TimeIndex = "", ""
	w.markers.Inexact = []postgres.Reason{postgres.ReasonNoTime}
	for i := range w.markers.Series {
		s := &w.markers.Series[i]
		s.Oldest, s.Newest, s.Pruning = time.Time{}, time.Time{}, false
	}
}
