package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel"
	"golang.org/x/sync/errgroup"

	"oncewatch/collectors/config"
	"oncewatch/reference-consumer/deadletter"
	"oncewatch/reference-consumer/outbox"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/prune"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/telemetry"
)

// CLI of the program.
type CLI struct {
	Shared
	ConfigFile  config.FileFlag  `name:"config.file" placeholder:"FILE" help:"YAML file with a key for every flag, nested or dotted; flags and environment win over it."`
	Version     kong.VersionFlag `help:"Print the version and exit." env:"-"`
	Run         runCmd           `cmd:"" help:"Consume, until SIGTERM or SIGINT."`
	Produce     produceCmd       `cmd:"" help:"Publish sample payments."`
	Prune       pruneCmd         `cmd:"" help:"Delete markers past their retention."`
	Migrate     migrateCmd       `cmd:"" help:"Create or upgrade the tables."`
	Deadletters deadletterCmd    `cmd:"" help:"Inspect what could not be applied, and send it again."`
}

type runCmd struct {
	BatchSize           int           `default:"200" help:"Most events a transaction; 1: one transaction an event."`
	Allow               []string      `placeholder:"NAME" help:"Waive a startup assertion."`
	Retention           time.Duration `default:"8d" help:"How long the pruner keeps markers (0: for ever); must exceed the topic's retention."`
	RedeliverFrom       []string      `placeholder:"TOPIC" help:"Further topics events may come back from, such as a retry topic."`
	EventID             string        `name:"event-id" enum:"header,key" default:"header" help:"Where the event id is: the header event_id, or the record's key."`
	SetBased            bool          `help:"Apply a batch's effects in one statement."`
	InstanceID          string        `name:"instance-id" help:"Static membership: a name of this instance's own."`
	ServerSideBalancing bool          `help:"Use the group protocol of KIP-848 (Kafka 4.0 and later)."`
	SessionTimeout      time.Duration `default:"30s" help:"Group session timeout."`
	RebalanceTimeout    time.Duration `default:"60s" help:"Group rebalance timeout."`
	ShutdownTimeout     time.Duration `default:"15s" help:"Most time to finish after SIGTERM."`
	Notify              string        `placeholder:"URL" help:"Deliver confirmations from the outbox to this address."`
	NotifyPer           string        `enum:"operation,event" default:"operation" help:"Identity of a confirmation: the business operation, or the event."`
}

func (r *runCmd) Run(ctx context.Context, s *Shared, out *output) error {
	log, err := s.Log.New(out.stderr)
	if err != nil {
		return err
	}
	client, err := s.Kafka.Options()
	if err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	var ready atomic.Bool
	stop, err := s.serve(reg, log, ready.Load)
	if err != nil {
		return err
	}
	defer stop()
	traceErrors(log)
	tracer, err := telemetry.StartTracer(ctx, reg, s.Group, r.BatchSize)
	if err != nil {
		return err
	}
	defer flush(tracer, log)
	cfg := payments.Config{
		DSN: s.Postgres.DSN, MaxConnections: s.Postgres.MaxConnections, Client: client, Topic: s.Topic, Group: s.Group,
		IDFromKey: r.EventID == "key", SetBased: r.SetBased, MarkerRetention: r.Retention, RedeliverFrom: r.RedeliverFrom, Allow: r.Allow,
		Notify: payments.NotifyNever, Registerer: reg, Tracer: tracer, Log: log,
	}
	cfg.Stream.BatchSize, cfg.Stream.InstanceID, cfg.Stream.ServerSideBalancing = r.BatchSize, r.InstanceID, r.ServerSideBalancing
	cfg.Stream.SessionTimeout, cfg.Stream.RebalanceTimeout, cfg.Stream.ShutdownTimeout = r.SessionTimeout, r.RebalanceTimeout, r.ShutdownTimeout
	cfg.Stream.Assigned = func(map[string][]int32) { ready.Store(true) }
	g, ctx := errgroup.WithContext(ctx)
	if r.Notify != "" {
		cfg.Notify = payments.NotifyPer(r.NotifyPer)
		pool, err := payments.Pool(ctx, s.Postgres.DSN, 4)
		if err != nil {
			return err
		}
		defer pool.Close()
		g.Go(func() error {
			return outbox.Run(ctx, outbox.Config{Pool: pool, Group: s.Group, Endpoint: r.Notify, Registerer: reg, Log: log})
		})
	}
	g.Go(func() error { return payments.Run(ctx, cfg) })
	return g.Wait()
}

