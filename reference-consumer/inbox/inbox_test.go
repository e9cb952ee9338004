package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/schema"
)

func TestProcessedThenDuplicate(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{})
	wantTally(t, b.apply(in, batch(10, ids("e", 50)...)), 50, 0, 0)

	res := b.apply(in, batch(10, ids("e", 50)...))
	wantTally(t, res, 0, 50, 0)
	if h := res.Handled[7]; h.Origin != inbox.SameOffset || h.FirstOffset != 17 || h.FirstPartition != 3 {
		t.Errorf("redelivery: %+v, want same offset, 3/17", h)
	}
	res = b.apply(in, batch(500, ids("e", 50)...))
	wantTally(t, res, 0, 50, 0)
	if h := res.Handled[7]; h.Origin != inbox.OtherOffset || h.FirstOffset != 17 {
		t.Errorf("published twice: %+v, want other offset, first 17", h)
	}
	b.want("next offset", 550, "SELECT next_offset FROM consumer_progress WHERE consumer_group = 'g' AND topic = 'payments' AND partition = 3")
	b.audit()
}

// Groups do not shadow each other; an empty group is refused, an
// empty id goes to the dead letters.
func TestGroupsAreApart(t *testing.T) {
	b := setup(t)
	for _, group := range []string{"one", "two"} {
		wantTally(t, b.apply(newInbox(t, inbox.Config{Group: group}), batch(0, ids("e", 20)...)), 20, 0, 0)
	}
	b.want("effects", 40, "SELECT count(*) FROM effects")
	if _, err := inbox.New(inbox.Config{Handler: effect("")}); err == nil || !strings.Contains(err.Error(), "group is empty") {
		t.Errorf("empty group: %v, want a refusal", err)
	}
	for _, bad := range []string{"", "nul\x00", "\xff", strings.Repeat("x", 600)} {
		res := b.apply(newInbox(t, inbox.Config{Group: "one"}), batch(100, "ok-"+uuid.NewString(), bad))
		wantTally(t, res, 1, 0, 1)
		if res.Handled[1].Reason != inbox.ReasonDecode {
			t.Errorf("id %.10q: reason %s, want decode", bad, res.Handled[1].Reason)
		}
	}
	b.audit()
}

// Two events with one id. The second is kept, not swallowed.
func TestIDConflict(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{})
	b.apply(in, batch(5, "a", "b"))
	other := batch(90, "a", "c")
	other.Events[0].Value = []byte("something else")
	res := b.apply(in, other)
	wantTally(t, res, 1, 0, 1)
	if h := res.Handled[0]; h.Reason != inbox.ReasonIDConflict || h.FirstOffset != 5 || !errors.Is(h.Err, inbox.ErrIDConflict) {
		t.Errorf("%+v, want id_conflict with first offset 5", h)
	}
	b.want("dead letters with both offsets", 1, `SELECT count(*) FROM dead_letters WHERE event_id = 'a' AND "offset" = 90 AND first_offset = 5 AND first_partition = 3 AND reason = 'id_conflict' AND value = 'something else'`)

	within := batch(200, "z", "z")
	within.Events[1].Value = []byte("not the same")
	wantTally(t, b.apply(in, within), 1, 0, 1)
	b.audit()
}

// A marker written by a binary that knew no hashes conflicts with nothing.
func TestMarkerWithoutHash(t *testing.T) {
	b := setup(t)
	b.exec(`INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset", txid) VALUES ('g', 'old', 'payments', 3, 1, NULL)`)
	wantTally(t, b.apply(newInbox(t, inbox.Config{}), batch(7, "old")), 0, 1, 0)
}

// The same id twice in one batch.
func TestRepeatedInBatch(t *testing.T) {
	b := setup(t)
	res := b.apply(newInbox(t, inbox.Config{}), batch(0, "a", "b", "a"))
	wantTally(t, res, 2, 1, 0)
	if res.Handled[0].Outcome != inbox.Processed || res.Handled[2].Outcome != inbox.Duplicate || res.Handled[2].FirstOffset != 0 {
		t.Errorf("the first must win: %+v", res.Handled)
	}
	b.audit()
}

