package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/poll"
)

// schemaSQL reads the table's structure and what the role may see, in one
// cheap read of the catalogue.
const schemaSQL = `SELECT jsonb_build_object(
  'database', current_database(), 'role', current_user, 'version', current_setting('server_version_num')::int,
  'standby', pg_is_in_recovery(),
  'timeline', CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END, 'read_all_stats', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
  'started', extract(epoch FROM pg_postmaster_start_time())::text,
  'system', (SELECT system_identifier::text FROM pg_control_system()),
  'zone', coalesce(
     (SELECT split_part(o, '=', 2) FROM pg_db_role_setting d, unnest(setconfig) o
       WHERE d.setrole = 0 AND d.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
         AND o ILIKE 'timezone=%' LIMIT 1),
     (SELECT CASE WHEN source IN ('user', 'database user', 'client', 'session')
                  THEN current_setting('log_timezone') ELSE setting END
        FROM pg_settings WHERE name = 'TimeZone')),
  'search_path', current_setting('search_path'),
  'table', (SELECT jsonb_build_object(
     'schema', n.nspname, 'name', c.relname, 'oid', c.oid::bigint, 'kind', c.relkind,
     'partitioned_by', coalesce(pg_get_partkeydef(c.oid), ''),
     'partition_columns', coalesce((SELECT jsonb_agg(a.attname ORDER BY k.i) FROM pg_partitioned_table p,
        unnest(p.partattrs) WITH ORDINALITY k(n, i) JOIN pg_attribute a ON a.attnum = k.n AND a.attnum > 0
        WHERE p.partrelid = c.oid AND a.attrelid = c.oid), '[]'),
     'columns', (SELECT jsonb_agg(jsonb_build_object(
          'name', a.attname, 'type', format_type(a.atttypid, NULL), 'not_null', a.attnotnull,
          'readable', has_column_privilege(c.oid, a.attnum, 'SELECT'),
          'default', coalesce(pg_get_expr(d.adbin, d.adrelid), '')) ORDER BY a.attnum)
        FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
     'indexes', coalesce((SELECT jsonb_agg(jsonb_build_object(
          'name', ic.relname, 'oid', i.indexrelid::bigint, 'unique', i.indisunique, 'valid', i.indisvalid AND i.indisready,
          'partial', i.indpred IS NOT NULL, 'method', am.amname,
          'columns', (SELECT jsonb_agg(coalesce(a.attname, '') ORDER BY k.i)
             FROM unnest(i.indkey) WITH ORDINALITY k(n, i)
             LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n AND k.n > 0
             WHERE k.i <= i.indnkeyatts)) ORDER BY ic.relname)
        FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
        WHERE i.indrelid = c.oid), '[]'),
     'leaves', (WITH RECURSIVE tree(oid) AS (
          SELECT c.oid UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.oid)
        SELECT coalesce(jsonb_agg(jsonb_build_object('oid', l.oid::bigint, 'schema', ln.nspname, 'name', l.relname, 'kind', l.relkind,
             'leads', CASE WHEN c.relkind = 'r' THEN (SELECT jsonb_agg(DISTINCT a.attname) FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
                JOIN pg_attribute a ON a.attrelid = l.oid AND a.attnum = i.indkey[0] WHERE i.indrelid = l.oid AND i.indisvalid AND i.indpred IS NULL AND am.amname = 'btree') END,
             'readable', has_table_privilege(l.oid, 'SELECT'),
             'bound', coalesce(pg_get_expr(l.relpartbound, l.oid), '')) ORDER BY l.oid), '[]')
        FROM tree JOIN pg_class l ON l.oid = tree.oid JOIN pg_namespace ln ON ln.oid = l.relnamespace
        WHERE l.relkind IN ('r', 'm', 'f')))
   FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1))
)::text`

