package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"oncewatch/collectors/poll"
)

// explain gives a database error its kind and says what to do about it. what
// names the thing that was read.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	var known *poll.KindError
	if errors.As(err, &known) {
		return err
	}
	kind, remedy := "failed", ""
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &pg):
		kind, remedy = explainCode(pg)
	case errors.As(err, &connect):
		kind, remedy = "unreachable", "check postgres.dsn (or PGHOST, PGPORT) and that the server runs"
		switch text := err.Error(); {
		case strings.Contains(text, "refused TLS"):
			remedy = "the server has TLS off: switch it on there, or set sslmode=disable in postgres.dsn (or PGSSLMODE)"
		case strings.Contains(text, "tls error"), strings.Contains(text, "x509: "):
			remedy = "see sslmode and sslrootcert of postgres.dsn (or PGSSLMODE, PGSSLROOTCERT)"
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errSpent):
		kind = "timeout"
	case errors.As(err, &network), pgconn.SafeToRetry(err), strings.Contains(err.Error(), "conn closed"):
		kind, remedy = "unreachable", "the connection was lost; it is made anew at the next poll"
	}
	if remedy != "" {
		err = fmt.Errorf("%s: %w: %s", what, err, remedy)
	} else {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return &poll.KindError{Kind: kind, Err: err}
}

func explainCode(pg *pgconn.PgError) (kind, remedy string) {
	switch {
	case pg.Code == "42501" && strings.Contains(pg.Message, "row-level security"):
		return "row_security", "its policies would hide rows from the counts: grant the role BYPASSRLS or use one that the policies do not apply to"
	case pg.Code == "42501" && strings.Contains(pg.Message, "for database"):
		return "denied", "GRANT CONNECT ON DATABASE to the role of postgres.dsn"
	case pg.Code == "42501" && strings.Contains(pg.Message, "for schema"):
		return "denied", "GRANT USAGE ON SCHEMA to the role of postgres.dsn"
	case pg.Code == "42501":
		return "denied", "GRANT SELECT on it to the role of postgres.dsn"
	case pg.Code == "28P01", pg.Code == "28000":
		return "denied", "check user, password and passfile of postgres.dsn and the server's pg_hba.conf"
	case pg.Code == "3D000":
		return "missing", "check the database name in postgres.dsn"
	case pg.Code == "42P01":
		return "missing", "check postgres.table; it is looked for at every poll"
	case pg.Code == "42703":
		return "missing", "check postgres.column.*"
	case pg.Code == "25P03", pg.Code == "25P04": // idle in transaction, transaction timeout
		return "timeout", "the exporter was kept from running and the server ended its snapshot: give it more CPU; tried again at the next poll"
	case pg.Code == "57014", pg.Code == "55P03":
		return "timeout", "something holds a lock on it or the server is overloaded; tried again at the next poll"
	case pg.Code == "57P03", strings.HasPrefix(pg.Code, "57P"), strings.HasPrefix(pg.Code, "08"):
		return "unreachable", "the server is starting or stopping; tried again at the next poll"
	case pg.Code == "53300":
		return "overloaded", "each process that logs in as the role needs 2 connections: see the role's CONNECTION LIMIT and the server's max_connections"
	case strings.HasPrefix(pg.Code, "53"):
		return "overloaded", "the server is out of a resource, such as memory or disk"
	case pg.Code == "22023" && pg.SeverityUnlocalized == "FATAL": // when connecting
		return "malformed", "check the options of postgres.dsn (or PGOPTIONS)"
	case pg.Code == "22023": // invalid_parameter_value: of all we send, a time zone
		return "malformed", "set postgres.time-zone to a name that the server knows (SELECT name FROM pg_timezone_names), such as Europe/Berlin"
	case strings.HasPrefix(pg.Code, "22"):
		return "malformed", "a row of it cannot be read"
	case strings.HasPrefix(pg.Code, "40"):
		return "conflict", "cancelled by recovery or a conflict; tried again at the next poll"
	}
	return "failed", ""
}

// code is the SQLSTATE of an error, empty where it has none.
func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// timedOut says whether a statement ran into one of its own bounds, or was not
// begun for want of time.
func timedOut(err error) bool { return code(err) == "57014" || errors.Is(err, errSpent) }
