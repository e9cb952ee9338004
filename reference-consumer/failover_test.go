//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/produce"
)

var patroniToo = flag.Bool("patroni", false, "run TestPatroniFailover, which needs patroni and etcd and takes minutes")

// A Patroni cluster changes its leader twice, once in order and once because
// the leader dies. Consumer and exporter know both servers by one connection
// string; whatever supervises them may have to start them again, but they never
// end with the code that forbids it, every event is applied once, and the
// exporter counts the markers of the new leader.
func TestPatroniFailover(t *testing.T) {
	if !*patroniToo {
		t.Skip("runs with -patroni")
	}
	p := newPatroni(t)
	consumer, oncewatch := testenv.Build(t, "./reference-consumer"), testenv.Build(t, ".")
	brokers := fake(t)
	s := newStage(t, p.dsn(), brokers, "payments", 2)
	s.publish(produce.Config{Count: 300, Duplicates: 0.02, Accounts: 20})
	address := testenv.FreeAddress(t)
	common := []string{"--postgres.dsn=" + p.dsn(), "--kafka.brokers=" + strings.Join(brokers, ",")}
	supervise(t, consumer, append([]string{"run", "--web.listen-address=", "--session-timeout=6s", "--log.level=info"}, common...))
	supervise(t, oncewatch, append([]string{"serve", "--poll.interval=1s", "--web.listen-address=" + address}, common...))
	counted := func() float64 {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return -1
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return -1
		}
		sum, _ := testenv.ReadPage(t, string(text)).Sum("processed_events_row_count")
		return sum
	}
	settled := func(when string) {
		t.Helper()
		testenv.Eventually(t, "everything applied "+when, func() bool { return s.audit() == nil })
		testenv.Eventually(t, "the exporter's count "+when, func() bool { return counted() == float64(s.stats.Events) })
	}
	settled("at first")

	first := p.leader()
	s.publish(produce.Config{Count: 300, Duplicates: 0.02, Accounts: 20})
	p.switchover(first)
	s.publish(produce.Config{Count: 300, Duplicates: 0.02, Accounts: 20})
	settled("after a switchover")

	second := p.leader()
	if second == first {
		t.Fatalf("%s still leads", first)
	}
	s.publish(produce.Config{Count: 300, Duplicates: 0.02, Accounts: 20})
	p.crash(second)
	s.publish(produce.Config{Count: 300, Duplicates: 0.02, Accounts: 20})
	testenv.Eventually(t, "another leader", func() bool { l := p.leader(); return l != "" && l != second })
	settled("after the leader's crash")
}

// supervise starts a program again when it has ended, as systemd does with the
// units in deploy/systemd: not after the codes 2 and 78.
func supervise(t *testing.T, program string, args []string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = 20 * time.Second
			cmd.Stdout, cmd.Stderr = log, log
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			err := cmd.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) && (exit.ExitCode() == 2 || exit.ExitCode() == exitRefused) {
				t.Errorf("%s ended with code %d: nothing would start it again", filepath.Base(program), exit.ExitCode())
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond): // RestartSec
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), tail(text, 40))
		}
	})
}

// patroni is a cluster of two servers, and the etcd that they agree by.
type patroni struct {
	t     *testing.T
	nodes map[string]*node
}

type node struct {
	name          string
	postgres, api int // ports
	cmd           *exec.Cmd
	dir           string
}