// One poison in 1,000; the rest is applied, and it does not matter
// where in the batch it is or how many there are.
func TestPoison(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{})
	all := batch(0, ids("e", 1000)...)
	all.Events[417].Value = make([]byte, 2000) // n < 1000 fails
	res := b.apply(in, all)
	wantTally(t, res, 999, 0, 1)
	if h := res.Handled[417]; h.Reason != inbox.ReasonData || h.Attempts != 1 {
		t.Errorf("%+v, want data after one attempt", h)
	}
	b.want("dead letters", 1, `SELECT count(*) FROM dead_letters WHERE event_id = 'e-0417' AND "offset" = 417 AND error LIKE '%23514%'`)
	b.want("next offset", 1000, "SELECT next_offset FROM consumer_progress")

	many := batch(1000, ids("m", 60)...)
	for i := range many.Events {
		if i%3 == 0 {
			many.Events[i].Value = make([]byte, 2000)
		}
	}
	wantTally(t, b.apply(in, many), 40, 0, 20)
	wantTally(t, b.apply(in, many), 0, 40, 20) // again: no second letter
	b.want("dead letters", 21, "SELECT count(*) FROM dead_letters")
	b.audit()
}

// An error of preparing a statement shows at the batch's first statement; it
// must not be blamed on the first event.
func TestErrorOfPreparingIsNotBlamedOnTheFirst(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{Handler: func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.ID == "e-0005" {
			tx.Queue("INSERT INTO effects (consumer_group, event_id, n) VALUES ('g', 'x', 'abc'::int)") // 22P02 when prepared
			return nil
		}
		return effect("g")(t.Context(), tx, ev)
	}})
	res := b.apply(in, batch(0, ids("e", 10)...))
	wantTally(t, res, 9, 0, 1)
	if res.Handled[5].Outcome != inbox.DeadLettered {
		t.Errorf("%+v: want event 5 dead", res.Handled)
	}
	b.audit()
}

// A deferred constraint fails at COMMIT, where no event is named.
func TestDeferredConstraint(t *testing.T) {
	b := setup(t)
	b.exec("CREATE TABLE parents (id text PRIMARY KEY); INSERT INTO parents VALUES ('p')")
	b.exec("ALTER TABLE effects ADD COLUMN parent text REFERENCES parents DEFERRABLE INITIALLY DEFERRED")
	in := newInbox(t, inbox.Config{Handler: func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
		parent := "p"
		if ev.ID == "e-0013" {
			parent = "nobody"
		}
		tx.Queue("INSERT INTO effects (consumer_group, event_id, parent) VALUES ('g', $1, $2)", ev.ID, parent)
		return nil
	}})
	res := b.apply(in, batch(0, ids("e", 40)...))
	wantTally(t, res, 39, 0, 1)
	if res.Handled[13].Reason != inbox.ReasonData || res.Next != 40 {
		t.Errorf("%+v, next %d", res.Handled[13], res.Next)
	}
	b.audit()
}

// An error that is no event's fault: everything before the event is
// applied, nothing after it, and the offset stands at it.
func TestPrefixIsApplied(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.ID == "e-0020" {
			tx.Queue("INSERT INTO no_such_table VALUES (1)")
			return nil
		}
		return effect("g")(ctx, tx, ev)
	}})
	res, err := in.Apply(t.Context(), b.pool, batch(100, ids("e", 50)...))
	var ee *inbox.EventError
	if !errors.As(err, &ee) || ee.Index != 20 || inbox.Classify(err) != inbox.ClassConfig {
		t.Fatalf("error %v, want event 20 and a missing table", err)
	}
	if res.Next != 120 || len(res.Handled) != 20 {
		t.Errorf("next %d, handled %d, want 120, 20", res.Next, len(res.Handled))
	}
	b.want("next offset", 120, "SELECT next_offset FROM consumer_progress")
	b.want("effects", 20, "SELECT count(*) FROM effects")
	b.audit()
}

