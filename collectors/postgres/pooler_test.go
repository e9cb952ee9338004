package postgres

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/poll"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

// pgbouncer runs the pooler in transaction mode in front of a server.
func pgbouncer(t *testing.T, server *pgserver.Server) (port int) {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			testenv.Missing(t, "pgbouncer", err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	dir, err := os.MkdirTemp("", "oncewatch-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	ini := filepath.Join(dir, "pgbouncer.ini")
	conf := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
auth_type = any
pool_mode = transaction
default_pool_size = 3
unix_socket_dir =
`, server.Port, port)
	if err := os.WriteFile(ini, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, ini)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	if os.Geteuid() == 0 { // which it refuses to run as
		u, err := user.Lookup("postgres")
		if err != nil {
			testenv.Missing(t, "a user to run pgbouncer as", err)
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = c.Close()
			return port
		}
		if time.Now().After(end) {
			t.Fatalf("pgbouncer does not listen: %v", err)
		}
	}
}

// Behind a pooler in transaction mode, beside another client that must notice
// nothing of it.
func TestBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{})
	direct := newBench(t, Config{Config: dbconn.To(server.DSN("postgres"))}, runbookDDL)
	direct.insert("g", "t", 5000, time.Hour)
	dsn := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", pgbouncer(t, server))
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
