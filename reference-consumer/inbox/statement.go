package inbox

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrTransactionControl says that a handler tried to end or begin a
// transaction. It would commit markers without their effects.
var ErrTransactionControl = errors.New("the handler must not control the transaction: COMMIT, ROLLBACK, BEGIN, SAVEPOINT and PREPARE belong to the inbox")

// refuse statements that would leave the transaction or change its session.
// What a handler sends goes by the extended protocol, which takes one statement
// at a time, so the first word decides; within DO and CALL the server itself
// refuses to end a transaction that it was not asked to begin there. What
// changes settings from inside a function is found by stateSQL.
func refuse(sql string, args []any) error {
	if len(args) > 0 {
		switch args[0].(type) {
		case pgx.NamedArgs, pgx.StrictNamedArgs:
		case pgx.QueryRewriter, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			return fmt.Errorf("%w; %T among the arguments would reach the connection itself", ErrTransactionControl, args[0])
		}
	}
	first, rest := word(sql)
	switch first {
	case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE":
		return fmt.Errorf("%w: %q", ErrTransactionControl, sql)
	case "SET":
		// LOCAL ends with the transaction; CONSTRAINTS is about it alone.
		if second, _ := word(rest); second != "LOCAL" && second != "CONSTRAINTS" {
			return fmt.Errorf("%w: %q outlives the transaction on a pooled connection: use SET LOCAL", ErrSession, sql)
		}
	case "RESET", "DISCARD", "DEALLOCATE", "LISTEN", "UNLISTEN", "LOAD":
		return fmt.Errorf("%w: %q outlives the transaction on a pooled connection", ErrSession, sql)
	case "COPY":
		return fmt.Errorf("%w: %q would take over the connection: use INSERT … SELECT FROM unnest(…)", ErrSession, sql)
	}
	return nil
}

// word returns the first word of a statement, in capitals, and what follows.
func word(sql string) (first, rest string) {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v;")
		switch {
		case strings.HasPrefix(sql, "--"):
			end := strings.IndexAny(sql, "\r\n")
			if end < 0 {
				return "", ""
			}
			sql = sql[end:]
			continue
		case strings.HasPrefix(sql, "/*"):
			sql = skipComment(sql)
			continue
		}
		break
	}
	end := 0
	for end < len(sql) && (sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z') {
		end++
	}
	return strings.ToUpper(sql[:end]), sql[end:]
}

// skipComment returns what follows a block comment; they nest in PostgreSQL.
func skipComment(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return sql[i+1:]
			}
		}
	}
	return ""
}
