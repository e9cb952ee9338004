// Oncewatch watches whether every event is applied once: it exports what the
// markers of idempotent Kafka consumers and the broker tell together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/common/version"
	"golang.org/x/term"

	"oncewatch/alerts"
	"oncewatch/alerts/against"
	"oncewatch/collectors"
	"oncewatch/collectors/checklist"
	"oncewatch/collectors/config"
	"oncewatch/collectors/conform"
	"oncewatch/collectors/logsample"
	"oncewatch/collectors/web"
	"oncewatch/dashboards"
	"oncewatch/deploy/demo"
)

// Exit codes beside 0.
const (
	exitDoesNotHold = 1 // check: something does not hold
	exitUnusable    = 2 // the configuration is unusable, or check could not check
)

type cli struct {
	ConfigFile config.FileFlag  `name:"config.file" placeholder:"FILE" help:"YAML file with a key for every flag, nested or dotted; flags and environment win over it."`
	Log        config.Log       `embed:"" prefix:"log."`
	Version    kong.VersionFlag `help:"Print the version and exit." env:"-"`

	Serve        serveCmd        `cmd:"" default:"withargs" help:"Run the exporter (the default command)."`
	Check        checkCmd        `cmd:"" help:"Audit the checklist once against the live database and broker."`
	CheckMetrics checkMetricsCmd `cmd:"" help:"Read metrics pages of any consumer or exporter and say what rules, dashboards and page would miss on them."`
	Replay       replayCmd       `cmd:"" help:"Before a reset of a group's offsets: what would be applied twice, how far back is safe, and the offsets to reset to."`
	Demo         demoCmd         `cmd:"" help:"Run everything on this machine with nothing set up: PostgreSQL, a Kafka broker, producer, consumer, exporter."`
	Rules        rulesCmd        `cmd:"" help:"Write the alert rules to standard output."`
	Dashboards   dashboardsCmd   `cmd:"" help:"Write the Grafana dashboards as JSON files."`
}

func main() {
	// A release stamps it; a plain build has it from the checkout's tag or commit.
	if build, ok := debug.ReadBuildInfo(); ok && version.Version == "" {
		version.Version = build.Main.Version
	}
	// What a poll leaves behind is collected early: a quarter of the snapshots'
	// memory instead of as much again, for a hundredth of a core.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	loaded := &config.Loaded{Lists: []string{"stores"}}
	exit := -1
	parser, err := newParser(&c, loaded,
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
	)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "oncewatch:", err)
		return exitUnusable
	}
	parsed, err := parser.Parse(args)
	if exit >= 0 { // --help and --version have printed and are done
		return exit
	}
	if err == nil {
		err = parsed.Run(&environment{cli: &c, file: loaded.File, stdout: stdout, stderr: stderr})
	}
	var coded *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		if coded.err != nil {
			_, _ = fmt.Fprintln(stderr, "oncewatch:", coded.err)
		}
		return coded.code
	}
	_, _ = fmt.Fprintln(stderr, "oncewatch:", err)
	return exitUnusable
}

func newParser(c *cli, loaded *config.Loaded, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(c, append(append(config.Options("ONCEWATCH"),
		kong.Name("oncewatch"),
		kong.Description("Tells whether every event is really applied once."),
		kong.Vars{"version": version.Print("oncewatch"), "demo_faults": demo.FaultNames()},
		kong.Bind(loaded),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	), options...)...)
}

// exitError carries an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

// environment is what the commands need beside their flags.
type environment struct {
	cli            *cli
	file           *config.File
	stdout, stderr io.Writer
}

type serveCmd struct {
	collectors.Config
	Web web.Config `embed:"" prefix:"web."`
}

func (c *serveCmd) Run(ctx context.Context, env *environment) error {
	log, err := env.cli.Log.New(env.stderr)
	if err != nil {
		return err
	}
	if err := c.LoadStores(env.file); err != nil {
		return err
	}
	return collectors.Serve(ctx, c.Config, c.Web, log, nil)
}

type checkCmd struct {
	collectors.Config
	Output  string        `default:"text" enum:"text,json" help:"${enum}."`
	FailOn  string        `default:"violated" enum:"warning,violated" help:"Exit with 1 from this verdict on: ${enum}."`
	Timeout time.Duration `default:"2m" help:"Time the whole audit may take."`
	Logs    string        `placeholder:"FILE" env:"-" help:"A sample of the consumers' log in JSON or logfmt, or - for standard input: judges whether lines about events carry event_id, consumer_group and position."`
	DryRun  bool          `help:"Validate the configuration and connect to nothing."`
}