// check refuses values that would otherwise be taken for something else.
func (r *runCmd) check() error {
	if r.BatchSize < 1 {
		return fmt.Errorf("--batch-size=%d: at least 1", r.BatchSize)
	}
	if r.Retention < 0 {
		return fmt.Errorf("--retention=%s: not below 0, which means for ever", r.Retention)
	}
	for flag, d := range map[string]time.Duration{"session-timeout": r.SessionTimeout, "rebalance-timeout": r.RebalanceTimeout, "shutdown-timeout": r.ShutdownTimeout} {
		if d <= 0 {
			return fmt.Errorf("--%s=%s: must be positive", flag, d)
		}
	}
	if r.Notify == "" {
		return nil
	}
	if u, err := url.Parse(r.Notify); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("--notify: no URL: give it as http://host/path")
	}
	return nil
}

type produceCmd struct {
	Count      int64   `help:"Events to publish; 0: until stopped."`
	Rate       float64 `default:"100" help:"Events per second; 0: as fast as possible."`
	Duplicates float64 `default:"0.005" help:"Share of events published twice."`
	ReuseIDs   float64 `name:"reuse-ids" help:"Share of events that get the id of an earlier one."`
	Gaps       float64 `help:"Share of events that are numbered but not published."`
	Poison     float64 `help:"Share of events that cannot be applied."`
	Partitions int32   `help:"Create the topic with so many partitions if it does not exist."`
	Accounts   int     `default:"1000" help:"Accounts to pay into."`
}

func (p *produceCmd) Run(ctx context.Context, s *Shared, out *output) error {
	log, err := s.Log.New(out.stderr)
	if err != nil {
		return err
	}
	client, err := s.Kafka.Options()
	if err != nil {
		return err
	}
	traceErrors(log)
	tracer, err := telemetry.StartTracer(ctx, prometheus.NewRegistry(), "", 1)
	if err != nil {
		return err
	}
	defer flush(tracer, log)
	stats, err := produce.Run(ctx, produce.Config{Client: client, Tracer: tracer, Topic: s.Topic, Partitions: p.Partitions, Count: p.Count, Rate: p.Rate,
		Duplicates: p.Duplicates, ReuseIDs: p.ReuseIDs, Gaps: p.Gaps, Poison: p.Poison, Accounts: p.Accounts, Log: log})
	fmt.Fprintf(out.stdout, "published %d events: %d twice, %d with a reused id, %d left out, %d poisoned\n", stats.Events, stats.Duplicates, stats.ReusedIDs, stats.Gaps, stats.Poison)
	return err
}

// traceErrors sends what the trace SDK has to complain about to the log, at a
// level at which an endpoint that is down does not drown the rest.
func traceErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("traces", "error", err) }))
}

// flush exports the last spans; an endpoint that hangs does not keep the
// program from ending.
func flush(t *telemetry.Tracer, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := t.Shutdown(ctx); err != nil {
		log.Warn("the last spans could not be exported", "error", err)
	}
}

type pruneCmd struct {
	Retention time.Duration `default:"8d" help:"How long to keep markers."`
	Once      bool          `help:"Prune once and exit."`
	Batch     int           `default:"10000" help:"Most rows one statement deletes."`
	Pause     time.Duration `default:"200ms" help:"Rest between two statements."`
	Every     time.Duration `default:"1m" help:"Time between two runs."`
	Allow     []string      `placeholder:"NAME" help:"Waive an assertion: marker-retention."`
}

