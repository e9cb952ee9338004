// Package privileges holds the rights that oncewatch needs, as statements to
// run, and the tests that it needs exactly those.
package privileges

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/common/expfmt"
	"github.com/twmb/franz-go/pkg/kfake"

	"oncewatch/collectors"
	"oncewatch/collectors/checklist"
	"oncewatch/collectors/config"
	"oncewatch/collectors/dbconn"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const password = "hunter2-of-the-role"

// asOthersHave makes a database in which nobody has a right by being PUBLIC.
const asOthersHave = `
REVOKE ALL ON DATABASE app FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
CREATE TABLE processed_events (consumer_group text, event_id text, topic text, partition int, "offset" bigint, txid xid8 DEFAULT pg_current_xact_id(),
	processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer_group, event_id));
CREATE INDEX ON processed_events (processed_at);
CREATE TABLE ledger_entries (event_id text PRIMARY KEY, amount bigint, txid xid8 DEFAULT pg_current_xact_id(), created_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON ledger_entries (created_at);
CREATE TABLE customers (name text);
INSERT INTO processed_events SELECT 'g', 'e' || i, 't', 0, i, pg_current_xact_id(), now() - i * interval '1 second' FROM generate_series(0, 999) i;
INSERT INTO ledger_entries SELECT 'e' || i, i, pg_current_xact_id(), now() - i * interval '1 second' FROM generate_series(0, 999) i;`

