// Package dbconn connects to PostgreSQL: the flags that say how. Both programs
// connect through it. Whatever it reads from a file (the connection string, a
// password, passfile, service file, certificates and keys) it reads again for
// every connection, so that a secret can rotate while the program runs.
package dbconn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/collectors/config"
)

// Config is how to reach one database. Its keys stand below a prefix such as
// "postgres.".
type Config struct {
	DSN          config.Secret `name:"dsn" help:"Connection string, as a URL or as key=value pairs. Absent: libpq's PG* variables. sslmode, passfile and service work as in libpq."`
	DSNFile      string        `name:"dsn-file" placeholder:"FILE" help:"File with the connection string, instead of --postgres.dsn. Read again for every connection, as passfile, sslcert, sslkey and sslrootcert are."`
	PasswordFile string        `name:"password-file" placeholder:"FILE" help:"File with the password, which wins over one in the connection string. Read again for every connection."`
	TokenFrom    string        `name:"token-from" placeholder:"CLOUD" help:"Log in with a token instead of a password, fetched before it expires, with the identity that the cloud gives this process: aws (RDS and Aurora), azure (Entra ID) or google (Cloud SQL)."`
	TokenCommand string        `name:"token-command" placeholder:"COMMAND" help:"Program, with its arguments, that writes the password or token; run without a shell for every connection, for at most 10 s."`
}

// connectTimeout is how long a connection may take to be made, where the
// connection string does not say.
const connectTimeout = 5 * time.Second

// To is the configuration of a connection string alone.
func To(dsn string) Config { return Config{DSN: config.Secret(dsn)} }

// Validate says what cannot be used. It reads the files and connects to
// nothing.
func (c Config) Validate() error {
	_, err := c.parse()
	return err
}

// Pool is a pool's configuration. What is set in its ConnConfig stays; where
// and as whom to connect is found anew for every connection.
func (c Config) Pool() (*pgxpool.Config, error) {
	pc, err := c.parse()
	if err != nil {
		return nil, err
	}
	pc.BeforeConnect = c.BeforeConnect()
	return pc, nil
}

// BeforeConnect makes pgxpool's hook: it gives the next connection the host,
// user, password and certificates that the files hold now, and its token.
func (c Config) BeforeConnect() func(context.Context, *pgx.ConnConfig) error {
	login := c.login()
	return func(ctx context.Context, next *pgx.ConnConfig) error {
		pc, err := c.parse()
		if err != nil {
			return err
		}
		if login != nil {
			password, err := login(ctx, &pc.ConnConfig.Config)
			if err != nil {
				return err
			}
			pc.ConnConfig.Password = password
		}
		renew(next, pc.ConnConfig)
		return nil
	}
}

// renew takes over all but what the program has set itself.
func renew(next, pc *pgx.ConnConfig) {
	old := next.Config
	next.Config = pc.Config
	next.RuntimeParams, next.ConnectTimeout = old.RuntimeParams, old.ConnectTimeout
	next.DialFunc, next.LookupFunc = old.DialFunc, old.LookupFunc
	next.BuildFrontend, next.MaxProtocolMessageBodyLen = old.BuildFrontend, old.MaxProtocolMessageBodyLen
	next.BuildContextWatcherHandler, next.AfterNetConnect, next.AfterConnect = old.BuildContextWatcherHandler, old.AfterNetConnect, old.AfterConnect
	next.OnNotice, next.OnNotification, next.OnPgError = old.OnNotice, old.OnNotification, old.OnPgError
}

// ConnString is the connection string, from its file where there is one.
func (c Config) ConnString() (config.Secret, error) {
	switch {
	case c.DSNFile == "":
		return c.DSN, nil
	case c.DSN != "":
		return "", errors.New("postgres.dsn and postgres.dsn-file are both set: remove one of them")
	}
	return config.ReadSecret("postgres.dsn-file", c.DSNFile)
}

// parse reads the connection string as libpq does. Its errors never repeat the
// string: it may hold a password.
func (c Config) parse() (*pgxpool.Config, error) {
	dsn, err := c.ConnString()
	if err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig(dsn.Reveal())
	if err != nil {
		name := "postgres.dsn"
		if c.DSNFile != "" {
			name = "postgres.dsn-file"
		}
		return nil, fmt.Errorf("%s: %w; use postgres://user@host:5432/db or host=… user=… dbname=…", name, fault(dsn, err))
	}
	for key := range pc.ConnConfig.RuntimeParams {
		if meant := config.Misspelt(key, keywords); meant != "" {
			return nil, fmt.Errorf("postgres.dsn: one of its keys is misspelt; did you mean %s?", meant)
		}
	}
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = connectTimeout
	}
	if c.PasswordFile != "" {
		password, err := config.ReadSecret("postgres.password-file", c.PasswordFile)
		if err != nil {
			return nil, err
		}
		pc.ConnConfig.Password = password.Reveal()
	}
	if err := c.tokenUsable(&pc.ConnConfig.Config); err != nil {
		return nil, err
	}
	return pc, nil
}

// keywords are those of a connection string that decide where to.
var keywords = []string{
	"host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "servicefile", "connect_timeout",
	"sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslsni", "target_session_attrs", "krbsrvname",
}

// refused are texts of pgx's errors, and what to write instead.
var refused = map[string]string{
	"sslmode is invalid":           "sslmode: want disable, allow, prefer, require, verify-ca or verify-full",
	"invalid port":                 "port: want a number from 1 to 65535",
	"invalid connect_timeout":      "connect_timeout: want seconds",
	"unknown target_session_attrs": "target_session_attrs: want any, read-write, read-only, primary, standby or prefer-standby",
	"unable to read CA file":       "sslrootcert: its file cannot be read",
	"unable to read cert":          "sslcert, sslkey: their files cannot be read",
	"failed to read service":       "service: it cannot be read from the service file",
}

// fault tells what is wrong with a connection string without a word of it.
func fault(dsn config.Secret, err error) error {
	var file *fs.PathError
	switch _, urlErr := url.Parse(dsn.Reveal()); {
	case errors.As(err, &file):
		return fmt.Errorf("names a file that cannot be read: %w", file)
	case urlErr != nil && strings.Contains(dsn.Reveal(), "://"):
		return errors.New("the URL cannot be parsed (percent-encode special characters of the password)")
	}
	for text, instead := range refused {
		if strings.Contains(err.Error(), text) {
			return errors.New(instead)
		}
	}
	return errors.New("cannot be parsed")
}
