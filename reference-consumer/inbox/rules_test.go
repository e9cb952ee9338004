package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/reference-consumer/inbox"
)

// A handler tries to end the transaction, to change where and how markers are
// written, or to take the connection over, by each statement there is. Nothing
// of its event is committed, no other event is lost or doubled, its partition
// stops with the reason, and the connection is sound for the next batch.
func TestHandlerCannotLeaveItsTransaction(t *testing.T) {
	b := setup(t)
	b.exec("CREATE SCHEMA other; CREATE TABLE other.processed_events (LIKE processed_events INCLUDING ALL)")
	b.exec("CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$")
	b.exec("CREATE FUNCTION elsewhere() RETURNS text LANGUAGE sql AS $$ SELECT set_config('search_path', 'other', false) $$")
	attempts := []string{
		// Several statements in one string.
		"SELECT 1; COMMIT", "SELECT 1; COMMIT; BEGIN", "SELECT 1; ROLLBACK; BEGIN", "SELECT 1;\n--\nEND",
		// Inside a function or an anonymous block.
		"DO $$ BEGIN COMMIT; END $$", "DO $$ BEGIN EXECUTE 'ROLLBACK'; END $$", "CALL commits()",
		// What changes where, how or as whom markers are written.
		"SET search_path TO other", "SET SESSION synchronous_commit = off", "RESET ALL", "DISCARD ALL", "SET ROLE pg_monitor", "SET TRANSACTION READ ONLY",
		"SET LOCAL search_path TO other", "SET LOCAL synchronous_commit = off", "SET LOCAL ROLE pg_monitor", "SET LOCAL session_replication_role = replica",
		"SELECT set_config('search_path', 'other', true)", "SELECT set_config('synchronous_commit', 'off', false)", "SELECT elsewhere()",
		"DO $$ BEGIN SET search_path TO other; END $$",
		"CREATE TEMP TABLE processed_events (LIKE public.processed_events INCLUDING ALL)",
		"ALTER TABLE processed_events RENAME TO gone",
		// What takes the connection over, or stays with it.
		"COPY effects FROM STDIN", "COPY effects TO STDOUT", "LISTEN somebody", "UNLISTEN *", "DEALLOCATE ALL", "PREPARE TRANSACTION 'x'",
	}
	for i, sql := range attempts {
		for _, how := range []string{"exec", "queue", "query"} {
			t.Run(how+"/"+sql, func(t *testing.T) {
				in := newInbox(t, inbox.Config{MaxAttempts: 2, Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
					if ev.Offset%10 != 2 {
						return effect("g")(ctx, tx, ev)
					}
					_ = effect("g")(ctx, tx, ev)
					switch how {
					case "exec":
						_, _ = tx.Exec(ctx, sql)
					case "query":
						_ = tx.Query(ctx, sql, nil, func(func(...any) error) error { return nil })
					default:
						tx.Queue(sql)
					}
					return nil
				}})
				events := ids(fmt.Sprintf("%d-%s", i, how), 5)
				began := time.Now()
				res, err := in.Apply(t.Context(), b.pool, batch(int64(1000+10*i), events...))
				if class := inbox.Classify(err); err == nil || class != inbox.ClassBug && class != inbox.ClassConfig {
					t.Errorf("%v, want a refusal that no retry mends", err)
				}
				if len(res.Handled) != 2 {
					t.Errorf("%d events before it applied, want 2", len(res.Handled))
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it took %s to see", took)
				}
				b.want("its effect", 0, "SELECT count(*) FROM effects WHERE event_id = $1", events[2])
				// The pool's connections are as they were.
				wantTally(t, b.apply(newInbox(t, inbox.Config{}), batch(int64(1000+10*i), events...)), 3, 2, 0)
				b.audit()
			})
		}
	}
	b.want("markers elsewhere", 0, "SELECT count(*) FROM other.processed_events")
	b.want("dead letters", 0, "SELECT count(*) FROM dead_letters")
}

// Options among the arguments would reach the connection itself.
func TestOptionsAmongTheArguments(t *testing.T) {
	b := setup(t)
	for _, arg := range []any{pgx.QueryExecModeSimpleProtocol, rewriter{}, pgx.QueryResultFormats{0}} {
		in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, _ inbox.Event) error {
			_, err := tx.Exec(ctx, "SELECT 1", arg)
			return err
		}})
		if _, err := in.Apply(t.Context(), b.pool, batch(0, "a")); !errors.Is(err, inbox.ErrTransactionControl) {
			t.Errorf("%T: %v, want a refusal", arg, err)
		}
	}
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects (consumer_group, event_id) VALUES ('g', @id)", pgx.NamedArgs{"id": ev.ID})
		return err
	}})
	wantTally(t, b.apply(in, batch(0, "named")), 1, 0, 0)
	b.audit()
}

