package matrix

import (
	"context"
	"time"

	"oncewatch/deploy/demo"
	"oncewatch/deploy/pgserver"
	"oncewatch/reference-consumer/payments"
)

func nothing(context.Context, *demo.Stack) error { return nil }

// health are scenarios in which all is well, though things happen: no alert
// may fire.
var health = []scenario{
	{name: "steady", story: "nothing happens for two hours", act: nothing, after: 120},
	{name: "fresh-install", story: "an empty table and an empty topic, an hour old at the end", act: nothing, before: 1,
		prepare: func(s *demo.Stack) { s.History = demo.History{} }},
	{name: "low-traffic", story: "one event in two seconds (two minutes)", act: nothing,
		prepare: func(s *demo.Stack) { s.Producer.Rate = 0.5 }},
	{name: "consumer-restart", story: "the consumer is stopped and started again",
		act: func(ctx context.Context, s *demo.Stack) error {
			s.StopConsumer(0)
			wait(ctx, 2*time.Second)
			return s.StartConsumer(ctx, 0)
		}},
	{name: "rolling-deploy", story: "two consumers with an outbox are replaced one after the other", second: true,
		prepare: func(s *demo.Stack) {
			fewer(s)
			s.Consumer.Notify = payments.NotifyOperation
		},
		act: func(ctx context.Context, s *demo.Stack) error {
			if err := s.StartConsumer(ctx, 1); err != nil {
				return err
			}
			for i := range 2 {
				wait(ctx, 3*time.Second)
				s.StopConsumer(i)
				if err := s.StartConsumer(ctx, i); err != nil {
					return err
				}
			}
			return nil
		}},
	{name: "scale-up", story: "a second consumer joins the group", second: true,
		act: func(ctx context.Context, s *demo.Stack) error { return s.StartConsumer(ctx, 1) }},
	{name: "broker-restart", story: "the broker is restarted", apache: true,
		act: func(ctx context.Context, s *demo.Stack) error {
			if err := s.Broker.Stop(ctx); err != nil {
				return err
			}
			return s.Broker.StartAgain(ctx)
		}},
	{name: "database-restart", story: "PostgreSQL crashes and is back at once", alone: true,
		act: func(ctx context.Context, s *demo.Stack) error { return s.PG.Restart(ctx, pgserver.Immediate) }},
	{name: "exporter-restart", story: "the exporter is restarted",
		act: func(ctx context.Context, s *demo.Stack) error {
			s.StopExporter()
			wait(ctx, time.Second)
			return s.StartExporter(ctx)
		}},
	{name: "idle-night", story: "twelve hours without events, at the end of the table: its oldest marker is 7.5 days old",
		act: nothing, before: 70,
		prepare: func(s *demo.Stack) {
			s.History.Idle = [2]time.Duration{8*24*time.Hour + time.Minute, 7*24*time.Hour + 12*time.Hour}
		}},
	{name: "producer-pause", story: "no event for half an hour",
		act: func(ctx context.Context, s *demo.Stack) error {
			s.StopProducer()
			wait(ctx, 30*time.Second)
			s.StartProducer()
			return nil
		}},
	{name: "daily-prune", story: "the pruner runs once a day: the table is nine days old before and eight after",
		before:  70,
		prepare: func(s *demo.Stack) { s.Pruner.Retention = 10 * 24 * time.Hour },
		act: func(_ context.Context, s *demo.Stack) error {
			s.Pruner.Retention = 8 * 24 * time.Hour
			s.StartPruner()
			return nil
		}},
	{name: "partition-drop", story: "a table partitioned by day; the oldest partition is dropped",
		// The next one goes a day later: here that is long after two of the
		// 20-minute cycles in which these rules expect the pruner to have been
		// back, and so the table is not watched for that long.
		before: 70, after: 20,
		prepare: func(s *demo.Stack) {
			s.Partitioned = true
			s.Pruner.Retention = 10 * 24 * time.Hour
		},
		act: func(_ context.Context, s *demo.Stack) error {
			s.Pruner.Retention = 8 * 24 * time.Hour
			s.StartPruner()
			return nil
		}},
}
