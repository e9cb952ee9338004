package prune

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/reference-consumer/schema"
)

// partitions creates those ahead and drops those whose newest possible event
// is older than the retention.
func (p *pruner) partitions(ctx context.Context, conn *pgx.Conn) error {
	if err := p.finishDetach(ctx, conn); err != nil {
		return err
	}
	now := p.cfg.Now()
	for t := now; !t.After(now.Add(p.cfg.PartitionsAhead)); t = t.Add(p.cfg.PartitionWidth) {
		if err := attach(ctx, conn, schema.PartitionAt(t, p.cfg.PartitionWidth)); err != nil {
			return err
		}
	}
	cutoff := schema.Bound(now.Add(-p.cfg.Retention))
	parts, err := list(ctx, conn, `SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'processed_events'::regclass AND NOT i.inhdetachpending ORDER BY c.relname`)
	if err != nil {
		return err
	}
	for _, part := range parts {
		m := upperBound.FindStringSubmatch(part.bound)
		if m == nil || m[1] > cutoff {
			continue
		}
		p.cfg.Failpoint("before_detach")
		start := time.Now()
		// CONCURRENTLY: inserts go on even while a long reader makes it wait.
		if _, err := conn.Exec(ctx, "ALTER TABLE processed_events DETACH PARTITION "+pgx.Identifier{part.name}.Sanitize()+" CONCURRENTLY"); err != nil {
			return fmt.Errorf("detach partition %s: %w", part.name, err)
		}
		p.cfg.Failpoint("between_detach_and_drop")
		if err := p.drop(ctx, conn, part.name, start); err != nil {
			return err
		}
	}
	return nil
}

var (
	upperBound    = regexp.MustCompile(`TO \('([^']*)'\)`)
	partitionName = regexp.MustCompile(`^processed_events_(\d{8}_\d{6})$`)
)

// finishDetach ends what an earlier run left half done: partitions whose
// detaching was interrupted, and detached ones that were not dropped.
func (p *pruner) finishDetach(ctx context.Context, conn *pgx.Conn) error {
	pending, err := list(ctx, conn, `SELECT c.relname, '' FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'processed_events'::regclass AND i.inhdetachpending`)
	if err != nil {
		return err
	}
	for _, part := range pending {
		if _, err := conn.Exec(ctx, "ALTER TABLE processed_events DETACH PARTITION "+pgx.Identifier{part.name}.Sanitize()+" FINALIZE"); err != nil {
			return fmt.Errorf("finish detaching partition %s: %w", part.name, err)
		}
	}
	orphans, err := list(ctx, conn, `SELECT c.relname, '' FROM pg_class c
WHERE c.relkind = 'r' AND NOT c.relispartition AND c.relname LIKE 'processed\_events\_%'
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'processed_events'::regclass)`)
	if err != nil {
		return err
	}
	cutoff := p.cfg.Now().Add(-p.cfg.Retention)
	for _, o := range orphans {
		m := partitionName.FindStringSubmatch(o.name)
		if m == nil {
			continue
		}
		from, err := time.Parse("20060102_150405", m[1])
		if err != nil || !from.Add(p.cfg.PartitionWidth).Before(cutoff) {
			continue // one that is yet to be attached
		}
		if err := p.drop(ctx, conn, o.name, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func (p *pruner) drop(ctx context.Context, conn *pgx.Conn, name string, start time.Time) error {
	quoted := pgx.Identifier{name}.Sanitize()
	var n int64
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM "+quoted).Scan(&n); err != nil {
		return fmt.Errorf("count partition %s: %w", name, err)
	}
	if _, err := conn.Exec(ctx, "DROP TABLE "+quoted); err != nil {
		return fmt.Errorf("drop partition %s: %w", name, err)
	}
	p.m.batch(n, time.Since(start))
	p.cfg.Log.Info("dropped partition", "partition", name, "markers", n)
	return nil
}

// attach makes a table like the others and attaches it. CREATE TABLE …
// PARTITION OF would lock the whole table against inserts, behind any long
// reader; ATTACH does not.
func attach(ctx context.Context, conn *pgx.Conn, part schema.Partition) error {
	var attached bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'processed_events'::regclass AND inhrelid = to_regclass($1))", part.Name).Scan(&attached)
	if err != nil {
		return fmt.Errorf("look for partition %s: %w", part.Name, err)
	}
	if attached {
		return nil
	}
	quoted := pgx.Identifier{part.Name}.Sanitize()
	if _, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+quoted+" (LIKE processed_events INCLUDING ALL)"); err != nil {
		return fmt.Errorf("create partition %s: %w", part.Name, err)
	}
	sql := fmt.Sprintf("ALTER TABLE processed_events ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')", quoted, schema.Bound(part.From), schema.Bound(part.To))
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("attach partition %s: %w", part.Name, err)
	}
	return nil
}

type partition struct{ name, bound string }

func list(ctx context.Context, conn *pgx.Conn, sql string) ([]partition, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	parts, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (partition, error) {
		var p partition
		return p, r.Scan(&p.name, &p.bound)
	})
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	return parts, nil
}