// rewriter is given the connection by the driver.
type rewriter struct{}

func (rewriter) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, args []any) (string, []any, error) {
	return "COMMIT", nil, nil
}

// Whatever was left on a session (by another client of a pooler, or before this
// version ran), markers go where they belong and are durable.
func TestTransactionsBeginFromKnownSettings(t *testing.T) {
	b := setup(t)
	b.exec("CREATE SCHEMA other; CREATE TABLE other.processed_events (LIKE processed_events INCLUDING ALL)")
	pc := b.pool.Config()
	pc.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var durable string
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if err := tx.QueryRow(ctx, "SHOW synchronous_commit", nil, &durable); err != nil {
			return err
		}
		return effect("g")(ctx, tx, ev)
	}})
	for i, leak := range []string{"SELECT 1", "SET search_path TO other", "SET synchronous_commit = off", "SET search_path TO ''"} {
		if _, err := pool.Exec(t.Context(), leak); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Apply(t.Context(), pool, batch(int64(i), fmt.Sprint("e", i))); err != nil {
			t.Errorf("after %s: %v", leak, err)
		}
		if durable != "on" {
			t.Errorf("after %s: synchronous_commit = %s", leak, durable)
		}
	}
	b.want("markers", 4, "SELECT count(*) FROM public.processed_events")
	b.audit()
}

// A handler that does not return within its time: its event is named, what came
// before it is applied, nothing of it is, and a handler that ignores its
// context is left behind without being able to commit anything.
func TestHandlerThatHangs(t *testing.T) {
	for name, hang := range map[string]func(ctx context.Context, tx *inbox.Tx, release chan struct{}) error{
		"heeds its context": func(ctx context.Context, _ *inbox.Tx, _ chan struct{}) error { <-ctx.Done(); return ctx.Err() },
		"ignores it": func(_ context.Context, tx *inbox.Tx, release chan struct{}) error {
			<-release
			_, err := tx.Exec(context.Background(), "INSERT INTO effects (consumer_group, event_id) VALUES ('g', 'late')")
			return err
		},
		"in a statement": func(ctx context.Context, tx *inbox.Tx, _ chan struct{}) error {
			_, err := tx.Exec(context.Background(), "SELECT pg_sleep(60)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			release, returned := make(chan struct{}), make(chan error, 1)
			var running inbox.Running
			var seen atomic.Int64
			in := newInbox(t, inbox.Config{HandlerTimeout: 300 * time.Millisecond, Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
				if ev.ID != "e-0003" {
					return effect("g")(ctx, tx, ev)
				}
				err := hang(ctx, tx, release)
				seen.Store(int64(running.Oldest()))
				returned <- err
				return err
			}})
			x := batch(0, ids("e", 6)...)
			x.Running = &running
			res, err := in.Apply(t.Context(), b.pool, x)
			var ee *inbox.EventError
			if !errors.Is(err, inbox.ErrHandlerTimeout) || !errors.As(err, &ee) || ee.Event.ID != "e-0003" || inbox.Classify(err) != inbox.ClassConfig {
				t.Errorf("%v, want the event and that its handler did not return", err)
			}
			if res.Next != 3 || len(res.Handled) != 3 {
				t.Errorf("next %d, %d handled, want 3 and 3", res.Next, len(res.Handled))
			}
			if name == "ignores it" && running.Left() != 1 {
				t.Errorf("%d handlers left behind, want 1", running.Left())
			}
			close(release)
			if err := <-returned; err == nil {
				t.Error("a handler that was left behind could still write")
			}
			if d := time.Duration(seen.Load()); d < 250*time.Millisecond {
				t.Errorf("the oldest handler was seen to run for %s", d)
			}
			b.want("effects of it", 0, "SELECT count(*) FROM effects WHERE event_id IN ('late', 'e-0003')")
			for deadline := time.Now().Add(20 * time.Second); running.Left() > 0 || running.Oldest() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("it is still counted as running after it has returned")
				}
			}
			wantTally(t, b.apply(newInbox(t, inbox.Config{}), batch(0, ids("e", 6)...)), 3, 3, 0)
			b.audit()
		})
	}
}

// A statement run while the rows of a Query are being read would wait for
// itself; queueing one works.
func TestStatementWithinAQuery(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		return tx.Query(ctx, "SELECT generate_series(1, 3)", nil, func(scan func(...any) error) error {
			var n int
			if err := scan(&n); err != nil {
				return err
			}
			if ev.ID == "bad" {
				_, err := tx.Exec(ctx, "SELECT 1")
				return err
			}
			if n == 2 {
				tx.Queue("INSERT INTO effects (consumer_group, event_id) VALUES ('g', $1)", ev.ID)
			}
			return nil
		})
	}})
	wantTally(t, b.apply(in, batch(0, "good")), 1, 0, 0)
	if _, err := in.Apply(t.Context(), b.pool, batch(1, "bad")); !errors.Is(err, inbox.ErrTxBusy) {
		t.Errorf("%v, want ErrTxBusy", err)
	}
	b.audit()
}