// checkSQL tells whether what was discovered still stands, as far as can be
// told for next to nothing.
const checkSQL = `SELECT coalesce(t::bigint, 0), current_database(), pg_is_in_recovery(), concat(extract(epoch FROM pg_postmaster_start_time()), ' ', CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END),
  md5(concat((SELECT string_agg(attnum || ':' || xmin, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = t AND attnum > 0), '/',
             (SELECT string_agg(indexrelid || ':' || xmin, ' ' ORDER BY indexrelid) FROM pg_index WHERE indrelid = t), '/',
             (WITH RECURSIVE tree(oid, version) AS (
                SELECT t, ''::text UNION SELECT inhrelid, inhparent || ':' || i.xmin FROM pg_inherits i JOIN tree ON inhparent = tree.oid)
              SELECT string_agg(oid || ':' || version, ' ' ORDER BY oid) FROM tree)))
FROM (SELECT to_regclass($1)::oid) AS of(t)`

// landmark is what checkSQL tells. Columns, indexes and partitions are
// told by the transactions that last changed their rows in the catalogue.
type landmark struct {
	table           int64
	database        string
	standby         bool
	started, layout string
}

// schemaTTL is how long a discovery stands. An error ends it at once.
const schemaTTL = time.Minute

// discovery is what was last discovered.
type discovery struct {
	at       time.Time
	landmark landmark
	session  *session
	problems []poll.Problem
}

// discovered is discover, by what is remembered where it still stands.
func (s *Store) discovered(ctx context.Context, conn *transaction, d *discovery) (err error) {
	var now landmark
	if err := conn.QueryRow(ctx, checkSQL, s.name.Sanitize()).Scan(&now.table, &now.database, &now.standby, &now.started, &now.layout); err != nil {
		return err
	}
	if d.session != nil && d.session.Table.TimeIndex != "" && time.Since(d.at) < schemaTTL && now == d.landmark {
		return nil
	}
	d.session, d.problems, err = s.discover(ctx, conn)
	d.at, d.landmark = time.Now(), now
	return err
}

// Table is the marker table as the catalogue describes it.
type Table struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
	OID    uint32 `json:"oid"`
	// Kind is pg_class.relkind: r a table, p a partitioned one, v a view, …
	Kind    string   `json:"kind"`
	Columns []Column `json:"columns"`
	Indexes []Index  `json:"indexes"`
	// PartitionedBy is the key as SQL writes it: RANGE (processed_at); empty
	// for a plain table.
	PartitionedBy    string   `json:"partitioned_by"`
	PartitionColumns []string `json:"partition_columns"`
	// Leaves are the tables that hold rows: the partitions, or the table
	// itself. Empty for a view.
	Leaves []Leaf `json:"leaves"`

	// Has names the mapped columns that the table really has; the others are
	// empty.
	Has Columns `json:"-"`
	// TimeIndex is the valid, whole index that leads with the time; empty
	// where there is none, and the ledger then counts page by page.
	TimeIndex string `json:"-"`
	// Zoneless says that the time column is a timestamp without time zone,
	// read in Zone.
	Zoneless bool   `json:"-"`
	Zone     string `json:"-"`
	// Epoch is the unit of a time that counts from 1970; 0 for a timestamp.
	Epoch epoch `json:"-"`
	// Ahead is how far the time lies ahead of the processing, in microseconds.
	Ahead int64 `json:"-"`
}

// Column of a table.
type Column struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	NotNull  bool   `json:"not_null"`
	Readable bool   `json:"readable"`
	Default  string `json:"default"`
}

// Index of a table. Columns holds its key columns in order, empty for an
// expression.
type Index struct {
	Name    string   `json:"name"`
	OID     uint32   `json:"oid"`
	Unique  bool     `json:"unique"`
	Valid   bool     `json:"valid"`
	Partial bool     `json:"partial"`
	Method  string   `json:"method"`
	Columns []string `json:"columns"`
}

