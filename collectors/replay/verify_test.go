package replay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/postgres"
	"oncewatch/collectors/replay"
	"oncewatch/deploy/testenv"
)

// A pruner has taken the older markers: what lies below is applied twice, from
// any target; above it nothing is.
func TestVerifyPrunedMarkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 2)
	for p := range int32(2) {
		w.produce("payments", p, 3000)
		w.mark("g", "payments", p, 1000*(int(p)+1), 2899)
		w.commit("g", "payments", p, 2900)
	}
	for _, c := range []struct {
		to           string
		again, twice int64
		code         int
		sentence     string
		safe         [2]int64
		back         string // of both partitions
	}{
		{"earliest", 5800, 3000, 1, "Safe back to 2026-11-27 09:19:01 UTC; from earliest 3,000 events would be applied twice.", [2]int64{1000, 2000}, "09:19:00.001"},
		{"offset:1500", 2800, 500, 1, "Safe back to 2026-11-27 09:19:01 UTC; from offset 1500 500 events would be applied twice.", [2]int64{1500, 2000}, "09:19:00.001"},
		{"2026-11-27T09:20:00Z", 1800, 0, 0, "Safe back to 2026-11-27 09:20:00 UTC; from 2026-11-27T09:20:00Z nothing would be applied twice: the markers of all 1,800 records are there.", [2]int64{2000, 2000}, "09:20:00"},
		{"2026-11-27T09:19:00Z", 1802, 1, 1, "Safe back to 2026-11-27 09:19:01 UTC; from 2026-11-27T09:19:00Z 1 event would be applied twice.", [2]int64{1999, 2000}, "09:19:00.001"},
	} {
		a, err := w.verify("g", c.to)
		if err != nil {
			t.Fatal(c.to, err)
		}
		if n := a.Totals; n.Again != c.again || n.Twice != c.twice || n.Protected != c.again-c.twice || n.Unknown != 0 || a.ExitCode() != c.code {
			t.Errorf("%s: %+v, exit code %d", c.to, n, a.ExitCode())
		}
		if a.Sentence != c.sentence {
			t.Errorf("%s: %q", c.to, a.Sentence)
		}
		for i, p := range a.Topics[0].Partitions {
			if p.SafeOffset != c.safe[i] {
				t.Errorf("%s: partition %d is safe from offset %d, want %d", c.to, i, p.SafeOffset, c.safe[i])
			}
		}
		if back := a.Topics[0].SafeBackTo; back == nil || back.Format("15:04:05.999") != c.back {
			t.Errorf("%s: safe back to %v, want %s", c.to, back, c.back)
		}
	}
}

// Everything that a producer and a consumer can do wrong is told apart.
func TestVerifyTellsApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 1)
	w.produce("payments", 0, 100)
	record := func(id, value string) *kgo.Record {
		r := &kgo.Record{Topic: "payments", Timestamp: from.Add(3 * time.Hour), Value: []byte(value)}
		if id != "" {
			r.Headers = []kgo.RecordHeader{{Key: "trace"}, {Key: "event_id", Value: []byte(id)}}
		}
		return r
	}
	w.send(
		record("0-50", `{"n":50}`),            // 100: published again, the marker is of offset 50
		record("0-51", `{"n":"another"}`),     // 101: published again with another payload
		record("", "no id"),                   // 102
		record("unmarked", "{}"),              // 103: passed without a marker
		record("unmarked", "{}"),              // 104: a replay's marker of 103 will protect it
		record("unmarked-\x00", "{}"),         // 105: no id that PostgreSQL can hold
		record("0-60", `{"n":60}`),            // 106
		record("beyond-the-commit", `{"n":"`), // 107
	)
	w.mark("g", "payments", 0, 0, 99)
	w.exec(`DELETE FROM processed_events WHERE event_id = '0-0'`)
	w.mark("another-group", "payments", 0, 0, 100)
	w.commit("g", "payments", 0, 107)
	a, err := w.verify("g", "earliest")
	if err != nil {
		t.Fatal(err)
	}
	v := a.Verified
	if n := a.Totals; n != (replay.Counts{Again: 107, Protected: 103, Twice: 2, Unknown: 2}) || a.ExitCode() != 1 {
		t.Errorf("%+v, exit code %d", n, a.ExitCode())
	}
	if v.Records != 107 || v.WithoutID != 2 || v.Twins != 4 || v.Conflicts != 1 || v.Unmarked != 1 {
		t.Errorf("%+v", v)
	}
	if p := a.Topics[0].Partitions[0]; p.SafeOffset != 106 || p.SafeTime == nil {
		t.Errorf("safe from offset %d, %v; want 106, above the last record without an id", p.SafeOffset, p.SafeTime)
	}
	var text bytes.Buffer
	if err := a.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"from earliest 2 to 4 events would be applied twice",
		"2 records without an event id.",
		"0-50 at payments/0@100, its marker is of payments/0@50",
		"unmarked at payments/0@104\n",
		"1 record with an event id whose marker is of another payload:\n  0-51 at payments/0@101",
		"payments, partition 0, offsets 103 to 103",
		"of records without an event id nothing can be told",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
}

