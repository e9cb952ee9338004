package postgres

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/postgres/cells"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// page is what a scrape of one snapshot yields: name{labels} → value.
func page(t testing.TB, collect func(ch chan<- prometheus.Metric)) map[string]float64 {
	t.Helper()
	ch := make(chan prometheus.Metric)
	go func() { defer close(ch); collect(ch) }()
	out := map[string]float64{}
	for m := range ch {
		var d dto.Metric
		if err := m.Write(&d); err != nil {
			t.Fatal(err)
		}
		name := m.Desc().String()
		name = name[strings.Index(name, `fqName: "`)+9:]
		name = name[:strings.Index(name, `"`)]
		for _, l := range d.Label {
			name += " " + l.GetName() + "=" + l.GetValue()
		}
		if _, twice := out[name]; twice {
			t.Errorf("%s twice on the page", name)
		}
		out[name] = d.GetGauge().GetValue() + d.GetCounter().GetValue()
	}
	return out
}

func (b *bench) page(m poll.Snapshot, now time.Time) map[string]float64 {
	b.Helper()
	return page(b.T, func(ch chan<- prometheus.Metric) { m.Collect(now, ch) })
}

// role makes a login role without privileges and returns a DSN for it.
func (b *bench) role(grants ...string) string {
	b.Helper()
	name := fmt.Sprintf("plain_%d", time.Now().UnixNano())
	b.exec("CREATE ROLE " + name + " LOGIN")
	b.Cleanup(func() {
		b.exec("DROP OWNED BY " + name)
		b.exec("DROP ROLE " + name)
	})
	for _, g := range grants {
		b.exec(strings.ReplaceAll(g, "$ROLE", name))
	}
	u, err := url.Parse(b.dsn)
	if err != nil {
		b.Fatal(err)
	}
	u.User = url.User(name)
	return u.String()
}

// wantError polls and wants an error of a kind that holds all the words.
func wantError(t testing.TB, s *Store, kind string, words ...string) {
	t.Helper()
	_, err := pollOnce(t, s)
	if err == nil {
		t.Fatalf("no error, want %s", kind)
	}
	if poll.Kind(err) != kind {
		t.Errorf("kind %q, want %q: %v", poll.Kind(err), kind, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// An empty table, and an empty group, have the count 0 and no age.
func TestEmptyTableAndEmptyGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Database: "db", GroupRetention: map[string]time.Duration{"known": 8 * 24 * time.Hour}}, runbookDDL)
	m := b.pollExact()
	p := b.page(m, m.ReadAt)
	if n, ok := p["processed_events_row_count consumer_group=known database=db topic="]; !ok || n != 0 {
		t.Errorf("a known group of an empty table: %v %v, want 0", n, ok)
	}
	b.insert("g", "t", 3, time.Hour)
	b.pollExact()
	b.exec("DELETE FROM processed_events")
	m = b.pollExact()
	p = b.page(m, m.ReadAt)
	if n, ok := p["processed_events_row_count consumer_group=g database=db topic=t"]; !ok || n != 0 {
		t.Errorf("an emptied group: %v %v, want 0", n, ok)
	}
	for name := range p {
		if strings.Contains(name, "_age_seconds consumer_group=g") {
			t.Errorf("%s without markers", name)
		}
	}
}