// Leaf is a table that holds rows.
type Leaf struct {
	OID      uint32 `json:"oid"`
	Schema   string `json:"schema"`
	Name     string `json:"name"`
	Readable bool   `json:"readable"`
	// Kind is pg_class.relkind: r a table, m a materialized view, f a foreign
	// table.
	Kind string `json:"kind"`
	// Leads are the columns that a valid, whole index leads with, where the
	// table is inherited from and not partitioned.
	Leads []string `json:"leads"`
	// Bound is a partition's bound as SQL writes it.
	Bound string `json:"bound"`
}

// String is the table's name for a person.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// Column finds a column by name; nil where there is none.
func (t *Table) Column(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

// Timed says whether the markers carry a time. Where they do not they are
// counted, and nothing is known of their age.
func (t *Table) Timed() bool { return t.Has.ProcessedAt != "" }

// UniqueOn says whether an index guarantees, by itself, that no two rows share
// the given columns: a valid unique index, whole, on exactly these columns or
// fewer of them.
func (t *Table) UniqueOn(columns ...string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool {
		return i.Unique && i.Valid && !i.Partial && !slices.ContainsFunc(i.Columns, func(c string) bool {
			return !slices.Contains(columns, c)
		})
	})
}

// sql is the table's quoted name.
func (t *Table) sql() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// session is what the database says of itself and of our role.
type session struct {
	Database     string `json:"database"`
	Role         string `json:"role"`
	Version      int    `json:"version"`
	Standby      bool   `json:"standby"`
	Timeline     string `json:"timeline"`
	ReadAllStats bool   `json:"read_all_stats"`
	Started      string `json:"started"`
	System       string `json:"system"`
	Zone         string `json:"zone"`
	SearchPath   string `json:"search_path"`
	Table        *Table `json:"table"`
}

// discover reads the structure and checks the mapping. The problems name
// columns that exist and cannot be used.
func (s *Store) discover(ctx context.Context, conn *transaction) (*session, []poll.Problem, error) {
	var text string
	if err := conn.QueryRow(ctx, schemaSQL, s.name.Sanitize()).Scan(&text); err != nil {
		return nil, nil, explain("table "+s.cfg.Table, err)
	}
	var in session
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, nil, fmt.Errorf("read the catalogue: %w", err)
	}
	if in.Version < 140000 {
		return nil, nil, &poll.KindError{Kind: "unsupported", Err: fmt.Errorf("PostgreSQL %d is too old: date_bin and TID range scans need 14", in.Version/10000)}
	}
	if in.Table == nil {
		return nil, nil, absentTable(ctx, conn, &in, s.name, s.cfg.Table, "postgres.table")
	}
	if err := in.Table.checkPreset(s.cfg); err != nil {
		return nil, nil, fmt.Errorf("store %s: %w", cmp.Or(s.cfg.Database, in.Database), err)
	}
	problems, err := in.Table.resolve(s.cfg)
	if in.Table.Zone == "" {
		in.Table.Zone = in.Zone
	}
	return &in, problems, err
}

// elsewhereSQL finds where a table of the name lies that the search path does
// not lead to: a schema that the role may not use is left out of the path
// without a word.
const elsewhereSQL = `SELECT n.nspname::text, has_schema_privilege(n.oid, 'USAGE') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY 2, 1 LIMIT 1`

