package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/term"

	"oncewatch/collectors"
	"oncewatch/collectors/httpclient"
	"oncewatch/collectors/replay"
)

// memoryLimit of Go's heap while records are read, in bytes: with the program
// itself it stays below 100 MB.
const memoryLimit = 56 << 20

type replayCmd struct {
	collectors.Config
	Group     string            `required:"" help:"The consumer group that would be reset."`
	Topic     string            `help:"Only this topic. Default: all that the group has offsets on."`
	To        string            `default:"earliest" placeholder:"TARGET" help:"Where it would be reset to: earliest, a time (RFC 3339), a time ago such as -36h, or offset:N."`
	Exporter  string            `placeholder:"URL" help:"Ask a running exporter, which knows what vanished over time. Default: look by itself."`
	HTTP      httpclient.Config `embed:"" prefix:"exporter."`
	Database  string            `placeholder:"NAME" help:"The store whose markers count, where several have markers of the group."`
	Verify    bool              `help:"Read the records between target and offsets, in no group, and look each event id up: exact without any history."`
	EventID   string            `default:"header:event_id" placeholder:"WHERE" help:"Where records carry their event id: header:NAME, key or json:/path/in/value."`
	RateLimit float64           `placeholder:"RECORDS_PER_S" help:"Read no faster than this many records a second."`
	Plan      string            `placeholder:"FILE" type:"path" help:"Write the offsets to reset to, never below what is safe, for kafka-consumer-groups --reset-offsets --from-file."`
	Output    string            `default:"text" enum:"text,json" help:"${enum}."`
}

func (c *replayCmd) Run(ctx context.Context, env *environment) error {
	if c.RateLimit < 0 {
		return fmt.Errorf("--rate-limit: %v is negative: leave it out for no limit", c.RateLimit)
	}
	if err := writable(c.Plan); err != nil {
		return err
	}
	if c.Verify {
		// What a long reading leaves behind is collected before it adds up.
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit))
	}
	a, err := c.answer(ctx, env)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		err = a.JSON(env.stdout)
	} else {
		err = a.Text(env.stdout)
	}
	if err == nil && c.Plan != "" {
		err = c.plan(a, env.stderr)
	}
	if err != nil {
		return err
	}
	if code := a.ExitCode(); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

func (c *replayCmd) answer(ctx context.Context, env *environment) (*replay.Answer, error) {
	q := replay.Question{Group: c.Group, Topic: c.Topic, To: c.To, Database: c.Database}
	if c.Exporter != "" {
		if c.Verify {
			return nil, errors.New("--exporter and --verify are two ways to know: set one of them")
		}
		if err := c.HTTP.Validate("--exporter."); err != nil {
			return nil, err
		}
		client, err := httpclient.New(c.HTTP, "--exporter.")
		if err != nil {
			return nil, err
		}
		defer client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return replay.Ask(ctx, client, c.Exporter, q)
	}
	if err := c.LoadStores(env.file); err != nil {
		return nil, err
	}
	bar := replay.NewBar(env.stderr, terminalWidth(env.stderr))
	defer bar.Clear()
	return collectors.Replay(ctx, c.Config, q,
		collectors.ReplayLook{Verify: c.Verify, EventID: c.EventID, RateLimit: c.RateLimit, Progress: bar.Show, Counting: bar.Counting},
		slog.New(slog.DiscardHandler))
}

// plan writes the plan, and says what to do with it.
func (c *replayCmd) plan(a *replay.Answer, w io.Writer) error {
	if a.Partial != "" {
		return fmt.Errorf("--plan: %s is not written: the answer is partial", c.Plan)
	}
	var text strings.Builder
	if err := a.WritePlan(&text); err != nil {
		return err
	}
	if err := os.WriteFile(c.Plan, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("--plan: %w", err)
	}
	brokers := strings.Join(c.Kafka.Brokers, ",")
	if c.Exporter != "" {
		brokers = "$BROKERS"
	}
	_, err := fmt.Fprintf(w, "The plan is in %s. Stop the pruner and the group's members, then:\n  kafka-consumer-groups.sh --bootstrap-server %s --group %s --reset-offsets --from-file %s --dry-run\nand with --execute in place of --dry-run.\n",
		c.Plan, brokers, replay.ShellWord(c.Group), replay.ShellWord(c.Plan))
	return err
}

// writable says early that a plan could not be written.
func writable(path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(filepath.Dir(path))
	var pe *fs.PathError
	switch {
	case errors.As(err, &pe):
		return fmt.Errorf("--plan: %s: %w", filepath.Dir(path), pe.Err)
	case err != nil:
		return fmt.Errorf("--plan: %w", err)
	case !info.IsDir():
		return fmt.Errorf("--plan: %s is no folder", filepath.Dir(path))
	}
	return nil
}

// terminalWidth is 0 where w is no terminal.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}
