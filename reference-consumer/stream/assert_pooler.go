package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// protocolViolations says whether statements reach the server as they must: by
// the extended protocol, and behind a pooler without named statements that
// another of its connections does not know.
func protocolViolations(ctx context.Context, pool *pgxpool.Pool) ([]Violation, error) {
	mode := pool.Config().ConnConfig.DefaultQueryExecMode
	if mode == pgx.QueryExecModeSimpleProtocol {
		return []Violation{{AssertProtocol, "default_query_exec_mode=simple_protocol: a handler's string could hold a second statement that ends the transaction; set default_query_exec_mode=cache_describe, or leave it out"}}, nil
	}
	if mode == pgx.QueryExecModeExec {
		return []Violation{{AssertProtocol, "default_query_exec_mode=exec: parameters are sent without the types the server expects, which fails for some; set default_query_exec_mode=cache_describe, or leave it out"}}, nil
	}
	if mode == pgx.QueryExecModeCacheDescribe {
		return nil, nil
	}
	pooled, err := behindPooler(ctx, pool)
	if err != nil || !pooled {
		return nil, err
	}
	if mode == pgx.QueryExecModeDescribeExec {
		return []Violation{{AssertProtocol, "default_query_exec_mode=describe_exec behind a pooler: what was described may be executed on another of its connections; set default_query_exec_mode=cache_describe"}}, nil
	}
	switch lost, err := statementsGetLost(ctx, pool); {
	case err != nil:
		return nil, err
	case lost:
		return []Violation{{AssertProtocol, "the database is behind a pooler that hands transactions to different connections without their prepared statements (pgbouncer in transaction mode): add default_query_exec_mode=cache_describe to the connection string, or set max_prepared_statements in pgbouncer 1.21 or later"}}, nil
	}
	return nil, nil
}

// behindPooler: who answered the connection is not the server process that
// answers its statements.
func behindPooler(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer c.Release()
	var backend uint32
	if err := c.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&backend); err != nil {
		return false, fmt.Errorf("look for a pooler: %w", err)
	}
	return backend != c.Conn().PgConn().PID(), nil
}

// poolerProbe bounds the look: a pooler with a single connection to the server
// would keep the second client waiting.
const poolerProbe = 3 * time.Second

// statementsGetLost prepares a statement on one connection, lets another take
// the pooler's idle server connection, and uses the statement then.
func statementsGetLost(ctx context.Context, pool *pgxpool.Pool) (lost bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, poolerProbe)
	defer cancel()
	const name = "oncewatch_probe"
	first, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		return false, fmt.Errorf("look at the pooler: %w", err)
	}
	defer func() { _ = first.Close(context.WithoutCancel(ctx)) }()
	second, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		return false, fmt.Errorf("look at the pooler: %w", err)
	}
	defer func() { _ = second.Close(context.WithoutCancel(ctx)) }()
	if _, err := first.Prepare(ctx, name, "SELECT 1"); err != nil {
		return lostStatement(err), unlessLost(err)
	}
	tx, err := second.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("look at the pooler: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "SELECT pg_backend_pid()"); err != nil {
		return false, fmt.Errorf("look at the pooler: %w", err)
	}
	rows, err := first.Query(ctx, name)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true, nil // one connection to the server: it cannot be told, so it is not trusted
	}
	return lostStatement(err), unlessLost(err)
}

// lostStatement: the server connection does not know the statement, or knows
// another's of that name.
func lostStatement(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "26000" || pg.Code == "42P05")
}

func unlessLost(err error) error {
	if err == nil || lostStatement(err) {
		return nil
	}
	return fmt.Errorf("look at the pooler: %w", err)
}