// app is a server with the database app and, in it, exactly the rights of
// postgres.sql.
func app(t *testing.T) *pgserver.Server {
	t.Helper()
	s := testenv.PostgresServer(t, pgserver.Options{
		HBA: "host all postgres 127.0.0.1/32 trust\nhost replication postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
	})
	if err := s.CreateDatabase(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	rights, err := os.ReadFile("postgres.sql")
	if err != nil {
		t.Fatal(err)
	}
	execute(t, s.DSN("app"), asOthersHave)
	execute(t, s.DSN("app"), string(rights))
	execute(t, s.DSN("app"), "ALTER ROLE oncewatch PASSWORD '"+password+"'")
	return s
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	if err := try(t, dsn, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func try(t *testing.T, dsn, sql string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// exporter watches markers and effects with the DSN.
func exporter(t *testing.T, dsn string, change ...func(*collectors.Config)) *collectors.Exporter {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	var c collectors.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Kafka.Brokers, c.Postgres.Config, c.Postgres.Effect.Table = broker.ListenAddrs(), dbconn.To(dsn), "ledger_entries"
	for _, f := range change {
		f(&c)
	}
	e, err := collectors.New(c, slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// once polls every source once and returns what a scrape would say.
func once(t *testing.T, e *collectors.Exporter) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e.Once(ctx)
	return scrape(t, e)
}

func scrape(t *testing.T, e *collectors.Exporter) string {
	t.Helper()
	reg, err := e.Registry()
	if err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

var failures = regexp.MustCompile(`(?m)^oncewatch_errors_total\{collector="(markers|table|divergence)".*`)

// The three collectors of a store run at once, several polls a second, with
// two connections and no error; on the primary and on a standby, with the
// rights of postgres.sql and nothing more.
func TestExactlyTheseRights(t *testing.T) {
	t.Parallel()
	primary := app(t)
	standby := testenv.PostgresServer(t, pgserver.Options{BaseBackupOf: primary})
	for name, server := range map[string]*pgserver.Server{"primary": primary, "hot standby": standby} {
		t.Run(name, func(t *testing.T) {
			dsn := server.UserDSN("app", "oncewatch", password)
			e := exporter(t, dsn, func(c *collectors.Config) { c.Poll.Interval = 300 * time.Millisecond })
			watcher, err := pgx.Connect(t.Context(), server.DSN("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = watcher.Close(context.Background()) }()
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); e.Pollers.Run(ctx) }()
			most, polls := 0, 0
			last := map[string]time.Time{}
			for deadline := time.Now().Add(time.Minute); polls < 45; {
				var n int
				if err := watcher.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'oncewatch'").Scan(&n); err != nil {
					t.Fatal(err)
				}
				most = max(most, n)
				for _, s := range e.Facts().Sources {
					if s.LastSuccess != last[s.ID.String()] && strings.Contains("markers table divergence", s.ID.String()) {
						last[s.ID.String()] = s.LastSuccess
						polls++
					}
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d polls in a minute", polls)
				}
				time.Sleep(time.Millisecond)
			}
			var page string // a machine that stalls withholds what is older than three intervals
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if page = scrape(t, e); strings.Contains(page, "processed_events_row_count{") && strings.Contains(page, "processed_events_divergent_rows{") && strings.Contains(page, "processed_events_index_bytes{") {
					break
				}
			}
			end()
			<-ended
			if lines := failures.FindAllString(page, -1); lines != nil {
				t.Errorf("errors with exactly these rights: %v", lines)
			}
			if most != 2 {
				t.Errorf("at most %d sessions at once, want 2: all collectors poll at the same time", most)
			}
			for _, want := range []string{
				`processed_events_row_count{consumer_group="g",database="app",topic="t"} 1000`,
				`processed_events_divergent_rows{consumer_group="g",database="app",kind="different_transaction"} 0`,
				`processed_events_divergent_rows{consumer_group="g",database="app",kind="marker_without_effect"} 0`,
				`processed_events_index_bytes{`,
			} {
				if !strings.Contains(page, want) {
					t.Errorf("the page lacks %s", want)
				}
			}
			if strings.Contains(page, `reason="role"`) {
				t.Error("the counts are called inexact for want of a right")
			}
			e.Close()

			// And nothing more.
			for sql, want := range map[string]string{
				"SELECT * FROM customers":                                   "42501",
				"SELECT amount FROM ledger_entries":                         "42501",
				"DELETE FROM processed_events":                              "25006",
				"CREATE TEMP TABLE mine ()":                                 "25006",
				"BEGIN READ WRITE; DELETE FROM processed_events":            "42501",
				"BEGIN READ WRITE; CREATE TABLE public.mine ()":             "42501",
				"BEGIN READ WRITE; CREATE TEMP TABLE mine ()":               "42501",
				"BEGIN READ WRITE; SELECT lo_create(0); CREATE SCHEMA mine": "42501",
				"SELECT pg_read_file('postgresql.conf')":                    "42501",
				"SELECT pg_sleep(30)":                                       "57014",
				"COPY processed_events TO PROGRAM 'cat'":                    "42501",
			} {
				if server == standby && strings.Contains(sql, "READ WRITE") {
					want = "0A000" // no standby lets a transaction write
				}
				// The sessions that the exporter closed are the server's to end.
				waitForNone(t, server)
				if err := try(t, dsn, sql); code(err) != want {
					t.Errorf("%s: %v, want SQLSTATE %s", sql, err, want)
				}
			}
		})
	}
}

// With one right taken away, the error names what is missing and the remedy,
// and what does not need it goes on.
func TestEachRightIsNeeded(t *testing.T) {
	t.Parallel()
	server := app(t)
	for name, c := range map[string]struct {
		take, give string
		collector  string // that fails
		words      []string
		goesOn     string // what is still exported
	}{
		"CONNECT": {
			"REVOKE CONNECT ON DATABASE app FROM oncewatch", "GRANT CONNECT ON DATABASE app TO oncewatch",
			"markers", []string{`database "app"`, "GRANT CONNECT"}, "oncewatch_collector_success{",
		},
		"USAGE": {
			"REVOKE USAGE ON SCHEMA public FROM oncewatch", "GRANT USAGE ON SCHEMA public TO oncewatch",
			"markers", []string{"processed_events", "GRANT USAGE ON SCHEMA \"public\" TO \"oncewatch\""}, "oncewatch_collector_success{",
		},
		"SELECT on the markers": {
			"REVOKE SELECT ON processed_events FROM oncewatch", "GRANT SELECT ON processed_events TO oncewatch",
			"markers", []string{"processed_events", "GRANT SELECT"}, "oncewatch_collector_success{",
		},
		"SELECT on the effects": {
			"REVOKE SELECT (event_id, txid, created_at) ON ledger_entries FROM oncewatch", "GRANT SELECT (event_id, txid, created_at) ON ledger_entries TO oncewatch",
			"divergence", []string{"ledger_entries", "GRANT SELECT"}, "processed_events_row_count{",
		},
		"SELECT on one column of the effects": {
			"REVOKE SELECT (txid) ON ledger_entries FROM oncewatch", "GRANT SELECT (txid) ON ledger_entries TO oncewatch",
			"divergence", []string{"ledger_entries", "GRANT SELECT"}, "processed_events_row_count{",
		},
		"LOGIN": {
			"ALTER ROLE oncewatch NOLOGIN", "ALTER ROLE oncewatch LOGIN",
			"markers", []string{`role "oncewatch" is not permitted to log in`, "postgres.dsn"}, "oncewatch_collector_success{",
		},
		"a second connection": {
			"ALTER ROLE oncewatch CONNECTION LIMIT 0", "ALTER ROLE oncewatch CONNECTION LIMIT 2",
			"markers", []string{`too many connections for role "oncewatch"`, "needs 2 connections", "CONNECTION LIMIT"}, "oncewatch_collector_success{",
		},
	} {
		t.Run(name, func(t *testing.T) {
			execute(t, server.DSN("app"), c.take)
			defer execute(t, server.DSN("app"), c.give)
			e := exporter(t, server.UserDSN("app", "oncewatch", password))
			page := once(t, e)
			if !strings.Contains(page, c.goesOn) {
				t.Errorf("%s is missing too", c.goesOn)
			}
			said := problems(e.Facts(), c.collector)
			for _, w := range append(c.words, "") {
				if !strings.Contains(said, w) || said == "" {
					t.Errorf("%q does not say %q", said, w)
				}
			}
			if strings.Contains(said, password) {
				t.Error("the error tells the password")
			}
			e.Close()
			waitForNone(t, server)
		})
	}
	t.Run("pg_read_all_stats", func(t *testing.T) {
		execute(t, server.DSN("app"), "REVOKE pg_read_all_stats FROM oncewatch")
		defer execute(t, server.DSN("app"), "GRANT pg_read_all_stats TO oncewatch")
		e := exporter(t, server.UserDSN("app", "oncewatch", password))
		if page := once(t, e); !strings.Contains(page, `oncewatch_ledger_inexact{database="app",reason="role"} 1`) || !strings.Contains(page, "processed_events_row_count{") {
			t.Error("the counts are withheld, or called exact")
		}
		for _, l := range checklist.Evaluate(e.Facts()) {
			if l.Rule == "ledger-exact" && strings.Contains(l.Remedy, "GRANT pg_read_all_stats") {
				return
			}
		}
		t.Error("the checklist does not say what to grant")
	})
}

// problems is what a collector could not read, as a person is told.
func problems(f checklist.Facts, collector string) string {
	var b strings.Builder
	for _, s := range f.Sources {
		if s.ID.String() != collector {
			continue
		}
		if s.Err != nil {
			fmt.Fprintln(&b, s.Err)
		}
		for _, p := range s.Problems {
			fmt.Fprintln(&b, p.Err)
		}
	}
	return b.String()
}

// waitForNone waits until the server has ended the sessions that were closed.
func waitForNone(t *testing.T, server *pgserver.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'oncewatch'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions are left", n)
		}
	}
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// Whoever adds a right adds the test that takes it away.
func TestEveryStatementIsTested(t *testing.T) {
	rights, err := os.ReadFile("postgres.sql")
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile("privileges_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(rights)) {
		if grant := strings.TrimSuffix(strings.TrimSpace(line), ";"); strings.HasPrefix(grant, "GRANT") && !strings.Contains(string(test), grant) {
			t.Errorf("no test takes this right away: %s", grant)
		}
	}
}
