package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/dbconn"
)

// Config is one store: a database and the marker table in it. Its keys stand
// below a prefix such as "postgres.".
type Config struct {
	dbconn.Config `embed:""`

	Preset   string `name:"preset" placeholder:"NAME" help:"Table and columns of a framework, where nothing else is set: eventuate-tram, masstransit, nservicebus, spring-modulith or wolverine."`
	Table    string `name:"table" default:"processed_events" help:"The marker table, as written in SQL: name, schema.table, quotes where SQL needs them."`
	Database string `name:"database" help:"Value of the label database. Default: current_database()."`

	Columns Columns `embed:"" prefix:"column."`
	Effect  Effect  `embed:"" prefix:"effect."`

	Retention      time.Duration            `name:"retention" positive:"" help:"What the pruner keeps, for example 8d. Only compared and exported, nothing is pruned by it."`
	GroupRetention map[string]time.Duration `name:"group-retention" help:"The same for single consumer groups: GROUP=8d;GROUP=10d."`
	RowLimit       int64                    `name:"row-limit" help:"Markers that a consumer group may reach; exported for an alert that predicts it."`

	TimeZone   string        `name:"time-zone" help:"Zone of a processed_at column without time zone. Default: the database's TimeZone setting."`
	TimeUnit   string        `name:"time-unit" placeholder:"UNIT" help:"Unit of a processed_at column that is a bigint counted from 1970: s, ms or us. Default: the column is a timestamp."`
	TimeAhead  time.Duration `name:"time-ahead" help:"How far the processed_at column lies ahead of the processing, where it says until when the marker is kept (Wolverine's keep_until)."`
	ScrubRound time.Duration `name:"scrub-round" default:"24h" help:"How long the ledger may take to verify every marker it has counted, beside what it follows at each poll."`
	MaxCells   int           `name:"max-cells" default:"1000000" help:"Bound of the ledger's memory, in cells of about 80 bytes; beyond it cells of a minute become coarser."`
}

// Columns names the columns of the marker table. Only the time is needed: a
// table without the others has no such label or check. "-" says that the table
// has no such column; a default name that the table lacks is treated alike.
type Columns struct {
	Group       string `name:"consumer-group" default:"consumer_group" help:"Column of the consumer group, or -."`
	EventID     string `name:"event-id" default:"event_id" help:"Column of the event id, or -."`
	Topic       string `name:"topic" default:"topic" help:"Column of the topic, or -."`
	Partition   string `name:"partition" default:"partition" help:"Column of the partition, or -."`
	Offset      string `name:"offset" default:"offset" help:"Column of the offset, or -."`
	ProcessedAt string `name:"processed-at" default:"processed_at" help:"Column of the time of processing; - where the table has none: then there are counts, and no ages."`
}

// absent is the column name that says there is none.
const absent = "-"

var defaultColumns = Columns{Group: "consumer_group", EventID: "event_id", Topic: "topic", Partition: "partition", Offset: "offset", ProcessedAt: "processed_at"}

func (c Columns) withDefaults() Columns {
	d := defaultColumns
	return Columns{
		Group:       cmp.Or(c.Group, d.Group),
		EventID:     cmp.Or(c.EventID, d.EventID),
		Topic:       cmp.Or(c.Topic, d.Topic),
		Partition:   cmp.Or(c.Partition, d.Partition),
		Offset:      cmp.Or(c.Offset, d.Offset),
		ProcessedAt: cmp.Or(c.ProcessedAt, d.ProcessedAt),
	}
}

// Effect is the table that a handler writes in the marker's transaction. It
// serves to compare the two.
type Effect struct {
	Table   string        `name:"table" help:"Table of the effects, for example ledger_entries: compared with the markers."`
	EventID string        `name:"event-id" default:"event_id" help:"Its column with the event id, or - (then only counts are compared)."`
	Time    string        `name:"time" default:"created_at" help:"Its column with the transaction's time (DEFAULT now()), or -."`
	TxID    string        `name:"txid" default:"txid" help:"Column with pg_current_xact_id() in both tables, or -."`
	Group   string        `name:"consumer-group" help:"The consumer group whose handler writes it. Needed where other groups share the marker table."`
	Window  time.Duration `name:"window" default:"1h" help:"How far back closed minutes are compared."`
}

