package inbox_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/reference-consumer/inbox"
)

// foldTables are all sorts of tables that handlers write to.
const foldTables = `
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE entries (id bigint GENERATED ALWAYS AS IDENTITY, event_id text, account varchar(8) NOT NULL, amount numeric(8,2) CHECK (amount <> 0), at timestamptz, note jsonb, raw bytea, mood mood, flag bool DEFAULT true);
CREATE TABLE balances (account text PRIMARY KEY, balance bigint NOT NULL CHECK (balance > -500), n int NOT NULL);
CREATE TABLE once (k int PRIMARY KEY, event_id text);
CREATE TABLE parents (id text PRIMARY KEY);
CREATE TABLE children (id bigint GENERATED ALWAYS AS IDENTITY, parent text REFERENCES parents (id));
CREATE TABLE tree (id text PRIMARY KEY, parent text REFERENCES tree (id));
CREATE TABLE watched (event_id text);
CREATE TABLE seen (id bigint GENERATED ALWAYS AS IDENTITY, event_id text, entries bigint);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen (event_id, entries) VALUES (NEW.event_id, (SELECT count(*) FROM entries)); RETURN NULL; END';
CREATE TRIGGER look AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION look();
CREATE TABLE pairs (a text, b text);
CREATE TABLE folded_names (name text PRIMARY KEY, n int)`

var foldResults = []string{
	"SELECT event_id, account, amount, at, note, raw, mood, flag FROM entries ORDER BY id", "SELECT * FROM balances ORDER BY account", "SELECT * FROM once ORDER BY k",
	"SELECT * FROM parents ORDER BY id", "SELECT parent FROM children ORDER BY id", "SELECT * FROM tree ORDER BY id", "SELECT * FROM watched ORDER BY event_id", "SELECT event_id, entries FROM seen ORDER BY id",
	"SELECT * FROM folded_names ORDER BY name", "SELECT event_id FROM processed_events ORDER BY event_id", "SELECT event_id, reason FROM dead_letters ORDER BY event_id",
}

// scripted queues what the seed and the event's id say, the same whenever it is
// asked: plain rows of many types, upserts of few keys, first-come rows, parents
// and children, rows that a trigger watches, and what is no insert; some of it
// in a handler that also reads. About one event in forty is refused.
func scripted(seed uint64) inbox.Handler {
	return func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
		h := seed
		for _, c := range ev.ID {
			h = h*31 + uint64(c)
		}
		r := rand.New(rand.NewPCG(seed, h))
		account := fmt.Sprint("a", r.IntN(12))
		style := rand.New(rand.NewPCG(seed, 1)).IntN(5) // of the whole batch
		for range 1 + r.IntN(3) {
			kind := r.IntN(11)
			if style < 3 && r.IntN(8) != 0 { // mostly a few sorts, as in life
				kind = (style*2 + r.IntN(2)) % 6
			}
			switch kind {
			case 0, 1:
				amount := any(float64(r.IntN(900)) + 0.25)
				var at any = time.Unix(int64(r.IntN(1e6)), 0)
				var note any = fmt.Sprintf(`{"n": %d}`, r.IntN(9))
				var raw any = []byte{byte(r.IntN(256)), 0}
				name := account
				switch r.IntN(40) {
				case 0:
					amount = 0.0 // CHECK
				case 1:
					name = "a name too long"
				case 2:
					note = "{no json"
				case 3:
					at, note, raw = nil, nil, nil
				case 4:
					name = "nul\x00"
				case 5:
					amount = "12.5" // for the server to read
				}
				tx.Queue("INSERT INTO entries (event_id, account, amount, at, note, raw, mood) VALUES ($1, $2, $3, $4, $5, $6, $7)", ev.ID, name, amount, at, note, raw, []string{"glad", "sad"}[r.IntN(2)])
			case 2, 3:
				tx.Queue("INSERT INTO balances AS b (account, balance, n) VALUES ($1, $2, 1)\nON CONFLICT (account) DO UPDATE SET balance = b.balance + excluded.balance, n = b.n + 1", account, int64(r.IntN(200)-100))
			case 4:
				tx.Queue("INSERT INTO once (k, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING", r.IntN(30), ev.ID)
			case 5:
				tx.Queue("INSERT INTO parents (id) VALUES ($1) ON CONFLICT (id) DO NOTHING", account)
				parent := account
				if r.IntN(10) == 0 {
					parent = fmt.Sprint("a", r.IntN(14)) // perhaps not there, or not yet
				}
				tx.Queue("INSERT INTO children (parent) VALUES ($1)", parent)
			case 6:
				tx.Queue("INSERT INTO tree (id, parent) VALUES ($1, $2) ON CONFLICT DO NOTHING", fmt.Sprint(r.IntN(20)), fmt.Sprint(r.IntN(20)))
			case 7:
				tx.Queue("INSERT INTO watched (event_id) VALUES ($1)", ev.ID)
			case 8:
				tx.Queue("UPDATE balances SET balance = balance + 1 WHERE account = $1", account)
			case 9:
				if _, err := tx.Exec(ctx, "DELETE FROM once WHERE k = $1", r.IntN(30)); err != nil {
					return err
				}
			case 10:
				tx.Queue("INSERT INTO folded_names (name, n) VALUES (lower($1), $2) ON CONFLICT (name) DO UPDATE SET n = folded_names.n + 1", account, r.IntN(5))
			}
		}
		return nil
	}
}