func (c *checkCmd) Run(ctx context.Context, env *environment) error {
	if err := c.LoadStores(env.file); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout: %s is no time: want for example 2m", c.Timeout)
	}
	if c.DryRun {
		targets, err := c.Targets()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(env.stdout, "The configuration is usable; nothing was connected to. It would be asked:\n  %s\n", strings.Join(targets, "\n  "))
		return err
	}
	var logs *logsample.Sample
	if c.Logs != "" {
		in, close, err := open(c.Logs)
		if err != nil {
			return fmt.Errorf("--logs: %w", err)
		}
		defer close()
		if logs, err = logsample.Read(in); err != nil {
			return fmt.Errorf("--logs: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	// What could not be read is in the report; the log would say it twice.
	report, err := collectors.Check(ctx, c.Config, logs, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if c.Output == "json" {
		err = report.JSON(env.stdout)
	} else {
		colour, width := terminal(env.stdout)
		err = report.Text(env.stdout, colour, width)
	}
	var limit checklist.Verdict
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return &exitError{code: exitUnusable, err: fmt.Errorf("the audit is not complete: %w", context.Cause(ctx))}
	case !report.Whole():
		return &exitError{code: exitUnusable}
	case limit.UnmarshalText([]byte(c.FailOn)) == nil && report.Fails(limit):
		return &exitError{code: exitDoesNotHold}
	}
	return nil
}

// open opens a file, or standard input as -.
func open(name string) (in io.Reader, close func(), err error) {
	if name == "-" {
		return os.Stdin, func() {}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { _ = f.Close() }, nil
}

// terminal says whether to colour what is written, and how wide it may be.
func terminal(w io.Writer) (colour bool, width int) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return false, 100
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		width = 100
	}
	_, plain := os.LookupEnv("NO_COLOR")
	return !plain, width
}

// thresholds are what rules and dashboards are made from.
type thresholds struct {
	collectors.Thresholds
	RunbookBase string `placeholder:"URL" help:"Address under which alerts/runbooks/ is served, for example http://oncewatch:10077/runbooks: the exporter serves it."`
}

type rulesCmd struct {
	thresholds
	Format string `default:"prometheus" enum:"prometheus,operator" help:"A rule file or a PrometheusRule object: ${enum}."`
	List   bool   `help:"List the thresholds with their defaults instead." env:"-"`

	Relabel bool   `env:"-" help:"Write Prometheus' metric_relabel_configs for the names of --metrics.map instead."`
	Map     string `name:"metrics.map" placeholder:"FILE" type:"path" help:"YAML file of the names and labels under which you export the metrics."`

	CheckAgainst string `placeholder:"URL" env:"-" help:"Instead, ask the Prometheus at this address: which alerts lack their metrics there, which windows are too short, and what each alert would say now."`
}

func (c *rulesCmd) Run(ctx context.Context, env *environment) error {
	if c.List {
		w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
		for _, v := range alerts.Values() {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", v.Key, v.Default, v.Unit, v.Doc)
		}
		return w.Flush()
	}
	if c.Relabel || c.Map != "" {
		return c.relabel(env.stdout)
	}
	options := alerts.Options{Format: c.Format, Set: c.Set, ValuesFile: c.Values, RunbookBase: c.RunbookBase}
	if c.CheckAgainst != "" {
		return against.Check(ctx, env.stdout, &http.Client{Timeout: time.Minute}, c.CheckAgainst, options)
	}
	return alerts.Render(env.stdout, options)
}

func (c *rulesCmd) relabel(w io.Writer) error {
	if !c.Relabel || c.Map == "" {
		return errors.New("--relabel and --metrics.map belong together: set both")
	}
	m, err := conform.LoadMapping(c.Map)
	if err != nil {
		return err
	}
	text, err := m.YAML()
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

type dashboardsCmd struct {
	thresholds
	OutputDir     string `default:"." type:"path" help:"Folder to write into; it is made if needed."`
	AskDataSource bool   `env:"-" help:"For import by hand: Grafana then asks which Prometheus to use. Not for provisioning or a sidecar, which ask nobody."`
	Loki          string `placeholder:"FORMAT" help:"Also write a dashboard for Loki of log lines that lack a field; the format of the consumers' logs, json or logfmt."`
}

func (c *dashboardsCmd) Run(env *environment) error {
	if err := dashboards.Write(c.OutputDir, dashboards.Options{
		Set: c.Set, ValuesFile: c.Values, RunbookBase: c.RunbookBase, AskDataSource: c.AskDataSource, Loki: c.Loki,
	}); err != nil {
		return err
	}
	_, err := fmt.Fprintln(env.stdout, "The dashboards are in", c.OutputDir)
	return err
}

type demoCmd struct {
	demo.Options
}

func (c *demoCmd) Run(ctx context.Context, env *environment) error {
	log, err := env.cli.Log.New(env.stderr)
	if err != nil {
		return err
	}
	return demo.Run(ctx, c.Options, env.stdout, log)
}