// absentTable says that a table cannot be found, and what to do.
func absentTable(ctx context.Context, conn *transaction, in *session, name pgx.Identifier, table, key string) error {
	var schema string
	var usable bool
	err := conn.QueryRow(ctx, elsewhereSQL, name[len(name)-1]).Scan(&schema, &usable)
	switch {
	case err == nil && !usable:
		return &poll.KindError{Kind: "denied", Err: fmt.Errorf("table %s is in schema %s of database %s, which role %s may not use: GRANT USAGE ON SCHEMA %s TO %s",
			table, schema, in.Database, in.Role, quote(schema), quote(in.Role))}
	case err == nil && len(name) == 1:
		return &poll.KindError{Kind: "missing", Err: fmt.Errorf("table %s does not exist in database %s (search_path %s): there is one in schema %s, set %s to %s",
			table, in.Database, in.SearchPath, schema, key, pgx.Identifier{schema, name[0]}.Sanitize())}
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	return &poll.KindError{Kind: "missing", Err: fmt.Errorf("table %s does not exist in database %s (search_path %s): create it or set %s; it is looked for at every poll", table, in.Database, in.SearchPath, key)}
}

// resolve maps the configured columns to the table's.
func (t *Table) resolve(cfg Config) ([]poll.Problem, error) {
	var problems []poll.Problem
	entity := "table " + t.String()
	// find returns the column to use, or "" where the table has none.
	find := func(key, name, fallback string, types ...string) (string, error) {
		if name == absent {
			return "", nil
		}
		c := t.Column(name)
		var err error
		switch {
		case c == nil && name == fallback:
			return "", nil // a default that this table lacks
		case c == nil:
			err = &poll.KindError{Kind: "missing", Err: fmt.Errorf("%s has no column %q: set postgres.column.%s to one of %s, or to - for none", entity, name, key, t.columnNames())}
		case len(types) > 0 && !slices.Contains(types, c.Type):
			err = &poll.KindError{Kind: "malformed", Err: fmt.Errorf("%s: column %q is %s, want %s: set postgres.column.%s to another, or to - for none", entity, name, c.Type, strings.Join(types, " or "), key)}
		case !c.Readable:
			err = &poll.KindError{Kind: "denied", Err: fmt.Errorf("%s: column %q is not readable: GRANT SELECT on it to the role of postgres.dsn", entity, name)}
		default:
			return name, nil
		}
		return "", err
	}
	soft := func(key, name, fallback string, types ...string) string {
		got, err := find(key, name, fallback, types...)
		if err != nil {
			problems = append(problems, poll.Problem{Kind: poll.Kind(err), Entity: entity + " column " + name, Err: err})
		}
		return got
	}
	want, d := cfg.Columns, defaultColumns
	times := timestamps
	if cfg.TimeUnit != "" {
		times = epochs
	}
	at, err := find("processed-at", want.ProcessedAt, "", times...)
	if c := t.Column(want.ProcessedAt); err != nil && c != nil && c.Type == "bigint" && cfg.TimeUnit == "" {
		err = &poll.KindError{Kind: "malformed", Err: fmt.Errorf("%s: column %q is bigint, want %s: set postgres.time-unit to s, ms or us if it counts from 1970", entity, c.Name, strings.Join(times, " or "))}
	}
	if err != nil {
		return nil, err
	}
	t.Epoch, t.Ahead = epoch(units[cfg.TimeUnit]), cfg.TimeAhead.Microseconds()
	t.Has = Columns{
		ProcessedAt: at,
		Group:       soft("consumer-group", want.Group, d.Group),
		EventID:     soft("event-id", want.EventID, d.EventID),
		Topic:       soft("topic", want.Topic, d.Topic),
		Partition:   soft("partition", want.Partition, d.Partition, "smallint", "integer", "bigint"),
		Offset:      soft("offset", want.Offset, d.Offset, "smallint", "integer", "bigint"),
	}
	t.Zoneless = t.Timed() && t.Column(at).Type == "timestamp without time zone"
	t.Zone = cfg.TimeZone
	for _, i := range t.Indexes {
		if t.Timed() && i.Valid && !i.Partial && i.Method == "btree" && len(i.Columns) > 0 && i.Columns[0] == at {
			t.TimeIndex = i.Name
			break
		}
	}
	// What inherits has indexes of its own, or none.
	if t.Kind == "r" && slices.ContainsFunc(t.Leaves, func(leaf Leaf) bool { return !slices.Contains(leaf.Leads, at) }) {
		t.TimeIndex = ""
	}
	return problems, nil
}

func (t *Table) columnNames() string {
	names := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		names[i] = c.Name
	}
	return strings.Join(names, ", ")
}