func newPatroni(t *testing.T) *patroni {
	t.Helper()
	programs := map[string]string{}
	for _, name := range []string{"patroni", "etcd"} {
		path, err := exec.LookPath(name)
		if err != nil {
			testenv.Missing(t, name, err)
		}
		programs[name] = path
	}
	installed, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(installed) == 0 {
		testenv.Missing(t, "an installed PostgreSQL", fmt.Errorf("no /usr/lib/postgresql: %v", err))
	}
	dir, err := os.MkdirTemp("", "oncewatch-patroni-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if as.Credential, err = pgserver.Unprivileged(); err != nil {
		testenv.Missing(t, "a user to run PostgreSQL as", err)
	}
	if c := as.Credential; c != nil {
		if err := errors.Join(os.Chown(dir, int(c.Uid), int(c.Gid)), os.Chmod(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(programs[name], args...)
		attr := *as
		cmd.SysProcAttr, cmd.Dir = &attr, dir
		log, err := os.CreateTemp(dir, name+"-*.log")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
			if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
				t.Logf("%s %v:\n%s", name, args, tail(text, 25))
			}
			_ = log.Close()
		})
		return cmd
	}
	port := func() int {
		_, port, err := net.SplitHostPort(testenv.FreeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(port)
		return n
	}
	client, peer := port(), port()
	run("etcd", "--data-dir="+filepath.Join(dir, "etcd"),
		fmt.Sprintf("--listen-client-urls=http://127.0.0.1:%d", client), fmt.Sprintf("--advertise-client-urls=http://127.0.0.1:%d", client),
		fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", peer), fmt.Sprintf("--initial-advertise-peer-urls=http://127.0.0.1:%d", peer),
		fmt.Sprintf("--initial-cluster=default=http://127.0.0.1:%d", peer))
	testenv.Eventually(t, "etcd", func() bool { return get(t, fmt.Sprintf("http://127.0.0.1:%d/health", client)) == http.StatusOK })
	p := &patroni{t: t, nodes: map[string]*node{}}
	for _, name := range []string{"one", "two"} {
		n := &node{name: name, postgres: port(), api: port(), dir: filepath.Join(dir, name)}
		conf := fmt.Sprintf(`scope: ledger
name: %[1]s
restapi: {listen: "127.0.0.1:%[2]d", connect_address: "127.0.0.1:%[2]d"}
etcd3: {host: "127.0.0.1:%[3]d"}
bootstrap:
  dcs:
    ttl: 10
    loop_wait: 1
    retry_timeout: 3
    postgresql: {use_pg_rewind: false, parameters: {max_connections: 60}}
  initdb: [{auth-host: trust}, {auth-local: trust}, {encoding: UTF8}, {locale: C}]
  pg_hba: ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
postgresql:
  listen: "127.0.0.1:%[4]d"
  connect_address: "127.0.0.1:%[4]d"
  data_dir: %[5]s
  bin_dir: %[6]s
  pgpass: %[5]s.pgpass
  authentication: {superuser: {username: postgres}, replication: {username: postgres}}
  parameters: {unix_socket_directories: ""}
`, n.name, n.api, client, n.postgres, n.dir, filepath.Dir(installed[len(installed)-1]))
		file := filepath.Join(dir, name+".yml")
		if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		n.cmd = run("patroni", file)
		p.nodes[name] = n
		t.Cleanup(func() { n.killPostgres() })
		if name == "one" {
			testenv.Eventually(t, "a leader", func() bool { return p.leader() == name })
		}
	}
	testenv.Eventually(t, "a standby that streams", func() bool { return p.replicas() == 1 })
	return p
}

// get is the status of an answer; 0 without one.
func get(t *testing.T, url string) int {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func (p *patroni) dsn() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=5", p.nodes["one"].postgres, p.nodes["two"].postgres)
}

// leader is the node that says so; none while they do not know.
func (p *patroni) leader() string {
	for name, n := range p.nodes {
		if get(p.t, fmt.Sprintf("http://127.0.0.1:%d/primary", n.api)) == http.StatusOK {
			return name
		}
	}
	return ""
}

func (p *patroni) replicas() (n int) {
	for _, node := range p.nodes {
		if get(p.t, fmt.Sprintf("http://127.0.0.1:%d/replica", node.api)) == http.StatusOK {
			n++
		}
	}
	return n
}

func (p *patroni) switchover(from string) {
	p.t.Helper()
	resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/switchover", p.nodes[from].api), "application/json", strings.NewReader(fmt.Sprintf(`{"leader": %q}`, from)))
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		p.t.Fatalf("switchover: %s: %s", resp.Status, text)
	}
	testenv.Eventually(p.t, "the other leads and the old leader follows", func() bool { l := p.leader(); return l != "" && l != from && p.replicas() == 1 })
}

// crash kills a node: Patroni and its PostgreSQL.
func (p *patroni) crash(name string) {
	n := p.nodes[name]
	_ = syscall.Kill(-n.cmd.Process.Pid, syscall.SIGKILL)
	n.killPostgres()
}

// killPostgres kills the node's postmaster, which is in a session of its own.
func (n *node) killPostgres() {
	text, err := os.ReadFile(filepath.Join(n.dir, "postmaster.pid"))
	if err != nil {
		return
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil || pid <= 1 {
		return
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.HasPrefix(string(comm), "postgres") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