var (
	foldSeed  = flag.Uint64("fold.seed", 0, "a seed for TestFoldedIsTheSame; 0: random ones")
	foldSeeds = flag.Int("fold.seeds", 25, "how many random seeds TestFoldedIsTheSame takes")
)

// Whatever handlers queue, folded and as it was queued leave the same tables,
// markers and dead letters behind.
func TestFoldedIsTheSame(t *testing.T) {
	seeds := []uint64{*foldSeed}
	if *foldSeed == 0 {
		seeds = seeds[:0]
		for range *foldSeeds {
			seeds = append(seeds, rand.Uint64())
		}
	}
	var mu sync.Mutex
	folded := 0
	t.Run("seeds", func(t *testing.T) {
		for _, seed := range seeds {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				b := setup(t)
				b.exec(foldTables)
				var want []string
				for _, plain := range []bool{true, false} {
					counter := &countStatements{}
					pool := tracedPool(t, b.dsn, counter)
					in := newInbox(t, inbox.Config{NoFold: plain, Handler: scripted(seed)})
					for k := range 3 {
						if _, err := in.Apply(t.Context(), pool, batch(int64(100*k), ids(fmt.Sprintf("%d-%d", seed%7, k), 60)...)); err != nil {
							t.Fatal(err)
						}
					}
					var got []string
					for _, sql := range foldResults {
						got = append(got, dump(t, b.pool, sql))
					}
					b.exec("TRUNCATE entries, balances, once, parents, children, tree, watched, seen, folded_names, processed_events, dead_letters, consumer_progress")
					if plain {
						want = got
						continue
					}
					mu.Lock()
					folded += counter.folded()
					mu.Unlock()
					for i := range want {
						if want[i] != got[i] {
							t.Errorf("%s\n- as queued, + folded:\n%s", foldResults[i], differences(want[i], got[i]))
						}
					}
				}
			})
		}
	})
	if *foldSeed == 0 && !t.Failed() && folded < 100 {
		t.Errorf("%d folded statements in all: the comparison says nothing", folded)
	}
}

// differences between two lists of rows.
func differences(want, got string) string {
	var out []string
	for sign, pair := range map[string][2]string{"- ": {want, got}, "+ ": {got, want}} {
		other := strings.Split(pair[1], "\n")
		for _, row := range strings.Split(pair[0], "\n") {
			if !slices.Contains(other, row) {
				out = append(out, sign+row)
			}
		}
	}
	if out == nil {
		return "the order:\n" + want + "\n" + got
	}
	return strings.Join(out, "\n")
}

func dump(t *testing.T, pool *pgxpool.Pool, sql string) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out strings.Builder
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, values...)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return out.String()
}

// countStatements counts what is sent, by its text.
type countStatements struct {
	mu  sync.Mutex
	sql []string
}

func (c *countStatements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *countStatements) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sql = append(c.sql, q.SQL)
}

