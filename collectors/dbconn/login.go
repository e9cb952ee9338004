package dbconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"oncewatch/collectors/token"
)

// login is how the password of one connection is had; nil where it is a plain
// one.
func (c Config) login() func(context.Context, *pgconn.Config) (string, error) {
	const flag = "postgres.token-from"
	var source token.Source
	switch {
	case c.TokenFrom == token.AWS:
		logins := &token.AWSLogins{}
		return func(ctx context.Context, to *pgconn.Config) (string, error) {
			password, err := logins.Database(ctx, to.Host, to.Port, to.User)
			if err != nil {
				return "", fmt.Errorf("%s: %w", flag, err)
			}
			return password, nil
		}
	case c.TokenFrom == token.Azure:
		source = token.EntraID(token.AzureDatabase, nil)
	case c.TokenFrom == token.Google:
		source = token.CloudSQL()
	case c.TokenCommand != "":
		return func(ctx context.Context, _ *pgconn.Config) (string, error) {
			got, err := token.Command("postgres.token-command", c.TokenCommand).Token(ctx)
			if err != nil {
				return "", err
			}
			return got.AccessToken, nil
		}
	default:
		return nil
	}
	tokens := token.NewCache(source, nil)
	return func(ctx context.Context, _ *pgconn.Config) (string, error) {
		password, err := tokens.Get(ctx)
		if err != nil {
			return "", fmt.Errorf("%s: %w", flag, err)
		}
		return password, nil
	}
}

// tokenUsable refuses what does not go with a token: a password beside it, no
// user, and a way on which it could be read.
func (c Config) tokenUsable(to *pgconn.Config) error {
	flag := "postgres.token-from"
	switch {
	case c.TokenFrom == "" && c.TokenCommand == "":
		return nil
	case c.TokenFrom != "" && c.TokenCommand != "":
		return errors.New("postgres.token-from and postgres.token-command are both set: remove one of them")
	case c.PasswordFile != "":
		return errors.New("postgres.password-file and a token are both set: remove one of them")
	case c.TokenFrom == "":
		flag = "postgres.token-command"
	default:
		if err := token.Known(flag, c.TokenFrom, token.AWS, token.Azure, token.Google); err != nil {
			return err
		}
	}
	hosts := []*pgconn.FallbackConfig{{Host: to.Host, Port: to.Port, TLSConfig: to.TLSConfig}}
	for _, h := range slices.Concat(hosts, to.Fallbacks) {
		if h.TLSConfig == nil && !local(h.Host) {
			return fmt.Errorf("%s: the token could be read on its way: set sslmode=verify-full in postgres.dsn", flag)
		}
		if c.TokenFrom == token.AWS && (h.Host != to.Host || h.Port != to.Port) {
			return fmt.Errorf("%s: a token of AWS is for one endpoint: name one host in postgres.dsn, or a store for each", flag)
		}
	}
	return nil
}

// local is a socket's folder or this machine, where a proxy may listen.
func local(host string) bool {
	if len(host) > 0 && (host[0] == '/' || host[0] == '@') || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