func (p *pruneCmd) Run(ctx context.Context, s *Shared, out *output) error {
	log, err := s.Log.New(out.stderr)
	if err != nil {
		return err
	}
	if p.Retention <= 0 || p.Batch <= 0 || p.Every <= 0 || p.Pause < 0 {
		return errors.New("--retention, --batch and --every must be positive, --pause not negative")
	}
	client, err := s.Kafka.Options()
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	if !p.Once {
		stop, err := s.serve(reg, log, func() bool { return true })
		if err != nil {
			return err
		}
		defer stop()
	}
	return prune.Run(ctx, prune.Config{DSN: s.Postgres.DSN, Client: client, Topics: []string{s.Topic}, Retention: p.Retention, Once: p.Once,
		Batch: p.Batch, Pause: p.Pause, Every: p.Every, Allow: p.Allow, Registerer: reg, Log: log})
}

type migrateCmd struct {
	Partitioned bool `help:"Create processed_events partitioned by range of the UUIDv7 event id."`
}

func (m *migrateCmd) Run(ctx context.Context, s *Shared, out *output) error {
	log, err := s.Log.New(out.stderr)
	if err != nil {
		return err
	}
	if err := schema.Migrate(ctx, s.Postgres.DSN, schema.Options{Partitioned: m.Partitioned, Log: log}); err != nil {
		return err
	}
	fmt.Fprintf(out.stdout, "the schema is at version %d\n", schema.Version())
	return nil
}

type deadletterCmd struct {
	List    listCmd    `cmd:"" help:"List dead letters of the group, newest first."`
	Show    showCmd    `cmd:"" help:"Show one dead letter as JSON; key, value and headers in base64."`
	Requeue requeueCmd `cmd:"" help:"Publish dead letters to their topic again, with the same event id."`
}

type listCmd struct {
	Reason   string `help:"Only of this reason."`
	EventID  string `name:"event-id" help:"Only of this event."`
	Requeued bool   `help:"Also those that were sent again."`
	Limit    int    `default:"100" help:"Most lines."`
	Output   string `enum:"table,json" default:"table" help:"table or json."`
}

func (l *listCmd) Run(ctx context.Context, s *Shared, out *output) error {
	pool, err := payments.Pool(ctx, s.Postgres.DSN, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	letters, err := deadletter.List(ctx, pool, deadletter.Filter{Group: s.Group, Reason: l.Reason, EventID: l.EventID, Requeued: l.Requeued, Limit: l.Limit})
	if err != nil {
		return err
	}
	if l.Output == "json" {
		return json.NewEncoder(out.stdout).Encode(letters)
	}
	return table(out, letters)
}

type showCmd struct {
	ID int64 `arg:"" help:"Number of the dead letter."`
}

func (c *showCmd) Run(ctx context.Context, s *Shared, out *output) error {
	pool, err := payments.Pool(ctx, s.Postgres.DSN, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := deadletter.Show(ctx, pool, c.ID)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(l)
}

type requeueCmd struct {
	ID    []int64 `arg:"" help:"Numbers of the dead letters."`
	Force bool    `help:"Send again what was sent again already."`
}

func (c *requeueCmd) Run(ctx context.Context, s *Shared, out *output) error {
	pool, err := payments.Pool(ctx, s.Postgres.DSN, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	opts, err := s.Kafka.Options()
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("create the Kafka client: %w", err)
	}
	defer client.Close()
	for _, id := range c.ID {
		l, err := deadletter.Requeue(ctx, pool, client, id, c.Force)
		if err != nil {
			return err
		}
		fmt.Fprintf(out.stdout, "%d: event %s published to %s again\n", id, l.EventID, l.Topic)
	}
	return nil
}

func table(out *output, letters []deadletter.Letter) error {
	w := tabwriter.NewWriter(out.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tEVENT\tTOPIC\tPARTITION\tOFFSET\tFIRST OFFSET\tREASON\tATTEMPTS\tCREATED\tERROR")
	for _, l := range letters {
		first := "-"
		if l.FirstOffset != nil {
			first = fmt.Sprintf("%d/%d", *l.FirstPartition, *l.FirstOffset)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%d\t%s\t%s\n", l.ID, l.EventID, l.Topic, l.Partition, l.Offset, first, l.Reason, l.Attempts, l.CreatedAt.UTC().Format(time.RFC3339), l.Error)
	}
	return w.Flush()
}
