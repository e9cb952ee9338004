//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/outbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/prune"
)

// childEnv makes the test binary a consumer instead of running tests.
const childEnv = "REFERENCE_CONSUMER_TEST_CHILD"

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(child(spec))
	}
	os.Exit(testenv.Main(m))
}

// heedsSignals is a child's first line. Until then SIGTERM ends it as it ends
// any process that has not begun.
const heedsSignals = "child: heeds signals"

// spec of a child process.
type spec struct {
	DSN       string
	Brokers   []string
	Topic     string
	Group     string
	BatchSize int
	// Mode is what the child does: consume (default), prune or relay.
	Mode string
	// Endpoint of the relay's deliveries.
	Endpoint string
	// Now is the pruner's clock, in Unix seconds; 0: the real one.
	Now int64
	// Point at which the process gets Signal, at the Nth time it is passed.
	Point  string
	Nth    int
	Signal syscall.Signal
	// KillOn is an event whose handler kills the process.
	KillOn string
	// Slow makes each handler call take this long.
	Slow    time.Duration
	Session time.Duration
	ServerSide,
	SetBased bool
	Instance string
}

// child consumes as the program does, until SIGTERM or the point of its spec.
func child(text string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Fprintln(os.Stderr, heedsSignals)
	var sp spec
	if err := json.Unmarshal([]byte(text), &sp); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var passed atomic.Int64
	hit := func(name string) {
		if name == sp.Point && passed.Add(1) == int64(max(sp.Nth, 1)) {
			_ = syscall.Kill(os.Getpid(), sp.Signal)
			if sp.Signal == syscall.SIGKILL {
				select {} // nothing may happen any more
			}
		}
	}
	switch sp.Mode {
	case "prune":
		return result(childPrune(ctx, sp, hit))
	case "relay":
		return result(childRelay(ctx, sp, hit))
	}
	if sp.Session == 0 {
		sp.Session = 1500 * time.Millisecond
	}
	cfg := payments.Config{
		DSN: sp.DSN, Topic: sp.Topic, Group: sp.Group, MarkerRetention: 8 * 24 * time.Hour, SetBased: sp.SetBased,
		Client: []kgo.Opt{kgo.SeedBrokers(sp.Brokers...)},
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Configure: func(pc *pgxpool.Config) {
			dial := pc.ConnConfig.DialFunc
			pc.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				return &commitConn{c, hit}, err
			}
		},
	}
	cfg.Inbox = inbox.Config{Failpoint: hit, IdleTimeout: sp.Session / 2, StatementTimeout: 3 * time.Second, TransactionTimeout: 4 * time.Second}
	if sp.KillOn != "" || sp.Slow > 0 {
		handle := payments.Handler(sp.Group, payments.NotifyNever)
		cfg.Inbox.Handler = func(ctx context.Context, tx *inbox.Tx, ev inbox.Event) error {
			if ev.ID == sp.KillOn {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			if sp.Slow > 0 {
				time.Sleep(sp.Slow)
			}
			return handle(ctx, tx, ev)
		}
	}
	cfg.Stream.Failpoint, cfg.Stream.BatchSize = hit, sp.BatchSize
	cfg.Stream.SessionTimeout, cfg.Stream.RebalanceTimeout, cfg.Stream.HeartbeatInterval = sp.Session, 5*time.Second, 200*time.Millisecond
	cfg.Stream.ServerSideBalancing, cfg.Stream.InstanceID = sp.ServerSide, sp.Instance
	cfg.Stream.LogStartEvery = 500 * time.Millisecond
	cfg.Stream.Consumer = []kgo.Opt{kgo.MetadataMaxAge(2 * time.Second), kgo.MetadataMinAge(200 * time.Millisecond), kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		return &offsetConn{c, hit}, err
	})}
	return result(payments.Run(ctx, cfg))
}

func result(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

func childPrune(ctx context.Context, sp spec, hit func(string)) error {
	cfg := prune.Config{DSN: sp.DSN, Once: true, Batch: 100, Pause: time.Millisecond, Allow: []string{prune.AssertRetention}, Failpoint: hit}
	if sp.Now != 0 {
		cfg.Now = func() time.Time { return time.Unix(sp.Now, 0) }
	}
	return prune.Run(ctx, cfg)
}

func childRelay(ctx context.Context, sp spec, hit func(string)) error {
	pool, err := payments.Pool(ctx, sp.DSN, 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	return outbox.Run(ctx, outbox.Config{Pool: pool, Group: sp.Group, Endpoint: sp.Endpoint, Workers: 1, Poll: 10 * time.Millisecond,
		Timeout: 500 * time.Millisecond, Lease: 600 * time.Millisecond, Failpoint: hit})
}

// commitConn passes the point "during_db_commit" when COMMIT has been sent and
// not been answered.
type commitConn struct {
	net.Conn
	hit func(string)
}

func (c *commitConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if bytes.Contains(b, []byte("COMMIT\x00")) {
		c.hit("during_db_commit")
	}
	return n, err
}

// offsetConn passes the point "during_offset_commit" when an OffsetCommit (API
// key 8) has been sent and not been answered.
type offsetConn struct {
	net.Conn
	hit func(string)
}

func (c *offsetConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if len(b) > 6 && binary.BigEndian.Uint16(b[4:6]) == 8 {
		c.hit("during_offset_commit")
	}
	return n, err
}

// process is a running child.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	log  string
	once sync.Once
}

// start runs the test binary (or another build of it) as a child. The kernel
// ends it with this process.
func start(t *testing.T, binary string, sp spec) *process {
	t.Helper()
	text, err := json.Marshal(sp)
	if err != nil {
		t.Fatal(err)
	}
	if binary == "" {
		if binary, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.CreateTemp(t.TempDir(), "child-*.log")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, done: make(chan struct{}), log: log.Name()}
	go func() {
		p.err = cmd.Wait()
		_ = log.Close()
		close(p.done)
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

func (p *process) kill() {
	p.once.Do(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if p.t.Failed() {
			if text, err := os.ReadFile(p.log); err == nil {
				p.t.Logf("%s:\n%s", filepath.Base(p.log), tail(text, 40))
			}
		}
	})
}

// wait until the child has ended by itself.
func (p *process) wait(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// stopped says whether the child has been stopped by SIGSTOP.
func (p *process) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(stat, []byte(") "))
	return ok && len(rest) > 0 && rest[0] == 'T'
}

// killed waits until the child has been killed by its own point.
func (p *process) killed(limit time.Duration) {
	p.t.Helper()
	if !p.wait(limit) {
		p.t.Fatalf("the child did not reach its point within %s", limit)
	}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		p.t.Fatalf("the child ended with %v, not by SIGKILL", p.err)
	}
}

// stop ends the child as an orchestrator does; it must exit 0 in time.
func (p *process) stop() {
	p.t.Helper()
	testenv.Eventually(p.t, "the child's first line", func() bool {
		text, err := os.ReadFile(p.log)
		return p.wait(0) || err == nil && bytes.Contains(text, []byte(heedsSignals))
	})
	p.signal(syscall.SIGTERM)
	if !p.wait(20 * time.Second) {
		p.t.Error("the child did not stop within 20 s of SIGTERM")
		return
	}
	if p.err != nil {
		p.t.Errorf("the child ended with %v after SIGTERM, want exit 0", p.err)
	}
}

func tail(text []byte, lines int) []byte {
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
