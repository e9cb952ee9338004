package dbconn

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/deploy/testenv"
)

// server speaks as much of PostgreSQL as asks for a password in clear, as RDS,
// Cloud SQL and Azure do, and tells which it was given.
func server(t *testing.T) (address string, passwords <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	given := make(chan string, 8)
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.AuthenticationCleartextPassword{})
		if backend.Flush() != nil || backend.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
			return
		}
		message, err := backend.Receive()
		if err != nil {
			return
		}
		given <- message.(*pgproto3.PasswordMessage).Password
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		_ = backend.Flush()
		_, _ = backend.Receive()
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return listener.Addr().String(), given
}

// Each cloud's token arrives at the server as the password: fetched once where
// it lasts, signed anew for each connection where it is for one endpoint.
func TestCloudLogins(t *testing.T) {
	checks := map[string]func(t *testing.T, address, password string){
		"aws": func(t *testing.T, address, password string) {
			host, query, _ := strings.Cut(password, "?")
			values, err := url.ParseQuery(query)
			if err != nil || host != address || values.Get("Action") != "connect" || values.Get("DBUser") != "watcher" {
				t.Errorf("%q, %v", password, err)
			}
			testenv.CheckAWSSignature(t, values, address, "rds-db", "eu-central-1")
		},
		"azure": func(t *testing.T, _, password string) {
			if password != testenv.CloudToken+"https://ossrdbms-aad.database.windows.net" {
				t.Errorf("%q", password)
			}
		},
		"google": func(t *testing.T, _, password string) {
			if password != testenv.CloudToken+"https://www.googleapis.com/auth/sqlservice.login" {
				t.Errorf("%q", password)
			}
		},
	}
	for cloud, check := range checks {
		t.Run(cloud, func(t *testing.T) {
			fake := testenv.NewCloud(t, time.Hour)
			address, passwords := server(t)
			c := Config{DSN: To("postgres://watcher@" + address + "/d?sslmode=disable").DSN, TokenFrom: cloud}
			connect(t, c, 2)
			for range 2 {
				check(t, address, <-passwords)
			}
			if n := fake.Asked(cloud); n > 1 {
				t.Errorf("asked %d times for what lasts an hour", n)
			}

			// Without an identity the error says where to look and repeats nothing.
			fake.Break()
			if cloud == "azure" { // its library keeps tokens for the whole process
				return
			}
			pc, err := c.Pool()
			if err != nil {
				t.Fatal(err)
			}
			err = pc.BeforeConnect(t.Context(), pc.ConnConfig.Copy())
			if err == nil || !strings.Contains(err.Error(), "postgres.token-from") || strings.Contains(err.Error(), testenv.CloudSecretKey) {
				t.Errorf("without an identity: %v", err)
			}
		})
	}
}

// connect makes n connections of one pool.
func connect(t *testing.T, c Config, n int) {
	t.Helper()
	pc, err := c.Pool()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for range n {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
}

// A command is run for every connection.
func TestTokenCommand(t *testing.T) {
	address, passwords := server(t)
	path := write(t, t.TempDir()+"/token", "one")
	c := Config{DSN: To("postgres://watcher@" + address + "/d?sslmode=disable").DSN, TokenCommand: "cat " + path}
	for _, want := range []string{"one", "two"} {
		write(t, path, want)
		connect(t, c, 1)
		if got := <-passwords; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What does not go with a token is refused before anything is sent.
func TestTokensAreRefused(t *testing.T) {
	for want, c := range map[string]Config{
		"sslmode=verify-full": {DSN: "postgres://u@db/d", TokenFrom: "google"},
		"sslmode=verify":      {DSN: "postgres://u@db/d?sslmode=disable", TokenCommand: "cat t"},
		"both set":            {DSN: "postgres://u@db/d?sslmode=require", TokenCommand: "cat t", TokenFrom: "aws"},
		"password-file":       {DSN: "postgres://u@db/d?sslmode=require", PasswordFile: write(t, t.TempDir()+"/p", "p"), TokenFrom: "aws"},
		"one endpoint":        {DSN: "postgres://u@a:1,b:2/d?sslmode=require", TokenFrom: "aws"},
		"aws, azure, google":  {DSN: "postgres://u@db/d?sslmode=require", TokenFrom: "ibm"},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %s", c, err, want)
		}
	}
	for _, dsn := range []string{"postgres://u@db/d?sslmode=require", "host=/run/proxy user=u", "postgres://u@127.0.0.1:5432/d"} {
		if err := (Config{DSN: To(dsn).DSN, TokenFrom: "google"}).Validate(); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