// A table without a record's place whose ids are UUIDs: the same answer, and ids
// published twice are found among the records.
func TestVerifyTableWithoutOffsets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plainDDL)
	w.topic("t", 1)
	var records []*kgo.Record
	for i := range 10 {
		records = append(records, &kgo.Record{Topic: "t", Timestamp: from, Key: fmt.Appendf(nil, "00000000-0000-0000-0000-%012d", i%8)})
	}
	records = append(records, &kgo.Record{Topic: "t", Timestamp: from, Key: []byte("no-uuid")})
	w.send(records...)
	w.exec(`INSERT INTO processed_events SELECT 'g', ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid FROM generate_series(0, 4) n`)
	w.commit("g", "t", 0, 11)
	a, err := w.verify("g", "earliest", byKey)
	if err != nil {
		t.Fatal(err)
	}
	if n := a.Totals; n != (replay.Counts{Again: 11, Protected: 7, Twice: 3, Unknown: 1}) || a.Verified.Twins != 2 || a.Verified.WithoutID != 1 {
		t.Errorf("%+v, %+v", n, a.Verified)
	}
	if len(a.Verified.Notes) != 1 || !strings.Contains(a.Verified.Notes[0], "Payloads were not compared") {
		t.Errorf("notes %q", a.Verified.Notes)
	}
}

