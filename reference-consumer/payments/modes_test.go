package payments_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/stream"
)

// Every way of pgx to send statements, straight to the server and through the
// real pgbouncer in transaction mode: it works, with all that there is (poison,
// duplicates, two members), or the consumer refuses to start and says what to
// set.
func TestQueryModes(t *testing.T) {
	server := testenv.PostgresServer(t, pgserver.Options{})
	direct := server.DSN("postgres")
	pooled := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", testenv.Pgbouncer(t, server, 6))
	for i, c := range []struct {
		through, mode string
		refused       bool
	}{
		{"direct", "cache_statement", false}, {"direct", "cache_describe", false}, {"direct", "describe_exec", false}, {"direct", "exec", true}, {"direct", "simple_protocol", true},
		{"pgbouncer", "cache_statement", true}, {"pgbouncer", "cache_describe", false}, {"pgbouncer", "describe_exec", true}, {"pgbouncer", "exec", true}, {"pgbouncer", "simple_protocol", true},
	} {
		t.Run(c.through+"/"+c.mode, func(t *testing.T) {
			database := fmt.Sprint("modes_", i)
			if err := server.CreateDatabase(t.Context(), database); err != nil {
				t.Fatal(err)
			}
			b := setupAt(t, strings.Replace(direct, "/postgres?", "/"+database+"?", 1))
			dsn := map[string]string{"direct": b.dsn, "pgbouncer": strings.Replace(pooled, "/postgres?", "/"+database+"?", 1)}[c.through] + "&default_query_exec_mode=" + c.mode
			with := func(cfg *payments.Config) { cfg.DSN, cfg.Notify = dsn, payments.NotifyOperation }
			if c.refused {
				cfg := payments.Config{Client: b.client, Topic: "payments", Group: "g", MarkerRetention: 8 * 24 * time.Hour}
				with(&cfg)
				err := payments.Run(t.Context(), cfg)
				var refused *stream.RefusedError
				if !errors.As(err, &refused) || refused.Violations[0].Name != stream.AssertProtocol || !strings.Contains(err.Error(), "default_query_exec_mode=cache_describe") {
					t.Errorf("%v, want a refusal with the remedy", err)
				}
				return
			}
			stats := b.produce(produce.Config{Count: 1000, Duplicates: 0.05, Poison: 0.02, Accounts: 20})
			b.run(with)
			b.run(with)
			applied := int(stats.Events - stats.Poison)
			b.eventually("all", func() bool {
				return b.count("SELECT (SELECT count(*) FROM ledger_entries) + (SELECT count(DISTINCT event_id) FROM dead_letters)") >= int(stats.Events)
			})
			for what, sql := range map[string]string{
				"entries": "SELECT count(*) FROM ledger_entries", "ids": "SELECT count(DISTINCT event_id) FROM ledger_entries", "markers": "SELECT count(*) FROM processed_events",
			} {
				if n := b.count(sql); n != applied {
					t.Errorf("%s: %d, want %d", what, n, applied)
				}
			}
			if n := b.count("SELECT count(*) FROM processed_events m FULL JOIN ledger_entries e USING (event_id) WHERE m.txid IS DISTINCT FROM e.txid"); n != 0 {
				t.Errorf("%d not from one transaction", n)
			}
		})
	}
}
