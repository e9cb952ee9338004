package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// settings of a connection as it was opened: what decides where markers go and
// whether they last. Each transaction begins from them, whatever an earlier
// one, or another client of a pooler, left on the server's session.
type settings struct{ searchPath, synchronousCommit string }

// settingsKey under which a connection keeps its settings.
const settingsKey = "oncewatch/inbox"

// reset_val is what RESET would restore: from the connection string, the role,
// the database or the server, never from a SET.
const learnSQL = `SELECT (SELECT reset_val FROM pg_settings WHERE name = 'search_path'), (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')`

// ErrSimpleProtocol says that the pool is configured for the simple protocol,
// in which one string may hold several statements.
var ErrSimpleProtocol = errors.New("the pool uses the simple protocol, in which a handler's string could hold a second statement that ends the transaction: set default_query_exec_mode=cache_describe (right behind pgbouncer too), or leave it out")

// learnSettings asks a new connection for its settings.
func (s *session) learnSettings(ctx context.Context) error {
	custom := s.conn.PgConn().CustomData()
	if known, ok := custom[settingsKey].(settings); ok {
		s.settings = known
		return nil
	}
	if s.conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return ErrSimpleProtocol
	}
	if err := s.conn.QueryRow(ctx, learnSQL).Scan(&s.settings.searchPath, &s.settings.synchronousCommit); err != nil {
		return fmt.Errorf("read the connection's settings: %w", err)
	}
	custom[settingsKey] = s.settings
	return nil
}

const (
	beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"
	// Local to the transaction: a pooled connection, or one behind pgbouncer,
	// must not keep them.
	settingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true),
set_config('search_path', $3, true), set_config('synchronous_commit', $4, true)`

	// stateSQL is all that a statement could change of the transaction, of where
	// the tables are found and of who writes: read when the markers are written
	// and again when the handlers are done. The transaction's own time is
	// different in any other transaction.
	stateSQL = `SELECT concat_ws(' ', transaction_timestamp(), current_setting('search_path'), current_setting('synchronous_commit'),
current_setting('session_replication_role'), current_setting('transaction_isolation'), current_setting('transaction_read_only'),
current_setting('idle_in_transaction_session_timeout'), current_user, session_user,
to_regclass('processed_events')::oid, to_regclass('consumer_progress')::oid, to_regclass('dead_letters')::oid)`
)

// begin queues the opening of a transaction.
func (s *session) begin(pipe *pgx.Batch, statement, idle string) {
	pipe.Queue(beginSQL)
	pipe.Queue(settingsSQL, statement, idle, s.settings.searchPath, s.settings.synchronousCommit)
	pipe.Queue(stateSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&s.state) })
}

// ErrSession says that a handler changed what the transaction rests on: it
// would write the markers of other events elsewhere, or not for good.
var ErrSession = errors.New("the handler changed the transaction's settings (search path, durability, role or isolation), or what the markers' tables are called; that belongs to the inbox")

// check that nothing was changed by what was sent before.
func (s *session) check(row pgx.Row) error {
	var state string
	if err := row.Scan(&state); err != nil {
		return err
	}
	if state != s.state {
		return ErrSession
	}
	return nil
}
