package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

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
	ID    []int64 `arg:"" help:"Numbers of the dead letters."`
	Force bool    `help:"Send again what was sent again already."`
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