// With two transactions instead of one the audit finds it; with the
// inbox it finds nothing. (The other tests call audit throughout; this one
// shows that audit can fail.)
func TestAuditFindsSplitTransactions(t *testing.T) {
	b := setup(t)
	b.apply(newInbox(t, inbox.Config{}), batch(0, ids("e", 10)...))
	b.audit()
	b.exec(`INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset") VALUES ('g', 'split', 't', 0, 0)`)
	b.exec(`INSERT INTO effects (consumer_group, event_id) VALUES ('g', 'split')`)
	b.want("rows of two transactions", 1, `SELECT count(*) FROM processed_events m FULL JOIN effects e USING (consumer_group, event_id) WHERE m.txid IS DISTINCT FROM e.txid`)
}

// Overlapping ids from many workers, without a deadlock.
func TestNoDeadlocks(t *testing.T) {
	b := setup(t)
	var retries sync.Map
	in := newInbox(t, inbox.Config{Group: "g"})
	for round := range 40 {
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				names := ids(fmt.Sprintf("r%d", round), 60)
				if w%2 == 1 { // the other way round
					for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
						names[i], names[j] = names[j], names[i]
					}
				}
				x := batch(int64(1000*round), names...)
				x.Partition = int32(w)
				x.OnRetry = func(err error, _ int) { retries.Store(err.Error(), true) }
				if _, err := in.Apply(t.Context(), b.pool, x); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	retries.Range(func(k, _ any) bool { t.Errorf("retried: %v", k); return true })
	b.want("effects", 40*60, "SELECT count(*) FROM effects")
	b.audit()
}

// When there is a deadlock after all, the batch is done again.
func TestDeadlockIsRetried(t *testing.T) {
	b := setup(t)
	b.exec("CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL); INSERT INTO counters VALUES (1, 0), (2, 0)")
	meet := make(chan struct{}, 2)
	var once [2]sync.Once
	both := make(chan struct{})
	go func() { <-meet; <-meet; close(both) }()
	handler := func(w int) inbox.Handler {
		return func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
			for i := range 2 {
				if _, err := tx.Exec(ctx, "UPDATE counters SET n = n + 1 WHERE id = $1", (i+w)%2+1); err != nil {
					return err
				}
				once[w].Do(func() { meet <- struct{}{}; <-both })
			}
			tx.Queue("INSERT INTO effects (consumer_group, event_id) VALUES ('g', $1)", ev.ID)
			return nil
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	retries := 0
	for w := range 2 {
		wg.Go(func() {
			x := batch(0, fmt.Sprintf("w%d", w))
			x.Partition = int32(w)
			x.OnRetry = func(err error, _ int) {
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || pg.Code != "40P01" {
					t.Errorf("retry because of %v, want 40P01", err)
				}
				mu.Lock()
				retries++
				mu.Unlock()
			}
			if _, err := newInbox(t, inbox.Config{Handler: handler(w)}).Apply(t.Context(), b.pool, x); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if retries < 1 { // a busy machine may let them meet again
		t.Errorf("%d retries, want at least 1", retries)
	}
	b.want("updates", 4, "SELECT sum(n) FROM counters")
	b.audit()
}

// A handler that ignores an SQL error does not get a rollback
// reported as success.
func TestSwallowedError(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.ID == "e-0003" {
			_, _ = tx.Exec(ctx, "INSERT INTO effects (consumer_group, event_id, n) VALUES ('g', 'x', 5000)")
			return nil
		}
		return effect("g")(ctx, tx, ev)
	}})
	res := b.apply(in, batch(0, ids("e", 8)...))
	wantTally(t, res, 7, 0, 1)
	if res.Handled[3].Outcome != inbox.DeadLettered {
		t.Errorf("%+v: want event 3 found", res.Handled)
	}
	b.audit()
}

// A handler that ends the transaction itself is refused, however it
// writes it, and whether or not it ignores the refusal.
func TestTransactionControlIsRefused(t *testing.T) {
	b := setup(t)
	for i, sql := range []string{"COMMIT", "commit", " ; end", "-- done\nCOMMIT", "/* a /* nested */ b */ Commit AND CHAIN", "ROLLBACK", "ABORT", "SAVEPOINT s", "BEGIN", "START TRANSACTION", "PREPARE TRANSACTION 'x'", "RELEASE SAVEPOINT s"} {
		for _, queue := range []bool{false, true} {
			in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
				if ev.Offset%10 == 2 {
					if queue {
						tx.Queue(sql)
						return nil
					}
					_, _ = tx.Exec(ctx, sql)
					return nil
				}
				return effect("g")(ctx, tx, ev)
			}})
			res, err := in.Apply(t.Context(), b.pool, batch(int64(100+10*i), ids(fmt.Sprintf("%s-%v", sql, queue), 5)...))
			if !errors.Is(err, inbox.ErrTransactionControl) || inbox.Classify(err) != inbox.ClassBug {
				t.Errorf("%q: %v, want a refusal", sql, err)
			}
			if len(res.Handled) != 2 {
				t.Errorf("%q: %d events before it applied, want 2", sql, len(res.Handled))
			}
		}
	}
	b.want("dead letters", 0, "SELECT count(*) FROM dead_letters")
	b.audit()
}

