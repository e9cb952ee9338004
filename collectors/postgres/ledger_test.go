package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const runbookDDL = `CREATE TABLE processed_events (
    consumer_group text        NOT NULL,
    event_id       text        NOT NULL,
    topic          text        NOT NULL,
    partition      int         NOT NULL,
    "offset"       bigint      NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX processed_events_processed_at ON processed_events (processed_at)`

// bench is a store on a database of its own, and a connection to change it.
type bench struct {
	*testing.T
	dsn   string
	conn  *pgx.Conn
	store *Store
	ids   int
}

func dial(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func newBench(t *testing.T, cfg Config, ddl ...string) *bench {
	t.Helper()
	if cfg.DSN == "" {
		cfg.Config = dbconn.To(testenv.Postgres(t))
	}
	b := &bench{T: t, dsn: cfg.DSN.Reveal(), conn: dial(t, cfg.DSN.Reveal())}
	for _, sql := range ddl {
		b.exec(sql)
	}
	b.store = newStore(t, cfg)
	return b
}

func newStore(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := New(cfg, testLog(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	run(b.T, b.conn, sql, args...)
}

func run(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// insert writes n markers at the given age before now().
func (b *bench) insert(group, topic string, n int, age time.Duration) {
	b.Helper()
	b.exec(`INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset", processed_at)
	  SELECT $1, 'e' || ($2 + i), $3, i % 3, $2 + i, now() - $5::interval FROM generate_series(1, $4) i`,
		group, b.ids, topic, n, pgtype.Interval{Microseconds: age.Microseconds(), Valid: true})
	b.ids += n
}

func pollOnce(t testing.TB, s *Store) (*Markers, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	snap, err := s.ledger.Poll(ctx)
	if err != nil {
		return nil, err
	}
	return snap.(*Markers), nil
}

// poll polls. A machine that is busy with other things may let a statement run
// into its bound; the next poll then goes on.
func (b *bench) poll() *Markers {
	b.Helper()
	for n := 0; ; n++ {
		m, err := pollOnce(b.T, b.store)
		if err == nil {
			return m
		}
		if poll.Kind(err) != "timeout" || n == 5 {
			b.Fatal(err)
		}
		b.Log(err)
	}
}

// pollExact polls and compares with SELECT in the poll's own snapshot.
func (b *bench) pollExact() *Markers {
	b.Helper()
	for range 10 {
		var want []string
		compared := false
		b.store.ledger.observer = func(ctx context.Context, conn *pgx.Conn) {
			want, compared = counts(b.T, ctx, conn, b.store.ledger.table), true
		}
		m := b.poll()
		b.store.ledger.observer = nil
		if !compared || !m.Ready || slices.Contains(m.Inexact, ReasonCatchingUp) {
			continue // for want of time
		}
		if b.busy(m) && !slices.Equal(describe(m), want) {
			continue // what is suspect is counted when there is time
		}
		if got := describe(m); !slices.Equal(got, want) {
			b.Fatalf("ledger, inexact because of %v\n  %v\nSELECT\n  %v", m.Inexact, got, want)
		}
		return m
	}
	b.Fatal("not ready after ten polls")
	return nil
}

// busy says that the ledger is counting again what it doubts.
func (b *bench) busy(m *Markers) bool {
	return slices.ContainsFunc(m.Inexact, func(r Reason) bool {
		return r == ReasonUnexplained || r == ReasonStructure || r == ReasonFailover || r == ReasonStatistics
	})
}

// observe is an observer that asks PostgreSQL what the ledger should say.
func observe(t testing.TB, l *ledger, want *[]string) func(context.Context, *pgx.Conn) {
	return func(ctx context.Context, conn *pgx.Conn) { *want = counts(t, ctx, conn, l.table) }
}

// counts asks PostgreSQL what the ledger should say.
func counts(t testing.TB, ctx context.Context, conn *pgx.Conn, table *Table) []string {
	t.Helper()
	c := newCounter(table)
	if _, err := conn.Exec(ctx, "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL enable_seqscan = on"); err != nil {
		t.Error(err)
	}
	group, topic := "NULL", "NULL"
	if table.Has.Group != "" {
		group = quote(table.Has.Group) + "::text"
	}
	if table.Has.Topic != "" {
		topic = quote(table.Has.Topic) + "::text"
	}
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT coalesce(%s, ''), coalesce(%s, ''), count(*), %s, %s FROM %s GROUP BY 1, 2",
		group, topic, c.raw("min("+c.at+")"), c.raw("max("+c.at+")"), c.from))
	if err != nil {
		t.Error(err)
		return nil
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var g, topic string
		var n int64
		var lo, hi pgtype.Timestamptz
		err := row.Scan(&g, &topic, &n, &lo, &hi)
		return line(g, topic, n, cells.Time(micros(lo)), cells.Time(micros(hi))), err
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(out)
	return out
}

func describe(m *Markers) []string {
	var out []string
	for _, s := range m.Series {
		if s.Rows > 0 {
			out = append(out, line(s.Group, s.Topic, s.Rows, s.Oldest, s.Newest))
		}
	}
	slices.Sort(out)
	return out
}

func line(group, topic string, n int64, oldest, newest time.Time) string {
	return fmt.Sprintf("%s/%s %d %s..%s", group, topic, n, oldest.UTC().Format("0102T150405.000000"), newest.UTC().Format("0102T150405.000000"))
}

func (m *Markers) find(group, topic string) Series {
	for _, s := range m.Series {
		if s.Group == group && s.Topic == topic {
			return s
		}
	}
	return Series{}
}

func near(t testing.TB, what string, got, want, within time.Duration) {
	t.Helper()
	if d := got - want; cmp.Compare(max(d, -d), within) > 0 {
		t.Errorf("%s = %s, want %s ± %s", what, got, want, within)
	}
}

func TestFirstPollCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("ledger-writer", "payments", 1000, 8*24*time.Hour)
	b.insert("ledger-writer", "payments", 500, time.Hour)
	b.insert("ledger-writer", "refunds", 7, 0)
	b.insert("mailer", "payments", 20, 3*time.Hour)
	m := b.pollExact()
	s := m.find("ledger-writer", "payments")
	if s.Rows != 1500 || s.Inserted != 0 || s.Pruned != 0 {
		t.Errorf("%+v, want 1500 rows and nothing come or gone", s)
	}
	near(t, "oldest age", m.Age(s.Oldest, m.ReadAt), 8*24*time.Hour, 5*time.Second)
	near(t, "newest age", m.Age(s.Newest, m.ReadAt), time.Hour, 5*time.Second)
}

func TestWhatComesAndWhatIsPruned(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	for h := 0; h < 10*24; h += 6 {
		b.insert("g", "t", 10, time.Duration(h)*time.Hour)
	}
	b.pollExact()
	b.insert("g", "t", 5, 0)
	if s := b.pollExact().find("g", "t"); s.Inserted != 5 || s.Pruning {
		t.Errorf("%+v, want 5 inserted and no pruning", s)
	}
	b.exec("DELETE FROM processed_events WHERE processed_at < now() - interval '8 days'")
	m := b.pollExact()
	s := m.find("g", "t")
	if s.Pruned != 80 || !s.Pruning {
		t.Fatalf("%+v, want 80 pruned", s)
	}
	near(t, "observed retention", s.ObservedRetention, 8*24*time.Hour, 10*time.Second)
	b.exec("TRUNCATE processed_events")
	s = b.pollExact().find("g", "t")
	if s.Rows != 0 || !s.Oldest.IsZero() {
		t.Errorf("after TRUNCATE: %+v", s)
	}
	near(t, "observed retention after TRUNCATE", s.ObservedRetention, 8*24*time.Hour, 10*time.Second)
}