// The last values are withheld three intervals after the query broke.
func TestWithheldAfterTheQueryBroke(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 3, time.Hour)
	s := newStore(t, Config{Database: "db", Config: dbconn.To(b.role("GRANT SELECT ON processed_events TO $ROLE", "GRANT pg_read_all_stats TO $ROLE"))})
	now := time.Now()
	p := poll.New(s.Markers(), poll.Options{ID: poll.ID{Subject: "markers"}, Interval: 15 * time.Second, Timeout: 10 * time.Second, Now: func() time.Time { return now }})
	if err := p.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec("REVOKE ALL ON processed_events FROM " + s.pool.Config().ConnConfig.User)
	now = now.Add(15 * time.Second)
	if err := p.Once(t.Context()); poll.Kind(err) != "denied" || !strings.Contains(err.Error(), "GRANT SELECT") {
		t.Errorf("%v, want denied with its remedy", err)
	}
	const name = "processed_events_row_count consumer_group=g database=db topic=t"
	if n := page(t, poll.Set{p}.Collect)[name]; n != 3 {
		t.Errorf("within three intervals: %v, want the last 3", n)
	}
	now = now.Add(31 * time.Second)
	if _, there := page(t, poll.Set{p}.Collect)[name]; there {
		t.Error("still served after three intervals")
	}
}

// A table that is created later is found without a restart.
func TestTableComesLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Table: "app.markers"})
	wantError(t, b.store, "missing", "app.markers", "postgres.table")
	b.exec("CREATE SCHEMA app")
	b.exec(strings.ReplaceAll(strings.ReplaceAll(runbookDDL, "TABLE processed_events", "TABLE app.markers"), "ON processed_events", "ON app.markers"))
	b.exec(`INSERT INTO app.markers VALUES ('g', 'e', 't', 0, 0)`)
	if s := b.pollExact().find("g", "t"); s.Rows != 1 {
		t.Errorf("%+v, want 1 row", s)
	}
	b.exec("DROP TABLE app.markers")
	wantError(t, b.store, "missing", "app.markers")
}

// No password is printed, whatever goes wrong.
func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{})
	run(t, dial(t, server.DSN("postgres")), "CREATE ROLE carol LOGIN PASSWORD 'right'")
	hba := filepath.Join(server.Dir, "data", "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dial(t, server.DSN("postgres")), "SELECT pg_reload_conf()")

	const secret = "hunter2secret"
	port := strconv.Itoa(server.Port)
	for name, dsn := range map[string]string{
		"wrong password, URL":        "postgres://carol:" + secret + "@127.0.0.1:" + port + "/postgres?sslmode=disable",
		"wrong password, pairs":      "host=127.0.0.1 port=" + port + " user=carol password=" + secret + " dbname=postgres sslmode=disable",
		"unreachable, URL":           "postgres://carol:" + secret + "@127.0.0.1:1/postgres?sslmode=disable",
		"unreachable, pairs":         "host=127.0.0.1 port=1 user=carol password='" + secret + "'",
		"malformed URL":              "postgres://carol:" + secret + "@:notaport:/x",
		"special characters":         "postgres://carol:" + secret + "#%zz@127.0.0.1/x",
		"malformed pairs":            "host=127.0.0.1 password='" + secret,
		"unknown sslmode":            "host=127.0.0.1 password=" + secret + " sslmode=perhaps",
		"certificate does not exist": "host=127.0.0.1 password=" + secret + " sslmode=verify-full sslrootcert=/no/such/file",
	} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
			s, err := New(Config{Config: dbconn.To(dsn)}, log, nil)
			if err == nil {
				t.Cleanup(s.Close)
				p := poll.New(s.Markers(), poll.Options{ID: poll.ID{Subject: "markers"}, Interval: time.Second, Timeout: 5 * time.Second, Log: log})
				err = p.Once(t.Context())
			}
			if err == nil {
				t.Fatal("no error")
			}
			if all := err.Error() + fmt.Sprintf("%+v", err) + logged.String(); strings.Contains(all, secret) {
				t.Errorf("the password is printed: %s", all)
			}
			if !strings.Contains(err.Error(), "postgres.dsn") {
				t.Errorf("%q does not name postgres.dsn", err)
			}
		})
	}
}