func TestTxClosesWithItsHandler(t *testing.T) {
	b := setup(t)
	var leaked *inbox.Tx
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		leaked = tx
		return effect("g")(ctx, tx, ev)
	}})
	b.apply(in, batch(0, "a"))
	if _, err := leaked.Exec(t.Context(), "INSERT INTO effects (consumer_group, event_id) VALUES ('g', 'late')"); !errors.Is(err, inbox.ErrTxClosed) {
		t.Errorf("%v, want ErrTxClosed", err)
	}
	leaked.Queue("INSERT INTO effects (consumer_group, event_id) VALUES ('g', 'late')")
	b.apply(in, batch(1, "b"))
	b.audit()
}

func TestReadsInsideTheHandler(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		var before int // sees what the events before it queued
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM effects", nil, &before); err != nil {
			return err
		}
		if before != int(ev.Offset) {
			return fmt.Errorf("event %d sees %d effects", ev.Offset, before)
		}
		var seen []string
		err := tx.Query(ctx, "SELECT event_id FROM effects ORDER BY event_id", nil, func(scan func(...any) error) error {
			var id string
			seen = append(seen, id)
			return scan(&id)
		})
		if err != nil || len(seen) != before {
			return fmt.Errorf("%d rows, %w", len(seen), err)
		}
		if err := tx.QueryRow(ctx, "SELECT 1 WHERE false", nil, &before); !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("no rows: %w", err)
		}
		return effect("g")(ctx, tx, ev)
	}})
	wantTally(t, b.apply(in, batch(0, ids("e", 5)...)), 5, 0, 0)
	b.audit()
}

// A handler that fails without a reason is tried MaxAttempts times, then its
// event goes to the dead letters with that number.
func TestHandlerErrorIsRetriedThenDeadLettered(t *testing.T) {
	b := setup(t)
	calls := 0
	in := newInbox(t, inbox.Config{MaxAttempts: 4, Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if ev.ID == "e-0002" {
			calls++
			return errors.New("the pricing service is unwell")
		}
		return effect("g")(ctx, tx, ev)
	}})
	res := b.apply(in, batch(0, ids("e", 5)...))
	wantTally(t, res, 4, 0, 1)
	if h := res.Handled[2]; calls != 4 || h.Reason != inbox.ReasonRetries || h.Attempts != 4 {
		t.Errorf("%d calls, %+v, want 4 and retries", calls, h)
	}
	b.audit()
}

// While the dead letter cannot be written the offset does not move.
func TestDeadLetterMustBeStored(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{MaxAttempts: 3})
	x := batch(0, "good", "bad", "fine")
	x.Events[1].Value = make([]byte, 2000)
	b.exec("ALTER TABLE dead_letters RENAME TO gone")
	res, err := in.Apply(t.Context(), b.pool, x)
	if err == nil || res.Next != 0 {
		t.Fatalf("passed without its letter: %+v", res)
	}
	b.want("rows", 0, "SELECT (SELECT count(*) FROM processed_events) + (SELECT count(*) FROM consumer_progress)")
	b.exec("ALTER TABLE gone RENAME TO dead_letters")
	wantTally(t, b.apply(in, x), 2, 0, 1)
	b.audit()
}

