package telemetry

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kerr"
)

type reasoned struct{}

func (reasoned) Error() string     { return "no" }
func (reasoned) ErrorType() string { return "decode" }

// error.type is what sorts errors, not the Go type that wraps them.
func TestErrorType(t *testing.T) {
	for want, err := range map[string]error{
		"23514":              fmt.Errorf("event 5: %w", &pgconn.PgError{Code: "23514"}),
		"decode":             fmt.Errorf("event 5: %w", reasoned{}),
		"ILLEGAL_GENERATION": errors.Join(kerr.IllegalGeneration),
		"timeout":            fmt.Errorf("commit: %w", context.DeadlineExceeded),
		"canceled":           context.Canceled,
		"_OTHER":             errors.New("something else"),
	} {
		if got := errorType(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