// A restart of the server costs one poll and no connection.
func TestReconnectsAfterRestarts(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{})
	b := newBench(t, Config{Config: dbconn.To(server.DSN("postgres"))}, runbookDDL)
	b.insert("g", "t", 100, time.Hour)
	b.pollExact()
	for n := range 5 {
		mode := pgserver.Fast
		if n%2 == 1 {
			mode = pgserver.Immediate
		}
		if err := server.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		b.conn = dial(t, b.dsn)
		b.insert("g", "t", 1, 0)
		// The first poll may find the dead connection; the next must not.
		if _, err := pollOnce(t, b.store); err != nil && poll.Kind(err) != "unreachable" {
			t.Errorf("after restart %d: %v is %s, want unreachable", n, err, poll.Kind(err))
		}
		m := b.pollExact()
		if s := m.find("g", "t"); s.Rows != int64(101+n) || s.Pruned != 0 {
			t.Errorf("after restart %d: %+v", n, s)
		}
		b.wantSessions(2)
	}
}

// wantSessions wants at most n sessions of the store on the server.
func (b *bench) wantSessions(n int) {
	b.Helper()
	if have := b.sessions(); have > n {
		b.Errorf("%d sessions, want at most %d", have, n)
	}
}

func (b *bench) sessions() (n int) {
	b.Helper()
	if err := b.conn.QueryRow(b.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncewatch' AND datname = current_database()").Scan(&n); err != nil {
		b.Error(err)
	}
	return n
}

// A standby is counted and flagged, and exact once it is promoted.
func TestStandbyAndItsPromotion(t *testing.T) {
	t.Parallel()
	primary := testenv.PostgresServer(t, pgserver.Options{})
	p := newBench(t, Config{Config: dbconn.To(primary.DSN("postgres"))}, runbookDDL)
	p.insert("g", "t", 1000, time.Hour)
	standby := testenv.PostgresServer(t, pgserver.Options{BaseBackupOf: primary})
	s := newStore(t, Config{Config: dbconn.To(standby.DSN("postgres"))})
	replica := dial(t, standby.DSN("postgres"))
	await := func(sql string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			var ok bool
			if err := replica.QueryRow(t.Context(), sql).Scan(&ok); err != nil {
				t.Fatal(err)
			}
			if ok {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("never: %s", sql)
			}
		}
	}
	read := &bench{T: t, store: s, conn: replica, dsn: standby.DSN("postgres")}
	m := read.pollExact()
	if len(m.Inexact) != 1 || m.Inexact[0] != ReasonStandby {
		t.Errorf("reasons %v, want standby", m.Inexact)
	}
	// A transaction of the primary that the standby cannot see.
	late := dial(t, primary.DSN("postgres"))
	run(t, late, "BEGIN")
	run(t, late, fmt.Sprintf(insertSQL, "", "'g', 'late', 't', 0, 7"))
	read.pollExact()
	run(t, late, "COMMIT")
	await("SELECT EXISTS (SELECT FROM processed_events WHERE event_id = 'late')")
	if n := read.pollExact().find("g", "t").Rows; n != 1001 {
		t.Errorf("%d rows, want 1001", n)
	}
	if err := primary.Stop(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	await("SELECT NOT pg_is_in_recovery()")
	read.ids = 100_000
	read.insert("g", "t", 5, 0)
	m = read.pollExact()
	if n := m.find("g", "t"); n.Rows != 1006 || len(m.Inexact) != 0 {
		t.Errorf("promoted: %+v %v", n, m.Inexact)
	}
}