// A server that was demoted under the connection. The connection is
// given up, not only the transaction.
func TestDemotedServer(t *testing.T) {
	t.Parallel()
	s := testenv.PostgresServer(t, pgserver.Options{})
	b := open(t, s.DSN("postgres"), schema.Options{})
	pids := map[int]bool{}
	in := newInbox(t, inbox.Config{MaxAttempts: 5, Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		var pid int
		if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()", nil, &pid); err != nil {
			return err
		}
		pids[pid] = true
		return effect("g")(ctx, tx, ev)
	}, Sleep: func(ctx context.Context, _ time.Duration) error {
		return demote(ctx, s.DSN("postgres"), "off")
	}})
	b.apply(in, batch(0, "a"))
	if err := demote(t.Context(), s.DSN("postgres"), "on"); err != nil {
		t.Fatal(err)
	}
	res := b.apply(in, batch(1, "b"))
	wantTally(t, res, 1, 0, 0)
	if res.Retries == 0 || len(pids) != 2 {
		t.Errorf("%d retries over %d connections, want a retry on a new connection", res.Retries, len(pids))
	}
	b.audit()
}

// demote sets default_transaction_read_only and waits until new transactions
// have it.
func demote(ctx context.Context, dsn, value string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range []string{"SET default_transaction_read_only = off", "ALTER SYSTEM SET default_transaction_read_only = " + value, "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	for {
		probe, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		var got string
		err = probe.QueryRow(ctx, "SHOW default_transaction_read_only").Scan(&got)
		_ = probe.Close(ctx)
		if err != nil || got == value {
			return err
		}
	}
}

// Duplicates leave no trace in the server's log and cost no
// transaction id more than their batch.
func TestDuplicatesLeaveTheServersLogAlone(t *testing.T) {
	t.Parallel()
	s := testenv.PostgresServer(t, pgserver.Options{Config: map[string]string{"log_checkpoints": "off", "autovacuum": "off"}})
	b := open(t, s.DSN("postgres"), schema.Options{})
	in := newInbox(t, inbox.Config{})
	for i := range 25 {
		b.apply(in, batch(int64(200*i), ids(fmt.Sprint("b", i), 200)...))
	}
	before, err := os.ReadFile(s.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	xid := b.count("SELECT txid_current()::text::int")
	duplicates := 0
	for i := range 25 {
		_, d, _ := tally(b.apply(in, batch(int64(200*i), ids(fmt.Sprint("b", i), 200)...)))
		duplicates += d
	}
	after, err := os.ReadFile(s.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if duplicates != 5000 || !bytes.Equal(before, after) {
		t.Errorf("%d duplicates; the server's log grew by %d bytes: %s", duplicates, len(after)-len(before), after[len(before):])
	}
	if used := b.count("SELECT txid_current()::text::int") - xid; used > 30 {
		t.Errorf("%d transaction ids for 25 batches of duplicates", used)
	}
}

// A stopped client's transaction is ended by the server, so that its markers
// do not block another owner.
func TestIdleTransactionIsEnded(t *testing.T) {
	b := setup(t)
	hold, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stopped := newInbox(t, inbox.Config{IdleTimeout: 300 * time.Millisecond, MaxAttempts: 1, Failpoint: func(name string) {
		if name == "after_marker" {
			once.Do(func() { close(held); <-hold })
		}
	}})
	zombie := make(chan error, 1)
	go func() {
		_, err := stopped.Apply(t.Context(), b.pool, batch(0, "a"))
		zombie <- err
	}()
	<-held
	start := time.Now()
	wantTally(t, b.apply(newInbox(t, inbox.Config{}), batch(0, "a")), 1, 0, 0)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the next owner waited %s", took)
	}
	close(hold)
	if err := <-zombie; err == nil || inbox.Classify(err) != inbox.ClassTransient {
		t.Errorf("the stopped owner's attempt: %v, want it to fail", err)
	}
	b.audit()
}

// The set-based form does the same as the handlers, and when it fails the
// failing event is found by them.
func TestBatchHandler(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{BatchHandler: func(_ context.Context, tx *inbox.Tx, evs []inbox.Event) error {
		names, sizes := make([]string, len(evs)), make([]int32, len(evs))
		for i, ev := range evs {
			names[i], sizes[i] = ev.ID, int32(len(ev.Value))
		}
		tx.Queue("INSERT INTO effects (consumer_group, event_id, n) SELECT 'g', * FROM unnest($1::text[], $2::int[])", names, sizes)
		return nil
	}})
	wantTally(t, b.apply(in, batch(0, ids("e", 100)...)), 100, 0, 0)
	x := batch(50, ids("e", 150)...)
	x.Events[120].Value = make([]byte, 2000)
	for i := range x.Events[:100] {
		x.Events[i].Offset = int64(i)
	}
	wantTally(t, b.apply(in, x), 49, 100, 1)
	b.audit()
}