func (c *countStatements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (c *countStatements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (c *countStatements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *countStatements) folded() int { return c.count("SELECT f.p1") }

func (c *countStatements) count(part string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, sql := range c.sql {
		if strings.Contains(sql, part) && !strings.Contains(sql, "processed_events") {
			n++
		}
	}
	return n
}

func tracedPool(t *testing.T, dsn string, tracer pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	pc, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	pc.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// What is folded and what is not, and how many statements a batch then takes.
func TestWhatIsFolded(t *testing.T) {
	for _, c := range []struct {
		name, sql  string
		args       func(ev inbox.Event, i int) []any
		statements int // for 40 events
	}{
		{"rows", "INSERT INTO entries (event_id, account) VALUES ($1, $2)", func(ev inbox.Event, i int) []any { return []any{ev.ID, "a"} }, 1},
		{"constants and quotes", `insert into "entries" ("event_id", ACCOUNT, amount, at) values ($1, 'x', 3.5, now());`, func(ev inbox.Event, i int) []any { return []any{ev.ID} }, 1},
		{"a schema", "INSERT INTO public.entries (account, event_id) VALUES ($2, $1)", func(ev inbox.Event, i int) []any { return []any{ev.ID, "a"} }, 1},
		{"an enumeration", "INSERT INTO entries (account, mood) VALUES ('a', $1)", func(ev inbox.Event, i int) []any { return []any{"sad"} }, 1},
		{"first come", "INSERT INTO once (k, event_id) VALUES ($1, $2) ON CONFLICT (k) DO NOTHING", func(ev inbox.Event, i int) []any { return []any{i % 3, ev.ID} }, 1},
		{"upserts of 10 rows, 4 times each", "INSERT INTO balances AS b (account, balance, n) VALUES ($1, 1, 1) ON CONFLICT (account) DO UPDATE SET n = b.n + excluded.n", func(ev inbox.Event, i int) []any { return []any{fmt.Sprint(i % 10)} }, 4},
		{"upserts of one row", "INSERT INTO balances AS b (account, balance, n) VALUES ($1, 1, 1) ON CONFLICT (account) DO UPDATE SET n = b.n + excluded.n", func(ev inbox.Event, i int) []any { return []any{"a"} }, 40},
		{"RETURNING", "INSERT INTO entries (account) VALUES ($1) RETURNING id", func(ev inbox.Event, i int) []any { return []any{"a"} }, 40},
		{"a function", "INSERT INTO entries (account) VALUES (lower($1))", func(ev inbox.Event, i int) []any { return []any{"a"} }, 40},
		{"a parameter twice", "INSERT INTO pairs (a, b) VALUES ($1, $1)", func(ev inbox.Event, i int) []any { return []any{"a"} }, 40},
		{"a look at other rows", "INSERT INTO balances AS b (account, balance, n) VALUES ($1, 1, 1) ON CONFLICT (account) DO UPDATE SET n = (SELECT count(*) FROM balances)", func(ev inbox.Event, i int) []any { return []any{fmt.Sprint(i)} }, 40},
		{"a trigger", "INSERT INTO watched (event_id) VALUES ($1)", func(ev inbox.Event, i int) []any { return []any{ev.ID} }, 40},
		{"a foreign key to itself", "INSERT INTO tree (id, parent) VALUES ($1, $2)", func(ev inbox.Event, i int) []any { return []any{ev.ID, nil} }, 40},
		{"no insert", "UPDATE balances SET n = n + 1 WHERE account = $1", func(ev inbox.Event, i int) []any { return []any{"a"} }, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.exec(foldTables)
			counter := &countStatements{}
			pool := tracedPool(t, b.dsn, counter)
			i := 0
			in := newInbox(t, inbox.Config{Handler: func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
				tx.Queue(c.sql, c.args(ev, i)...)
				i++
				return nil
			}})
			res, err := in.Apply(t.Context(), pool, batch(0, ids("e", 40)...))
			if err != nil {
				t.Fatal(err)
			}
			wantTally(t, res, 40, 0, 0)
			table := strings.Fields(c.sql)[2]
			if strings.HasPrefix(c.sql, "UPDATE") {
				table = strings.Fields(c.sql)[1]
			}
			if n := counter.count(table); n != c.statements {
				t.Errorf("%d statements for 40 events, want %d: %q", n, c.statements, slices.Compact(counter.sql))
			}
		})
	}
}

// A fold that fails gives the event that is to blame, and no other: named by
// the server's message, or found by sending the events' own statements.
func TestPoisonInAFold(t *testing.T) {
	for _, c := range []struct {
		name  string
		value func(i int) any
	}{
		{"named by the message", func(i int) any { return 5000 + i }},
		{"not named", func(i int) any { return "no number" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			counter := &countStatements{}
			pool := tracedPool(t, b.dsn, counter)
			bad := func(i int64) bool { return i%70 == 33 }
			in := newInbox(t, inbox.Config{Handler: func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
				var n any = fmt.Sprint(ev.Offset % 900)
				if bad(ev.Offset) {
					n = fmt.Sprint(c.value(int(ev.Offset)))
				}
				tx.Queue("INSERT INTO effects (consumer_group, event_id, n) VALUES ('g', $1, $2)", ev.ID, n)
				return nil
			}})
			for k := range int64(4) {
				res, err := in.Apply(t.Context(), pool, batch(200*k, ids(fmt.Sprint(k), 200)...))
				if err != nil {
					t.Fatal(err)
				}
				for i, h := range res.Handled {
					if (h.Outcome == inbox.DeadLettered) != bad(200*k+int64(i)) {
						t.Errorf("offset %d: %s", 200*k+int64(i), h.Outcome)
					}
				}
			}
			b.audit()
		})
	}
}

// An expression that meets a row twice although its keys differ (here by case)
// is sent as it was queued, this time and from then on.
func TestFoldThatNeverFits(t *testing.T) {
	b := setup(t)
	b.exec(`CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	b.exec(`CREATE TABLE names (name text COLLATE nocase PRIMARY KEY, n int)`)
	counter := &countStatements{}
	pool := tracedPool(t, b.dsn, counter)
	in := newInbox(t, inbox.Config{Handler: func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
		name := []string{"ann", "Ann", "ANN", "bob", "Bob", "eve"}[ev.Offset%6]
		tx.Queue("INSERT INTO names AS x (name, n) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = x.n + 1", name)
		return nil
	}})
	for k := range int64(3) {
		res, err := in.Apply(t.Context(), pool, batch(60*k, ids(fmt.Sprint(k), 60)...))
		if err != nil {
			t.Fatal(err)
		}
		wantTally(t, res, 60, 0, 0)
	}
	b.want("counted", 180, "SELECT sum(n) FROM names")
	if n := counter.folded(); n != 1 {
		t.Errorf("%d folds were sent, want the one that failed", n)
	}
}