// An asynchronous standby that lacks the last seconds takes over: what was
// seen there and is lost is not counted on.
func TestFailoverThatLosesRows(t *testing.T) {
	t.Parallel()
	primary := testenv.PostgresServer(t, pgserver.Options{})
	p := newBench(t, Config{Config: dbconn.To(primary.DSN("postgres"))}, runbookDDL)
	p.insert("g", "t", 100, time.Hour)
	standby := testenv.PostgresServer(t, pgserver.Options{BaseBackupOf: primary})
	replica := dial(t, standby.DSN("postgres"))
	p.store = newStore(t, Config{Config: dbconn.To(fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=postgres dbname=postgres sslmode=disable target_session_attrs=read-write", primary.Port, standby.Port))})
	tuning := defaultTuning()
	tuning.slack, tuning.scrubRows = cells.Second/10, 0
	p.store.ledger = newLedger(p.store, tuning)
	p.pollExact()
	run(t, replica, "ALTER SYSTEM SET primary_conninfo = ''")
	run(t, replica, "SELECT pg_reload_conf()")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var receivers int
		if err := replica.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_wal_receiver").Scan(&receivers); err != nil {
			t.Fatal(err)
		}
		if receivers == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the standby does not stop receiving")
		}
	}
	p.insert("g", "t", 50, 0)
	if n := p.pollExact().Rows(); n != 150 {
		t.Fatalf("%d rows before the failover, want 150", n)
	}
	time.Sleep(300 * time.Millisecond) // more than the slack
	p.pollExact()
	if err := primary.Stop(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _ = pollOnce(t, p.store) // may find the dead connection
	if n := p.pollExact().Rows(); n != 100 {
		t.Errorf("%d rows after the failover, want 100", n)
	}
}

// Connection parameters mean what they mean to libpq.
func TestConnectsAsLibpqDoes(t *testing.T) {
	server := testenv.PostgresServer(t, pgserver.Options{})
	admin := dial(t, server.DSN("postgres"))
	run(t, admin, "CREATE ROLE carol LOGIN PASSWORD 'right'")
	run(t, admin, "GRANT pg_read_all_stats TO carol")
	run(t, admin, runbookDDL)
	run(t, admin, "GRANT SELECT ON processed_events TO carol")
	hba := filepath.Join(server.Dir, "data", "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, admin, "SELECT pg_reload_conf()")
	dir, port := t.TempDir(), strconv.Itoa(server.Port)
	pass, service := filepath.Join(dir, "pass"), filepath.Join(dir, "service")
	if err := os.WriteFile(pass, []byte("127.0.0.1:"+port+":*:carol:right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(service, []byte("[markers]\nhost=127.0.0.1\nport="+port+"\nuser=carol\ndbname=postgres\nsslmode=disable\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dsn  string
		env  map[string]string
		kind string // of the error; empty: none
	}{
		"variables alone":       {"", map[string]string{"PGHOST": "127.0.0.1", "PGPORT": port, "PGUSER": "carol", "PGPASSWORD": "right", "PGDATABASE": "postgres", "PGSSLMODE": "disable"}, ""},
		"PGPASSFILE":            {"host=127.0.0.1 port=" + port + " user=carol dbname=postgres", map[string]string{"PGPASSFILE": pass}, ""},
		"passfile":              {"postgres://carol@127.0.0.1:" + port + "/postgres?passfile=" + pass, nil, ""},
		"service":               {"service=markers servicefile=" + service + " passfile=" + pass, nil, ""},
		"PGSERVICE":             {"", map[string]string{"PGSERVICE": "markers", "PGSERVICEFILE": service, "PGPASSFILE": pass}, ""},
		"sslmode=prefer":        {"postgres://carol:right@127.0.0.1:" + port + "/postgres?sslmode=prefer", nil, ""},
		"sslmode=require":       {"postgres://carol:right@127.0.0.1:" + port + "/postgres?sslmode=require", nil, "unreachable"},
		"PGSSLMODE=verify-full": {"postgres://carol:right@127.0.0.1:" + port + "/postgres", map[string]string{"PGSSLMODE": "verify-full"}, "unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			s := newStore(t, Config{Config: dbconn.To(c.dsn)})
			_, err := pollOnce(t, s)
			if c.kind == "" && err != nil {
				t.Error(err)
			}
			if c.kind != "" && poll.Kind(err) != c.kind {
				t.Errorf("%v, want %s", err, c.kind)
			}
		})
	}
}

// Names of tables are read as SQL reads them and inject nothing.
func TestTableNames(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{})
	b.exec("CREATE SCHEMA s")
	b.exec(`CREATE SCHEMA "S x"`)
	for config, sql := range map[string]string{
		`"Weird ""Name"`:    `"Weird ""Name"`,
		`s.t`:               `s.t`,
		`"S x"."a.b"`:       `"S x"."a.b"`,
		`Mixed_Case`:        `mixed_case`,
		`"t; DROP TABLE x"`: `"t; DROP TABLE x"`,
	} {
		b.exec(fmt.Sprintf(`CREATE TABLE %s (consumer_group text, "Topic %%s" text, processed_at timestamptz NOT NULL DEFAULT now())`, sql))
		b.exec(fmt.Sprintf(`CREATE INDEX ON %s (processed_at)`, sql))
		b.exec(fmt.Sprintf(`INSERT INTO %s VALUES ('a''b', 't')`, sql))
		b.store = newStore(t, Config{Config: dbconn.To(b.dsn), Table: config, Columns: Columns{Topic: "Topic %s"}})
		if n := b.pollExact().find("a'b", "t").Rows; n != 1 {
			t.Errorf("%s: %d rows, want 1", config, n)
		}
	}
	for _, bad := range []string{"t; DROP TABLE x", "a.b.c", `"open`, "", "a b", "1t", `"a"b`, "a.", "t--"} {
		if _, err := parseName(bad); err == nil {
			t.Errorf("%q was taken for a table name", bad)
		}
	}
	if _, err := New(Config{Table: "t; DROP TABLE x"}, nil, nil); err == nil || !strings.Contains(err.Error(), "postgres.table") {
		t.Errorf("%v, want an error that names postgres.table", err)
	}
}

// Neither the session's zone nor the server's shifts an age.
func TestNoTimeZoneShiftsAges(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"timestamptz", "timestamp"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			ddl := strings.ReplaceAll(runbookDDL, "timestamptz", column)
			check := func(t *testing.T, b *bench) {
				t.Helper()
				b.exec(fmt.Sprintf(insertSQL, ", processed_at", "'g', 'old', 't', 0, 1, now() - interval '3 hours'"))
				b.exec(fmt.Sprintf(insertSQL, "", "'g', 'new', 't', 0, 2"))
				m := b.pollExact()
				s := m.find("g", "t")
				near(t, "oldest", m.Age(s.Oldest, m.ReadAt), 3*time.Hour, 10*time.Second)
				near(t, "newest", m.Age(s.Newest, m.ReadAt), 0, 10*time.Second)
				b.exec(fmt.Sprintf(insertSQL, "", "'g', 'newer', 't', 0, 3"))
				if n := b.pollExact().find("g", "t").Rows; n != 3 {
					t.Errorf("%d rows, want 3", n)
				}
			}
			t.Run("of the database", func(t *testing.T) {
				dsn := testenv.Postgres(t)
				admin := dial(t, dsn)
				run(t, admin, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), 'Asia/Kathmandu'); END $$")
				check(t, newBench(t, Config{Config: dbconn.To(dsn)}, ddl))
			})
			t.Run("of our connection string", func(t *testing.T) {
				dsn := testenv.Postgres(t)
				b := newBench(t, Config{Config: dbconn.To(dsn)}, ddl)
				b.store = newStore(t, Config{Config: dbconn.To(dsn + "&timezone=Asia/Kathmandu")})
				check(t, b)
			})
			t.Run("of our role", func(t *testing.T) {
				b := newBench(t, Config{}, ddl)
				b.store = newStore(t, Config{Config: dbconn.To(b.role("GRANT pg_read_all_stats TO $ROLE", "GRANT SELECT ON processed_events TO $ROLE", "ALTER ROLE $ROLE SET timezone = 'Asia/Kathmandu'", "ALTER ROLE $ROLE SET datestyle = 'German'"))})
				check(t, b)
			})
			t.Run("configured", func(t *testing.T) {
				b := newBench(t, Config{TimeZone: "Asia/Kathmandu"}, ddl)
				b.exec("SET timezone = 'Asia/Kathmandu'")
				check(t, b)
			})
		})
	}
}

