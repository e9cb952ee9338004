// The reference consumer: events from Kafka applied exactly once to
// PostgreSQL, with the runbook's processed-events table.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/prometheus/common/version"

	"oncewatch/collectors/config"
	"oncewatch/reference-consumer/prune"
	"oncewatch/reference-consumer/stream"
)

// Exit codes: 1 something went wrong that another start may mend, 2 unusable
// flags, 78 (EX_CONFIG) the surroundings break what exactly-once rests on, and
// no restart mends that.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 78
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs the program and returns its exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var cli CLI
	exited := -1
	parser, err := kong.New(&cli, append(config.Options("REFERENCE_CONSUMER"),
		kong.Name("reference-consumer"),
		kong.Description("Applies events from Kafka exactly once to PostgreSQL. Every flag can be given as REFERENCE_CONSUMER_… in the environment."),
		kong.Vars{"version": version.Print("reference-consumer")},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }),
		kong.UsageOnError(),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&output{stdout, stderr}, &config.Loaded{}),
	)...)
	if err != nil {
		fmt.Fprintln(stderr, "reference-consumer:", err)
		return exitUsage
	}
	kctx, err := parser.Parse(args)
	if exited >= 0 { // --help, --version
		return exited
	}
	if err != nil {
		fmt.Fprintln(stderr, "reference-consumer:", err)
		return exitUsage
	}
	err = kctx.Run(&cli.Shared)
	var startup *stream.RefusedError
	var pruning *prune.RefusedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &startup) && startup.Passes():
		fmt.Fprintln(stderr, err)
		return exitFailed
	case errors.As(err, &startup), errors.As(err, &pruning):
		fmt.Fprintln(stderr, err)
		return exitRefused
	default:
		fmt.Fprintln(stderr, "reference-consumer:", err)
		return exitFailed
	}
}
