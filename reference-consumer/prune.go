package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/reference-consumer/prune"
)

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
	dsn, err := s.Postgres.ConnString()
	if err != nil {
		return err
	}
	return prune.Run(ctx, prune.Config{DSN: dsn.Reveal(), BeforeConnect: s.Postgres.BeforeConnect(), Client: client, Topics: []string{s.Topic}, Retention: p.Retention, Once: p.Once,
		Batch: p.Batch, Pause: p.Pause, Every: p.Every, Allow: p.Allow, Registerer: reg, Log: log})
}