func TestUnknownTimeZone(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{TimeZone: "Mars/Phobos"}, strings.ReplaceAll(runbookDDL, "timestamptz", "timestamp"))
	wantError(t, b.store, "malformed", "Mars/Phobos", "postgres.time-zone", "pg_timezone_names")
	wantError(t, newStore(t, Config{Config: dbconn.To(b.dsn + "&options=-c%20timezone%3DMars/Phobos")}), "malformed", "Mars/Phobos", "options of postgres.dsn")
}

// Index entries of pruned rows that an old snapshot keeps are not walked at
// every poll.
func TestPrunedRowsThatASnapshotKeepsAreNotWalkedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL, "ALTER TABLE processed_events SET (autovacuum_enabled = off)")
	b.store.ledger.t.scrubRows = 0
	b.exec(`INSERT INTO processed_events SELECT 'g', 'e' || i, 't', 0, i, now() - interval '1 day' + i * interval '1 ms' FROM generate_series(1, 100000) i`)
	b.ids = 100_000
	b.insert("g", "t", 100, time.Minute)
	b.pollExact()
	holder := dial(t, b.dsn)
	run(t, holder, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	run(t, holder, "SELECT 1 FROM processed_events LIMIT 1")
	b.exec("DELETE FROM processed_events WHERE processed_at < now() - interval '1 hour'")
	b.pollExact() // walks the dead entries, once
	// The server books what a poll read at the next poll at the latest.
	b.store.ledger.observer = func(ctx context.Context, conn *pgx.Conn) {
		if _, err := conn.Exec(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Error(err)
		}
	}
	b.exec("SELECT pg_stat_force_next_flush()")
	b.poll()
	b.poll()
	const polls = 5
	before := b.read()
	for range polls {
		b.poll()
	}
	each := (b.read() - before) / polls
	t.Logf("%d blocks a poll", each)
	if each > 100 {
		t.Errorf("%d blocks a poll for 100 rows beside 100000 dead ones, want at most 100", each)
	}
	if each == 0 {
		t.Error("nothing was seen of what the polls read")
	}
}