// Validate reports what is wrong, naming the key and the remedy. It does not
// connect.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("postgres."+key+": "+format, args...))
	}
	c, err := c.withPreset()
	if err != nil {
		errs = append(errs, err)
	}
	if err := c.Config.Validate(); err != nil {
		errs = append(errs, err)
	}
	if _, err := parseName(cmp.Or(c.Table, "processed_events")); err != nil {
		bad("table", "%w", err)
	}
	if c.Effect.Table != "" {
		if _, err := parseName(c.Effect.Table); err != nil {
			bad("effect.table", "%w", err)
		}
	}
	if c.Columns.withDefaults().ProcessedAt == absent && c.Effect.Table != "" {
		bad("effect.table", "effects are compared with markers of the same time, and column.processed-at says that the table has none")
	}
	if c.TimeUnit != "" && units[c.TimeUnit] == 0 {
		bad("time-unit", "%q is unknown; use s, ms or us, or leave it out for a timestamp", c.TimeUnit)
	}
	if c.TimeAhead < 0 || c.TimeAhead > 10*365*24*time.Hour {
		bad("time-ahead", "%s is out of range; use for example 5m", c.TimeAhead)
	}
	if c.Retention < 0 {
		bad("retention", "%s is negative; use for example 8d", c.Retention)
	}
	for _, g := range sortedKeys(c.GroupRetention) {
		if d := c.GroupRetention[g]; d <= 0 {
			bad("group-retention", "%s=%s is not positive; use for example %s=8d", g, d, g)
		}
	}
	if c.RowLimit < 0 {
		bad("row-limit", "%d is negative; leave it out for no limit", c.RowLimit)
	}
	if c.ScrubRound != 0 && c.ScrubRound < time.Minute {
		bad("scrub-round", "%s is too short; use for example 24h", c.ScrubRound)
	}
	if c.MaxCells < 0 {
		bad("max-cells", "%d is negative; the default is 1000000", c.MaxCells)
	}
	if c.Effect.Window < 0 {
		bad("effect.window", "%s is negative; the default is 1h", c.Effect.Window)
	}
	return errors.Join(errs...)
}

// ConfiguredRetention is what the configuration says the pruner keeps for a
// group; 0 where it says nothing.
func (c Config) ConfiguredRetention(group string) time.Duration {
	if d, ok := c.GroupRetention[group]; ok {
		return d
	}
	return c.Retention
}

// parseName reads a table's name as SQL does: unquoted parts fold to lower
// case, quotes keep what they hold, at most one schema.
func parseName(s string) (pgx.Identifier, error) {
	bad := fmt.Errorf("%q is not a table name; write name, schema.table, or \"Quoted \"\"Name\"\"\"", s)
	var parts pgx.Identifier
	rest := s
	for {
		var part string
		if strings.HasPrefix(rest, `"`) {
			var b strings.Builder
			i := 1
			for ; ; i++ {
				if i >= len(rest) {
					return nil, bad
				}
				if rest[i] == '"' {
					if i+1 < len(rest) && rest[i+1] == '"' {
						i++
					} else {
						break
					}
				}
				b.WriteByte(rest[i])
			}
			part, rest = b.String(), rest[i+1:]
		} else {
			end := strings.IndexFunc(rest, func(r rune) bool { return !identifierRune(r) })
			if end < 0 {
				end = len(rest)
			}
			part, rest = strings.ToLower(rest[:end]), rest[end:]
			if part != "" && part[0] >= '0' && part[0] <= '9' {
				return nil, bad
			}
		}
		if part == "" || strings.ContainsRune(part, 0) {
			return nil, bad
		}
		parts = append(parts, part)
		if rest == "" {
			break
		}
		if rest[0] != '.' || len(parts) == 2 {
			return nil, bad
		}
		rest = rest[1:]
	}
	return parts, nil
}

func identifierRune(r rune) bool {
	return r == '_' || r == '$' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= 0x80
}

// quote quotes one identifier.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
