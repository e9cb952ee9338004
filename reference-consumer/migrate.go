package main

import (
	"context"
	"fmt"

	"oncewatch/reference-consumer/schema"
)

type migrateCmd struct {
	Partitioned bool `help:"Create processed_events partitioned by range of the UUIDv7 event id."`
}

func (m *migrateCmd) Run(ctx context.Context, s *Shared, out *output) error {
	log, err := s.Log.New(out.stderr)
	if err != nil {
		return err
	}
	dsn, err := s.Postgres.ConnString()
	if err != nil {
		return err
	}
	if err := schema.Migrate(ctx, dsn.Reveal(), schema.Options{BeforeConnect: s.Postgres.BeforeConnect(), Partitioned: m.Partitioned, Log: log}); err != nil {
		return err
	}
	fmt.Fprintf(out.stdout, "the schema is at version %d\n", schema.Version())
	return nil
}