// The runbook's own code, which knows nothing of our columns, works
// on the current schema, and each side sees the other's markers.
func TestOldBinaryOnNewSchema(t *testing.T) {
	b := setup(t)
	old := func(id string) string {
		err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset") VALUES ('g', $1, 'payments', 3, 0)`, id); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), "INSERT INTO effects (consumer_group, event_id) VALUES ('g', $1)", id)
			return err
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "23505" {
			return "duplicate"
		}
		if err != nil {
			t.Fatal(err)
		}
		return "processed"
	}
	in := newInbox(t, inbox.Config{})
	if got := old("by-old"); got != "processed" {
		t.Errorf("old binary: %s", got)
	}
	wantTally(t, b.apply(in, batch(0, "by-old", "by-new")), 1, 1, 0)
	if got := old("by-new"); got != "duplicate" {
		t.Errorf("old binary sees the new one's marker as %s", got)
	}
	b.audit()
}

// And a new binary on the old schema says what to do.
func TestNewBinaryOnOldSchema(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := schema.Check(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "reference-consumer migrate") {
		t.Errorf("%v, want the remedy", err)
	}
}

func TestWithoutBroker(t *testing.T) {
	b := setup(t)
	x := batch(0, "a")
	x.Next = 0
	wantTally(t, b.apply(newInbox(t, inbox.Config{}), x), 1, 0, 0)
	b.want("progress rows", 0, "SELECT count(*) FROM consumer_progress")
	b.audit()
}

func TestTerminatedBackend(t *testing.T) {
	b := setup(t)
	for _, point := range []string{"after_marker", "in_effect", "before_db_commit"} {
		var once sync.Once
		in := newInbox(t, inbox.Config{Failpoint: func(name string) {
			if name == point {
				once.Do(func() {
					b.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
				})
			}
		}})
		res := b.apply(in, batch(0, ids(point, 30)...))
		wantTally(t, res, 30, 0, 0)
		if res.Retries == 0 {
			t.Errorf("%s: no retry", point)
		}
	}
	b.audit()
}

// A replay looks before it inserts, with the same outcomes.
func TestReplay(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{})
	b.apply(in, batch(0, ids("e", 50)...))
	x := batch(0, append(ids("e", 50), ids("new", 5)...)...)
	x.Replay = true
	x.Events[20].Value = []byte("another")
	res := b.apply(in, x)
	wantTally(t, res, 5, 49, 1)
	if h := res.Handled[7]; h.Origin != inbox.SameOffset || h.FirstOffset != 7 {
		t.Errorf("%+v, want same offset, 7", h)
	}
	if h := res.Handled[20]; h.Reason != inbox.ReasonIDConflict {
		t.Errorf("%+v, want an id conflict", h)
	}
	all := batch(0, ids("e", 10)...)
	all.Replay = true
	wantTally(t, b.apply(in, all), 0, 10, 0)
	b.want("next offset", 10, "SELECT next_offset FROM consumer_progress")
	b.audit()
}