// What a snapshot has no time for is left to the next.
func TestASnapshotsTimeIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	l := b.store.ledger
	l.t.scrubRows = 0
	b.insert("g", "t", 50, 2*time.Hour)
	b.insert("g", "t", 50, time.Hour)
	b.pollExact()
	budget := l.t.budget
	l.t.budget = time.Nanosecond
	b.exec("DELETE FROM processed_events WHERE processed_at < now() - interval '90 minutes'")
	for range 3 {
		// What the poll's own snapshot has no time for, others count.
		m := b.poll()
		if n := m.find("g", "t").Rows; n != 50 || !slices.Contains(m.Inexact, ReasonCatchingUp) {
			t.Errorf("%d rows, reasons %v: want 50 and catching_up", n, m.Inexact)
		}
	}
	l.t.budget = budget
	if m := b.pollExact(); m.find("g", "t").Rows != 50 || len(m.Inexact) != 0 {
		t.Errorf("%+v", m)
	}
}

// The exporter's own snapshots hold vacuum back for less than a second.
func TestSnapshotsAreShort(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.exec(`INSERT INTO processed_events SELECT 'g' || i % 5, 'e' || i, 't', i % 4, i, now() - i * interval '1 second' FROM generate_series(1, 400000) i`)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	watcher := dial(t, b.dsn)
	longest, seen := time.Duration(0), 0
	wg.Go(func() {
		for ctx.Err() == nil {
			var held *float64
			var n int
			if err := watcher.QueryRow(t.Context(), `SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8, count(*) FROM pg_stat_activity
			   WHERE application_name = 'oncewatch' AND datname = current_database() AND backend_xmin IS NOT NULL`).Scan(&held, &n); err != nil {
				t.Error(err)
				return
			}
			if held != nil {
				seen++
				longest = max(longest, time.Duration(*held*float64(time.Second)))
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	for range 20 {
		if b.poll().Ready {
			break
		}
	}
	for range 10 {
		b.poll()
	}
	cancel()
	wg.Wait()
	t.Logf("longest snapshot %s, seen %d times", longest, seen)
	if seen == 0 || longest > time.Second {
		t.Errorf("a snapshot was held for %s (seen %d times), want less than 1 s", longest, seen)
	}
}

// A row that cannot be read fails the poll as a whole: what was counted before
// stays, and the next poll goes on.
func TestAFailedPollChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Table: "v"}, runbookDDL, `CREATE TABLE divisor AS SELECT 1 AS d`,
		`CREATE VIEW v AS SELECT consumer_group, topic, processed_at, 1 / (CASE WHEN event_id = 'e5' THEN d ELSE 1 END) AS partition, "offset" FROM processed_events, divisor`)
	for n := range 10 {
		b.insert(fmt.Sprintf("g%d", n), "t", 1, time.Hour)
	}
	p := poll.New(b.store.Markers(), poll.Options{ID: poll.ID{Subject: "markers"}, Interval: time.Hour, Timeout: 10 * time.Second})
	if err := p.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.store.ledger.pages.next = time.Time{}
	b.exec("UPDATE divisor SET d = 0")
	if err := p.Once(t.Context()); poll.Kind(err) != "malformed" {
		t.Fatalf("%v, want malformed", err)
	}
	if m := p.Latest().(*Markers); len(m.Series) != 10 || m.Rows() != 10 {
		t.Errorf("%d series with %d rows after the failed poll, want the old 10 and 10", len(m.Series), m.Rows())
	}
	b.exec("UPDATE divisor SET d = 1")
	if err := p.Once(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lock on the table costs the poll its time limit and no more.
func TestALockedTable(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 50, time.Hour)
	markers := poll.New(b.store.Markers(), poll.Options{ID: poll.ID{Subject: "markers"}, Interval: time.Minute, Timeout: 10 * time.Second})
	health := poll.New(b.store.TableHealth(), poll.Options{ID: poll.ID{Subject: "table"}, Interval: time.Minute, Timeout: 10 * time.Second})
	set := poll.Set{markers, health}
	for _, p := range set {
		err := p.Once(t.Context())
		for n := 0; n < 5 && poll.Kind(err) == "timeout"; n++ { // a busy machine
			err = p.Once(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	locker := dial(t, b.dsn)
	run(t, locker, "BEGIN; LOCK TABLE processed_events IN ACCESS EXCLUSIVE MODE")
	var wg, polls sync.WaitGroup
	for _, p := range set {
		polls.Go(func() {
			for range 3 {
				began := time.Now()
				if err := p.Once(t.Context()); poll.Kind(err) != "timeout" {
					t.Errorf("%v, want timeout", err)
				}
				if d := time.Since(began); d > 5*time.Second {
					t.Errorf("a poll of a locked table took %s", d)
				}
			}
		})
		wg.Go(func() {
			var took []time.Duration
			for range 20 {
				began := time.Now()
				got := page(t, set.Collect)
				took = append(took, time.Since(began))
				if len(got) < 10 {
					t.Errorf("only %d samples", len(got))
				}
			}
			slices.Sort(took) // a busy machine may hold one of them up, the lock none
			if took[10] > 50*time.Millisecond || took[19] > 200*time.Millisecond {
				t.Errorf("scrapes took %s, the longest %s, while the table is locked", took[10], took[19])
			}
		})
	}
	done := make(chan struct{})
	go func() { polls.Wait(); close(done) }()
	for waiting := true; waiting; time.Sleep(20 * time.Millisecond) {
		b.wantSessions(2)
		select {
		case <-done:
			waiting = false
		default:
		}
	}
	wg.Wait()
	run(t, locker, "ROLLBACK")
	if m := b.pollExact(); m.Rows() != 50 {
		t.Errorf("%d rows, want 50", m.Rows())
	}
}

// Row-level security would hide rows from the counts: it is an error.
func TestRowSecurityIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL, "ALTER TABLE processed_events ENABLE ROW LEVEL SECURITY", "CREATE POLICY none ON processed_events USING (false)")
	b.insert("g", "t", 5, time.Hour)
	s := newStore(t, Config{Config: dbconn.To(b.role("GRANT SELECT ON processed_events TO $ROLE"))})
	wantError(t, s, "row_security", "row-level security", "BYPASSRLS")
}

// A role that may not see the transactions of others says so.
func TestPlainRole(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 50, time.Hour)
	dsn := b.role(`GRANT SELECT (consumer_group, topic, partition, "offset", processed_at) ON processed_events TO $ROLE`)
	b.store = newStore(t, Config{Config: dbconn.To(dsn)})
	tuning := defaultTuning()
	tuning.fine, tuning.coarse, tuning.slack, tuning.scrubRows = cells.Second/10, cells.Second, cells.Second/10, 0
	b.store.ledger = newLedger(b.store, tuning)
	m := b.pollExact()
	if len(m.Inexact) != 1 || m.Inexact[0] != ReasonRole {
		t.Errorf("reasons %v, want role", m.Inexact)
	}
	// Another's transaction, whose start the role cannot see.
	late := dial(t, b.dsn)
	run(t, late, "BEGIN")
	b.pollExact()
	time.Sleep(1200 * time.Millisecond) // its minute, here a second, closes
	b.pollExact()
	run(t, late, fmt.Sprintf(insertSQL, "", "'g', 'late', 't', 0, 1"))
	b.pollExact()
	run(t, late, "COMMIT")
	if n := b.pollExact().find("g", "t").Rows; n != 51 {
		t.Errorf("%d rows, want 51", n)
	}
}

// Ages grow between two polls.
func TestAgesGrowBetweenPolls(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Database: "db"}, runbookDDL)
	b.insert("g", "t", 5, time.Hour)
	m := b.pollExact()
	const name = "processed_events_oldest_age_seconds consumer_group=g database=db topic=t"
	first, later := b.page(m, m.ReadAt)[name], b.page(m, m.ReadAt.Add(7*time.Second))[name]
	if d := later - first; d < 6.99 || d > 7.01 {
		t.Errorf("the age grew by %v s in 7 s", d)
	}
}