// A table of (consumer, event_id) alone, whose consumer uses ON CONFLICT DO
// NOTHING: verified like any other, though nothing is known of its age.
func TestVerifyTableWithoutATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "CREATE TABLE processed_events (consumer text NOT NULL, event_id text NOT NULL, PRIMARY KEY (consumer, event_id))")
	w.store.Close()
	var err error
	if w.store, err = postgres.New(postgres.Config{Config: dbconn.To(w.dsn), Columns: postgres.Columns{Group: "consumer", ProcessedAt: "-"}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	w.topic("t", 1)
	w.produce("t", 0, 100)
	for range 2 { // the redelivery changes nothing
		w.exec(`INSERT INTO processed_events SELECT 'g', '0-' || n FROM generate_series(0, 99) n ON CONFLICT DO NOTHING`)
	}
	w.exec("DELETE FROM processed_events WHERE event_id IN ('0-0', '0-1', '0-2')")
	w.commit("g", "t", 0, 100)
	a, err := w.verify("g", "earliest")
	if err != nil {
		t.Fatal(err)
	}
	if n := a.Totals; n != (replay.Counts{Again: 100, Protected: 97, Twice: 3}) || a.ExitCode() != 1 {
		t.Errorf("%+v", n)
	}
	if a, err = w.verify("g", "offset:3"); err != nil || a.Totals.Twice != 0 || a.ExitCode() != 0 {
		t.Errorf("above the hole: %v, %+v", err, a)
	}
}

// The ids lie in the value: what the pointer finds is looked up, and a value
// that is no JSON is a record without an id.
func TestVerifyIdsInTheValue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 1)
	var records []*kgo.Record
	for i := range 20 {
		records = append(records, &kgo.Record{Topic: "payments", Timestamp: from, Value: fmt.Appendf(nil, `{"meta": {"ids": ["x", "0-%d"]}}`, i)})
	}
	records = append(records, &kgo.Record{Topic: "payments", Timestamp: from, Value: []byte("plain")})
	w.send(records...)
	w.mark("g", "payments", 0, 5, 19)
	w.exec(`UPDATE processed_events SET payload_hash = NULL`)
	w.commit("g", "payments", 0, 21)
	a, err := w.verify("g", "earliest", func(v *replay.Verifier) {
		v.IDFrom = "json:/meta/ids/1"
		v.EventID, _ = replay.ParseEventID(v.IDFrom)
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := a.Totals; n != (replay.Counts{Again: 21, Protected: 15, Twice: 5, Unknown: 1}) || a.Verified.WithoutID != 1 || a.Verified.Conflicts != 0 {
		t.Errorf("%+v, %+v", n, a.Verified)
	}
}

// The markers of a group lie in two tables: a record is protected where either
// has its marker, and of what neither has is told as of one table.
func TestVerifyShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 1)
	w.produce("payments", 0, 50)
	w.mark("g", "payments", 0, 0, 49)
	w.exec(`CREATE TABLE other_shard (LIKE processed_events INCLUDING ALL)`)
	w.exec(`INSERT INTO other_shard SELECT * FROM processed_events WHERE "offset" % 3 = 1`)
	w.exec(`DELETE FROM processed_events WHERE "offset" % 3 = 1`)
	w.exec(`DELETE FROM processed_events WHERE "offset" IN (3, 6, 30)`)
	w.exec(`UPDATE other_shard SET "offset" = 0 WHERE "offset" = 4`)          // another record's
	w.exec(`UPDATE other_shard SET payload_hash = 1 WHERE "offset" = 7`)      // another payload's
	w.exec(`UPDATE processed_events SET payload_hash = 1 WHERE "offset" = 8`) // likewise
	w.commit("g", "payments", 0, 50)
	other, err := postgres.New(postgres.Config{Config: dbconn.To(w.dsn), Table: "other_shard"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	second, err := other.Lookup(w.ctx, "g")
	if err != nil {
		t.Fatal(err)
	}
	for name, shards := range map[string]func([]replay.Markers) []replay.Markers{
		"one way":   func(first []replay.Markers) []replay.Markers { return append(first, second) },
		"the other": func(first []replay.Markers) []replay.Markers { return append([]replay.Markers{second}, first...) },
	} {
		a, err := w.verify("g", "earliest", func(v *replay.Verifier) { v.Markers = shards(v.Markers) })
		if err != nil {
			t.Fatal(err)
		}
		v := a.Verified
		if n := a.Totals; n != (replay.Counts{Again: 50, Protected: 47, Twice: 3}) || v.Unmarked != 3 || v.Twins != 1 || v.Conflicts != 2 {
			t.Errorf("%s: %+v, %+v", name, n, v)
		}
		if p := a.Topics[0].Partitions[0]; p.SafeOffset != 31 || v.SomeTwins[0].At != "payments/0@4" || v.SomeTwins[0].Other != "payments/0@0" {
			t.Errorf("%s: safe from %d, %+v", name, p.SafeOffset, v.SomeTwins)
		}
	}
}

// Kafka keeps an offset on one partition of three: the others are read to their
// end. Where markers tell how far the group had come, what lies after them was
// never handled, and is neither applied twice nor passed without a marker; where
// none does, nothing is known, and there is no plan.
func TestVerifyWithoutOffsets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 4) // the last is empty
	for p := range int32(3) {
		w.produce("payments", p, 100)
	}
	w.send(&kgo.Record{Topic: "payments", Partition: 1, Timestamp: from.Add(200 * time.Minute), Headers: []kgo.RecordHeader{{Key: "event_id", Value: []byte("1-30")}}})
	w.mark("g", "payments", 0, 0, 99)
	w.commit("g", "payments", 0, 100)
	w.mark("g", "payments", 1, 10, 59)
	w.exec(`DELETE FROM processed_events WHERE partition = 1 AND "offset" BETWEEN 40 AND 44`)
	a, err := w.verify("g", "offset:5")
	if err != nil {
		t.Fatal(err)
	}
	parts := a.Topics[0].Partitions
	if len(parts) != 3 || parts[0].CommitGone || !parts[1].CommitGone || !parts[2].CommitGone {
		t.Fatalf("%+v", parts)
	}
	if p := parts[1]; p.Committed != 60 || p.Counts != (replay.Counts{Again: 55, Protected: 45, Twice: 10}) || p.SafeOffset != 45 || p.SafeTime == nil || !p.SafeTime.Equal(from.Add(44*time.Minute+time.Millisecond)) {
		t.Errorf("a partition with markers up to 59: %+v, safe back to %v", p, p.SafeTime)
	}
	if p := parts[2]; p.Counts != (replay.Counts{Again: 95, Unknown: 95}) || p.SafeTime != nil || !strings.Contains(p.Why, "no record from offset 5 on has a marker") {
		t.Errorf("a partition without markers: %+v", p)
	}
	if v := a.Verified; v.Unmarked != 5 || len(v.SomeUnmarked) != 1 || v.SomeUnmarked[0].Range != (replay.Range{First: 40, Last: 44}) || v.Twins != 1 {
		t.Errorf("%+v; want the five in the middle passed without a marker, and one id published twice", v)
	}
	if a.ExitCode() != 1 || len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], "no offsets of group g on 2 partitions of payments") {
		t.Errorf("exit code %d, warnings %q", a.ExitCode(), a.Warnings)
	}
	if err := a.WritePlan(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "topic payments, partition 2: there is no offset for the plan") {
		t.Errorf("a plan where nobody knows where the group stands: %v", err)
	}
}

