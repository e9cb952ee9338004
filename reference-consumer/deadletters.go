package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/deadletter"
)

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
	pool, err := s.Postgres.pool(ctx, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	f := deadletter.Filter{Group: s.Group, Reason: l.Reason, EventID: l.EventID, Requeued: l.Requeued, Limit: l.Limit}
	if l.Output == "json" {
		return listJSON(ctx, pool, f, out.stdout)
	}
	return listTable(ctx, pool, f, out.stdout)
}

type showCmd struct {
	ID int64 `arg:"" help:"Number of the dead letter."`
}

func (c *showCmd) Run(ctx context.Context, s *Shared, out *output) error {
	pool, err := s.Postgres.pool(ctx, 2)
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
	ID        []int64       `arg:"" help:"Numbers of the dead letters."`
	Force     bool          `help:"Send again what was sent again already, and what no marker protects any more."`
	Retention time.Duration `default:"8d" help:"How long the pruner keeps markers (0: for ever): what is older is refused."`
}

func (c *requeueCmd) Run(ctx context.Context, s *Shared, out *output) error {
	pool, err := s.Postgres.pool(ctx, 2)
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
		l, outcome, err := deadletter.Requeue(ctx, pool, client, id, deadletter.Options{Force: c.Force, Retention: c.Retention})
		if err != nil {
			return err
		}
		fmt.Fprintf(out.stdout, "%d: event %s published to %s again; %s\n", id, l.EventID, l.Topic, outcome)
	}
	return nil
}

// listJSON writes an array, a letter at a time.
func listJSON(ctx context.Context, pool *pgxpool.Pool, f deadletter.Filter, w io.Writer) error {
	between := "["
	err := deadletter.List(ctx, pool, f, func(l deadletter.Letter) error {
		text, err := json.Marshal(l)
		if err == nil {
			_, err = fmt.Fprintf(w, "%s%s", between, text)
			between = ",\n"
		}
		return err
	})
	if err != nil {
		return err
	}
	if between == "[" {
		_, err = fmt.Fprint(w, between)
	}
	if err == nil {
		_, err = fmt.Fprintln(w, "]")
	}
	return err
}

// tableRows is how many rows are held to align their columns.
const tableRows = 1000

func listTable(ctx context.Context, pool *pgxpool.Pool, f deadletter.Filter, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tEVENT\tTOPIC\tPARTITION\tOFFSET\tFIRST OFFSET\tREASON\tATTEMPTS\tBYTES\tCREATED\tERROR")
	rows := 0
	err := deadletter.List(ctx, pool, f, func(l deadletter.Letter) error {
		first := "-"
		if l.FirstOffset != nil {
			first = fmt.Sprintf("%d/%d", *l.FirstPartition, *l.FirstOffset)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%d\t%d\t%s\t%s\n", l.ID, l.EventID, l.Topic, l.Partition, l.Offset, first, l.Reason, l.Attempts, l.ValueBytes, l.CreatedAt.UTC().Format(time.RFC3339), l.Error)
		if rows++; rows%tableRows == 0 {
			return w.Flush()
		}
		return nil
	})
	return errors.Join(err, w.Flush())
}