// A panic, or the end of the handler's goroutine, is its event's error: it is
// tried again, then it alone is put aside, with its stack in the log.
func TestPanicIsTheEventsError(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":    func() { panic("no such account") },
		"nil map":  func() { var m map[string]int; m["a"]++ }, //lint:ignore SA5000 that is the case
		"goexit":   func() { goexit() },
		"nil func": func() { var f func(); f() },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var log strings.Builder
			in := newInbox(t, inbox.Config{MaxAttempts: 3, Log: textLog(&log), Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
				if ev.ID == "e-0002" {
					end()
				}
				return effect("g")(ctx, tx, ev)
			}})
			res := b.apply(in, batch(0, ids("e", 5)...))
			wantTally(t, res, 4, 0, 1)
			if h := res.Handled[2]; h.Reason != inbox.ReasonPanic || h.Attempts != 3 {
				t.Errorf("%+v, want a panic after 3 attempts", h)
			}
			if text := log.String(); strings.Count(text, "the handler panicked") != 1 || !strings.Contains(text, "event_id=e-0002") || name != "goexit" && !strings.Contains(text, "rules_test.go") {
				t.Errorf("the log does not show the event and the stack, once: %s", text)
			}
			b.audit()
		})
	}
}

// Poison costs its own event alone: what the handler refuses is taken out
// without a rollback, what the database refuses costs its neighbours once a
// first one has been met.
func TestPoisonWithoutRollback(t *testing.T) {
	b := setup(t)
	calls := 0
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		calls++
		if strings.HasSuffix(ev.ID, "7") && strings.HasPrefix(ev.ID, "h") {
			_ = effect("g")(ctx, tx, ev) // is taken back with it
			return inbox.Invalid(errors.New("not one of ours"))
		}
		return effect("g")(ctx, tx, ev)
	}})
	wantTally(t, b.apply(in, batch(0, ids("h", 100)...)), 90, 0, 10)
	if calls != 100 {
		t.Errorf("%d calls for 100 events of which the handler refused 10, want one each", calls)
	}
	// Sent again once their cause is mended, they are no duplicates.
	b.want("markers of what was refused", 0, "SELECT count(*) FROM processed_events WHERE event_id LIKE '%7'")
	poison := func(x inbox.Batch, every int) inbox.Batch {
		for i := range x.Events {
			if i%every == every-1 {
				x.Events[i].Value = make([]byte, 2000)
			}
		}
		return x
	}
	wantTally(t, b.apply(in, poison(batch(100, ids("first", 60)...), 60)), 59, 0, 1)
	calls = 0
	res := b.apply(in, poison(batch(200, ids("then", 200)...), 9))
	wantTally(t, res, 178, 0, 22)
	if calls != 200 || res.Retries != 0 {
		t.Errorf("%d calls, %d retries for 200 events of which the database refused 22, want one each and none", calls, res.Retries)
	}
	// The repetition of an event that turned out bad is no duplicate of it.
	twice := batch(500, "p", "q", "p", "r")
	twice.Events[0].Value, twice.Events[2].Value = make([]byte, 2000), make([]byte, 2000)
	wantTally(t, b.apply(in, twice), 2, 0, 2)
	again := batch(510, "h-0017", "h-0018", "h-0017")
	again.Events[0].ID, again.Events[2].ID = "h-17", "h-17"
	again.Events[2].Value = again.Events[0].Value
	wantTally(t, b.apply(in, again), 0, 1, 2)
	b.want("dead letters", 10+1+22+2+2, "SELECT count(*) FROM dead_letters")
	b.audit()
}

// An event that the database refuses leaves nothing behind, also what its
// handler ran before.
func TestPoisonAfterAStatementThatRan(t *testing.T) {
	b := setup(t)
	in := newInbox(t, inbox.Config{Handler: func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		if _, err := tx.Exec(ctx, "INSERT INTO effects (consumer_group, event_id, n) VALUES ('g', $1, 1)", ev.ID); err != nil {
			return err
		}
		if strings.HasSuffix(ev.ID, "7") {
			tx.Queue("INSERT INTO effects (consumer_group, event_id, n) VALUES ('g', $1, 5000)", ev.ID)
		}
		return nil
	}})
	for k := range 3 {
		wantTally(t, b.apply(in, batch(int64(100*k), ids(fmt.Sprint(k), 20)...)), 18, 0, 2)
	}
	b.audit()
}