func byKey(v *replay.Verifier) {
	v.IDFrom = "key"
	v.EventID, _ = replay.ParseEventID("key")
}

// Aborted records, control records and what an open transaction holds back: a
// group that reads uncommitted data has passed it, and nobody can tell of it.
func TestVerifyTransactions(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, testenv.Kafka(t).Brokers(), ddl)
	id := fmt.Sprint(time.Now().UnixNano()) // the broker outlives the test
	topic, group := "t-"+id, "g-"+id
	w.topic(topic, 1)
	w.produce(topic, 0, 10)
	transaction := func(end kgo.TransactionEndTry, leaveOpen bool) {
		t.Helper()
		client, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.TransactionalID(fmt.Sprint("tx", id, end, leaveOpen)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			if err := client.ProduceSync(w.ctx, &kgo.Record{Topic: topic, Timestamp: from.Add(time.Hour), Headers: []kgo.RecordHeader{{Key: "event_id", Value: fmt.Appendf(nil, "tx-%v-%d", end, i)}}}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if leaveOpen {
			return
		}
		if err := client.EndTransaction(w.ctx, end); err != nil {
			t.Fatal(err)
		}
	}
	transaction(kgo.TryCommit, false) // 10 to 14, control record 15
	transaction(kgo.TryAbort, false)  // 16 to 20, control record 21
	w.mark(group, topic, 0, 0, 9)
	w.commit(group, topic, 0, 22)
	a, err := w.verify(group, "earliest")
	if err != nil {
		t.Fatal(err)
	}
	if n := a.Totals; n != (replay.Counts{Again: 15, Protected: 10, Twice: 5}) || a.Partial != "" {
		t.Errorf("with an aborted transaction at the end: %+v, %q", n, a.Partial)
	}
	transaction(kgo.TryCommit, true) // 22 to 26, open
	w.commit(group, topic, 0, 25)
	if a, err = w.verify(group, "earliest"); err != nil {
		t.Fatal(err)
	}
	if n := a.Totals; n != (replay.Counts{Again: 18, Protected: 10, Twice: 5, Unknown: 3}) {
		t.Errorf("with an open transaction: %+v", n)
	}
	if p := a.Topics[0].Partitions[0]; p.SafeOffset != 25 || !strings.Contains(p.Why, "offsets 22 to 24: an open transaction holds it back") {
		t.Errorf("safe from offset %d: %q", p.SafeOffset, p.Why)
	}
}

// Ctrl-C: what was read is told, the rest is unknown, and nothing is called
// safe.
func TestVerifyInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 2)
	for p := range int32(2) {
		w.produce("payments", p, 8000)
		w.mark("g", "payments", p, 0, 7999)
		w.commit("g", "payments", p, 8000)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	a, err := w.verifyUntil(ctx, "g", "earliest", func(v *replay.Verifier) {
		v.Progress = func(p replay.Progress) {
			if p.Records > 0 {
				cancel()
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	n := a.Totals
	if a.Partial != "interrupted" || a.ExitCode() != 2 || n.Unknown == 0 || n.Protected == 0 || n.Again != 16000 || n.Twice != 0 {
		t.Errorf("%q, exit code %d, %+v", a.Partial, a.ExitCode(), n)
	}
	if !strings.HasPrefix(a.Sentence, "Partial: ") || strings.Contains(a.Sentence, "afe back") {
		t.Errorf("%q", a.Sentence)
	}
}

// A rate limit is kept, by a clock that the limit itself moves.
func TestVerifyRateLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 1)
	w.produce("payments", 0, 1000)
	w.mark("g", "payments", 0, 0, 999)
	w.commit("g", "payments", 0, 1000)
	began := time.Now()
	a, err := w.verify("g", "earliest", func(v *replay.Verifier) { v.RateLimit = 1000 })
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < time.Second || a.Totals.Protected != 1000 {
		t.Errorf("1,000 records at 1,000 a second took %s: %+v", took, a.Totals)
	}
}

// What cannot be looked at is one line that names it and the remedy.
func TestVerifyBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 2)
	w.topic("refunds", 1)
	for p := range int32(2) {
		w.produce("payments", p, 10)
		w.commit("ledger-writer", "payments", p, 10)
	}
	w.commit("mailer", "refunds", 0, 0)
	w.mark("ledger-writer", "payments", 0, 0, 9)
	for _, c := range []struct{ group, to, want string }{
		{"ledger-writr", "earliest", "--group: Kafka keeps no offsets of a group ledger-writr; the nearest names are ledger-writer, mailer"},
		{"ledger-writer", "offset:11", "--to: offset 11 lies beyond the end of every partition of topic payments (partition 0 ends at 10, partition 1 ends at 10)"},
		{"ledger-writer", "offset:-1", `--to: "-1" is no offset: want for example offset:23045`},
		{"ledger-writer", "yesterday", `--to: "yesterday" is none of earliest, a time such as 2026-11-28T04:13:00Z, a time ago such as -36h, offset:N`},
		{"ledger-writer", "-36", `--to: "-36" is no time ago: want for example -36h or -2d`},
		{"ledger-writer", "2030-01-01T00:00:00Z", "--to: 2030-01-01T00:00:00Z lies in the future: a reset there would skip what waits, not replay"},
		{"ledger-writer", "2026-11-26T00:09:01Z", "--to: 2026-11-26T00:09:01Z lies after the last record of every partition of topic payments: a reset there replays nothing"},
	} {
		if _, err := w.verify(c.group, c.to); err == nil || err.Error() != c.want {
			t.Errorf("group %s to %s: %v\nwant %s", c.group, c.to, err, c.want)
		}
	}
	if _, err := w.verify("ledger-writer", "earliest", byKey, func(v *replay.Verifier) { v.EventID, _ = replay.ParseEventID("json:/id") }); err == nil ||
		err.Error() != "--event-id: by key none of 20 records has an event id (their headers: event_id): say where it is with header:NAME, key or json:/path" {
		t.Error(err)
	}
	a, err := w.verify("ledger-writer", "2020-01-01T00:00:00Z")
	if err != nil || len(a.Warnings) != 1 || a.Warnings[0] != "2020-01-01T00:00:00Z lies before the first record of topic payments: the same as earliest." {
		t.Error(a.Warnings, err)
	}
	// Markers that stop nothing.
	w.exec(`ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`)
	if _, err := w.verify("ledger-writer", "earliest"); err == nil || !strings.Contains(err.Error(), "table public.processed_events has no valid unique index on (consumer_group, event_id): its markers stop no event from being applied twice") {
		t.Error(err)
	}
}

// A reader that nothing comes to any more says where it stands, and the rest is
// unknown.
func TestVerifyReaderFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ddl)
	w.topic("payments", 1)
	w.produce("payments", 0, 100)
	w.mark("g", "payments", 0, 0, 99)
	w.commit("g", "payments", 0, 100)
	a, err := w.verify("g", "earliest", func(v *replay.Verifier) {
		read := v.Read
		v.Read = func(ctx context.Context, topic string, spans []kafka.Span) (replay.Records, error) {
			r, err := read(ctx, topic, spans)
			return &failing{r}, err
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if a.Partial != "the broker is gone" || a.Totals != (replay.Counts{Again: 100, Unknown: 100}) || a.ExitCode() != 2 {
		t.Errorf("%q, %+v", a.Partial, a.Totals)
	}
}

type failing struct{ replay.Records }

func (*failing) Next(context.Context) ([]*kgo.Record, error) {
	return nil, errors.New("the broker is gone")
}
