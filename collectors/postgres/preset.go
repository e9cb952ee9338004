package postgres

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncewatch/collectors/poll"
)

// preset maps a table that a framework makes for itself. A column it leaves
// empty is one the table has not.
type preset struct {
	table   string
	columns Columns
	// groups and ids are the types of those columns.
	groups, ids []string
	// unit, zone and ahead tell how to read the time; see Config.
	unit, zone string
	ahead      time.Duration
	// lacks is what such a table cannot tell, for a person.
	lacks string
}

var (
	textual    = []string{"text", "character varying"}
	uuids      = []string{"uuid"}
	timestamps = []string{"timestamp with time zone", "timestamp without time zone"}
	epochs     = []string{"bigint"}
)

// presets are the tables as their frameworks create them on PostgreSQL. None
// of them holds the topic, partition and offset of a record, so for none can
// it be told offset by offset which record a replay would apply again.
var presets = map[string]preset{
	// Eventuate Tram: the consumer id is the Kafka consumer group. The time is
	// in milliseconds since 1970, and no index leads with it.
	"eventuate-tram": {
		table:   "received_messages",
		columns: Columns{Group: "consumer_id", EventID: "message_id", ProcessedAt: "creation_time"},
		groups:  textual, ids: textual, unit: "ms",
		lacks: "topic, partition, offset; an index on creation_time",
	},
	// MassTransit with Entity Framework: the consumer id is a hash of endpoint
	// and consumer. Delivered is set once the consumer is through and what it
	// sent is out; the cleanup goes by it, and it has the index.
	"masstransit": {
		table:   `"InboxState"`,
		columns: Columns{Group: "ConsumerId", EventID: "MessageId", ProcessedAt: "Delivered"},
		groups:  uuids, ids: uuids,
		lacks: "topic, partition, offset; the consumer group is a hash, not Kafka's; messages not delivered yet are not counted",
	},
	// NServiceBus: one table an endpoint, named after it. DispatchedAt is in
	// UTC without a zone, empty until the messages are out.
	"nservicebus": {
		table:   `"OutboxData"`,
		columns: Columns{EventID: "MessageId", ProcessedAt: "DispatchedAt"},
		ids:     textual, zone: "UTC",
		lacks: "consumer group, topic, partition, offset; messages not dispatched yet are not counted",
	},
	// Spring Modulith: a log of what was published to listeners inside the
	// application. Its id is the publication's, new each time, so no key of it
	// stops a redelivery.
	"spring-modulith": {
		table:   "event_publication",
		columns: Columns{Group: "listener_id", ProcessedAt: "completion_date"},
		groups:  textual,
		lacks:   "event id, topic, partition, offset; the consumer group is a listener, not Kafka's; publications not completed yet are not counted",
	},
	// Wolverine: received_at is no time but the address that listened.
	// keep_until is the time of handling plus KeepAfterMessageHandling, whose
	// default is 5 minutes.
	"wolverine": {
		table:   "wolverine_incoming_envelopes",
		columns: Columns{Group: "received_at", EventID: "id", ProcessedAt: "keep_until"},
		groups:  textual, ids: uuids, ahead: 5 * time.Minute,
		lacks: "topic, partition, offset; a whole index on keep_until; the consumer group is the listener's address, not Kafka's; envelopes not handled yet are not counted",
	},
}

// withPreset fills in what the preset knows where nothing else was set: where
// a key is empty or has its default.
func (c Config) withPreset() (Config, error) {
	if c.Preset == "" {
		return c, nil
	}
	p, ok := presets[c.Preset]
	if !ok {
		return c, fmt.Errorf("postgres.preset: %q is unknown; use one of %s, or map the columns by postgres.table and postgres.column.*", c.Preset, strings.Join(sortedKeys(presets), ", "))
	}
	fill := func(set *string, standard, known string) {
		if *set == "" || *set == standard {
			*set = cmp.Or(known, absent)
		}
	}
	d := defaultColumns
	fill(&c.Table, "processed_events", p.table)
	fill(&c.Columns.Group, d.Group, p.columns.Group)
	fill(&c.Columns.EventID, d.EventID, p.columns.EventID)
	fill(&c.Columns.Topic, d.Topic, p.columns.Topic)
	fill(&c.Columns.Partition, d.Partition, p.columns.Partition)
	fill(&c.Columns.Offset, d.Offset, p.columns.Offset)
	fill(&c.Columns.ProcessedAt, d.ProcessedAt, p.columns.ProcessedAt)
	if c.Columns.ProcessedAt == p.columns.ProcessedAt {
		c.TimeUnit = cmp.Or(c.TimeUnit, p.unit)
		c.TimeZone = cmp.Or(c.TimeZone, p.zone)
		c.TimeAhead = cmp.Or(c.TimeAhead, p.ahead)
	}
	return c, nil
}

// checkPreset refuses a table that is not as its framework makes it: labels
// that are silently missing would be worse than none. What the user mapped
// otherwise is the user's.
func (t *Table) checkPreset(cfg Config) error {
	p, ok := presets[cfg.Preset]
	if !ok {
		return nil
	}
	times := timestamps
	if p.unit != "" {
		times = epochs
	}
	for _, c := range []struct {
		key, mapped, name string
		types             []string
	}{
		{"processed-at", cfg.Columns.ProcessedAt, p.columns.ProcessedAt, times},
		{"consumer-group", cfg.Columns.Group, p.columns.Group, p.groups},
		{"event-id", cfg.Columns.EventID, p.columns.EventID, p.ids},
	} {
		if c.name == "" || c.mapped != c.name {
			continue
		}
		remedy := fmt.Sprintf("it is not as preset %s knows it: set postgres.column.%s, or postgres.table to the right one", cfg.Preset, c.key)
		switch column := t.Column(c.name); {
		case column == nil:
			return &poll.KindError{Kind: "missing", Err: fmt.Errorf("table %s has no column %q, only %s; %s", t, c.name, t.columnNames(), remedy)}
		case !slices.Contains(c.types, column.Type):
			return &poll.KindError{Kind: "malformed", Err: fmt.Errorf("table %s: column %q is %s, want %s; %s", t, c.name, column.Type, strings.Join(c.types, " or "), remedy)}
		}
	}
	return nil
}
