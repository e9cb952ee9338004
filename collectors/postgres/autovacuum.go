package postgres

import (
	"context"
	"fmt"
)

// autovacuumSQL reads when the server would vacuum the leaves by itself: a
// table's own options, else the server's. The formula is the manual's, "The
// Autovacuum Daemon"; autovacuum_vacuum_max_threshold is PostgreSQL 18's.
const autovacuumSQL = `SELECT coalesce(bool_or(NOT active), false), coalesce(max(least(base + scale * greatest(reltuples, 0), cap)), 0)::bigint
FROM (SELECT c.reltuples,
    current_setting('autovacuum')::bool AND coalesce(own->>'autovacuum_enabled', 'on')::bool AS active,
    coalesce(own->>'autovacuum_vacuum_threshold', current_setting('autovacuum_vacuum_threshold'))::float8 AS base,
    coalesce(own->>'autovacuum_vacuum_scale_factor', current_setting('autovacuum_vacuum_scale_factor'))::float8 AS scale,
    nullif(coalesce(own->>'autovacuum_vacuum_max_threshold', current_setting('autovacuum_vacuum_max_threshold', true))::float8, -1) AS cap
  FROM unnest(ARRAY[%s]::oid[]) oid JOIN pg_class c USING (oid),
    LATERAL (SELECT coalesce(jsonb_object_agg(option_name, option_value), '{}') AS own FROM pg_options_to_table(c.reloptions)) o) s`

// Autovacuum is when the server vacuums the table by itself.
type Autovacuum struct {
	// Off says that it does not, for the table or one of its partitions.
	Off bool
	// DeadRows starts a vacuum, of the partition that needs the most.
	DeadRows int64
}

func readAutovacuum(ctx context.Context, conn *transaction, leaves string) (a Autovacuum, err error) {
	err = conn.QueryRow(ctx, fmt.Sprintf(autovacuumSQL, leaves)).Scan(&a.Off, &a.DeadRows)
	return a, err
}
