package postgres

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/poll"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// Behind a pooler in transaction mode, beside another client that must notice
// nothing of it.
func TestBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{})
	direct := newBench(t, Config{Config: dbconn.To(server.DSN("postgres"))}, runbookDDL)
	direct.insert("g", "t", 5000, time.Hour)
	dsn := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", testenv.Pgbouncer(t, server, 3))
	direct.store = newStore(t, Config{Config: dbconn.To(dsn)})
	health := poll.New(direct.store.TableHealth(), poll.Options{ID: poll.ID{Subject: "table"}, Interval: time.Second, Timeout: 10 * time.Second})

	other := dial(t, dsn+"&default_query_exec_mode=exec")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Settings that leaked would show in a session of the pool.
			var settings string
			if err := other.QueryRow(t.Context(), `SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('row_security'),
			   current_setting('transaction_read_only'), current_setting('enable_seqscan'), pg_sleep(0.005)::text)`).Scan(&settings); err != nil {
				t.Errorf("another client: %v", err)
				return
			}
			if strings.TrimSpace(settings) != "0 0 on off on" {
				t.Errorf("another client has the settings %q", settings)
				return
			}
		}
	})
	for n := range 50 {
		direct.insert("g", "t", 3, 0)
		if m := direct.pollExact(); m.Rows() != int64(5003+3*n) {
			t.Errorf("%d rows, want %d", m.Rows(), 5003+3*n)
		}
		if err := health.Once(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}
