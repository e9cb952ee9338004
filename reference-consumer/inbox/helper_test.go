package inbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/schema"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// bundle is a test's own database, with a table for effects.
type bundle struct {
	t    *testing.T
	dsn  string
	pool *pgxpool.Pool
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	return open(t, testenv.Postgres(t), schema.Options{})
}

func open(t *testing.T, dsn string, o schema.Options) *bundle {
	t.Helper()
	if err := schema.Migrate(t.Context(), dsn, o); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := &bundle{t, dsn, pool}
	b.exec(`CREATE TABLE effects (consumer_group text NOT NULL, event_id text NOT NULL, n int CHECK (n < 1000), txid xid8 DEFAULT pg_current_xact_id())`)
	return b
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	if err := b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bundle) want(what string, n int, sql string, args ...any) {
	b.t.Helper()
	if got := b.count(sql, args...); got != n {
		b.t.Errorf("%s: %d, want %d", what, got, n)
	}
}

// audit checks what must hold whatever happened: each marker has its effect
// and each effect its marker, from one transaction.
func (b *bundle) audit() {
	b.t.Helper()
	b.want("markers without effect, or effects without marker, or from two transactions", 0, `
SELECT count(*) FROM processed_events m FULL JOIN effects e USING (consumer_group, event_id)
WHERE m.txid IS DISTINCT FROM e.txid`)
	b.want("effects more than markers", b.count("SELECT count(*) FROM processed_events"), "SELECT count(*) FROM effects")
}

// effect writes one row, pipelined.
func effect(group string) inbox.Handler {
	return func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
		tx.Queue("INSERT INTO effects (consumer_group, event_id, n) VALUES ($1, $2, $3)", group, ev.ID, len(ev.Value))
		return nil
	}
}

func newInbox(t *testing.T, cfg inbox.Config) *inbox.Inbox {
	t.Helper()
	if cfg.Group == "" {
		cfg.Group = "g"
	}
	if cfg.Handler == nil {
		cfg.Handler = effect(cfg.Group)
	}
	if cfg.Sleep == nil {
		cfg.Sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	}
	in, err := inbox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// batch of events with the given ids, at offsets from on.
func batch(from int64, ids ...string) inbox.Batch {
	b := inbox.Batch{Topic: "payments", TopicID: uuid.UUID{15: 1}, Partition: 3, Next: from + int64(len(ids))}
	for i, id := range ids {
		b.Events = append(b.Events, inbox.Event{ID: id, Topic: b.Topic, Partition: b.Partition, Offset: from + int64(i), Time: time.Now(), Value: []byte(id)})
	}
	return b
}

func ids(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return out
}

func (b *bundle) apply(in *inbox.Inbox, batch inbox.Batch) inbox.Result {
	b.t.Helper()
	res, err := in.Apply(b.t.Context(), b.pool, batch)
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

// tally counts outcomes.
func tally(res inbox.Result) (processed, duplicate, dead int) {
	for _, h := range res.Handled {
		switch h.Outcome {
		case inbox.Processed:
			processed++
		case inbox.Duplicate:
			duplicate++
		default:
			dead++
		}
	}
	return
}

func wantTally(t *testing.T, res inbox.Result, processed, duplicate, dead int) {
	t.Helper()
	p, d, x := tally(res)
	if p != processed || d != duplicate || x != dead {
		t.Errorf("processed, duplicate, dead = %d, %d, %d, want %d, %d, %d", p, d, x, processed, duplicate, dead)
	}
}

// goexit ends the goroutine that calls it, as a test's FailNow does.
func goexit() { runtime.Goexit() }

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