// Statistics that a crash has reset are no pruning.
func TestACrashResetsStatistics(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{})
	b := newBench(t, Config{Config: dbconn.To(server.DSN("postgres"))}, runbookDDL)
	b.insert("g", "t", 500, time.Hour)
	b.exec("DELETE FROM processed_events WHERE event_id IN ('e1', 'e2')")
	b.pollExact()
	b.pollExact()
	if err := server.Restart(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	b.conn = dial(t, b.dsn)
	_, _ = pollOnce(t, b.store) // finds the dead connection
	m := b.pollExact()
	if s := m.find("g", "t"); s.Inserted != 0 || s.Pruned != 0 || m.Corrections != 0 || len(m.Inexact) != 0 {
		t.Errorf("after the crash: %+v, %d corrections, %v", s, m.Corrections, m.Inexact)
	}
}

// A table that was never analyzed is counted and not estimated.
func TestAFreshTableIsCountedAndNotEstimated(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g", "t", 17, 0)
	var estimate float64
	if err := b.conn.QueryRow(t.Context(), "SELECT reltuples FROM pg_class WHERE relname = 'processed_events'").Scan(&estimate); err != nil || estimate != -1 {
		t.Fatalf("reltuples = %v (%v): not a fresh table", estimate, err)
	}
	if n := b.pollExact().Rows(); n != 17 {
		t.Errorf("%d rows, want 17", n)
	}
}
