package collectors_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors"
	"oncewatch/collectors/config"
	"oncewatch/deploy/testenv"
)

// Presets in the list of stores: a table that is not the
// framework's costs only its own series, and its error names the store, the
// column and the remedy.
func TestStoresWithPresets(t *testing.T) {
	dsn := testenv.Postgres(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `
		CREATE TABLE received_messages (consumer_id varchar(1000), message_id varchar(1000), creation_time bigint, PRIMARY KEY (consumer_id, message_id));
		INSERT INTO received_messages VALUES ('ledger-writer', 'm', extract(epoch FROM now()) * 1000);
		CREATE TABLE event_publication (id uuid PRIMARY KEY, listener_id text, publication_date timestamptz);`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	c := defaults(t)
	c.Stores = stores(t, `
stores:
  - {database: orders, dsn: "`+dsn+`", preset: eventuate-tram}
  - {database: billing, dsn: "`+dsn+`", preset: spring-modulith}
  - {database: orders, dsn: "`+dsn+`", preset: masstransit}
`)
	page, e := scrape(t, c)
	has(t, page, `processed_events_row_count{consumer_group="ledger-writer",database="orders",topic=""} 1`)
	has(t, page, `oncewatch_collector_success{collector="markers:billing"} 0`)
	said := false
	for _, s := range e.Facts().Sources {
		if s.Err == nil {
			continue
		}
		said = said || strings.Contains(s.Err.Error(), "store billing: table public.event_publication has no column \"completion_date\"") && strings.Contains(s.Err.Error(), "set postgres.column.processed-at")
	}
	if !said {
		t.Errorf("the error names neither store, column nor remedy: %+v", e.Facts().Sources)
	}
}

func TestUnknownPresetNamesTheStore(t *testing.T) {
	f, err := config.Parse("oncewatch.yml", []byte("stores: [{database: a, preset: masstransit}, {database: b, preset: masstransti}]"), "stores")
	if err != nil {
		t.Fatal(err)
	}
	var c collectors.Config
	if err := c.LoadStores(f); err == nil || !strings.Contains(err.Error(), "store 2: postgres.preset: \"masstransti\" is unknown; use one of eventuate-tram, masstransit,") {
		t.Errorf("error: %v", err)
	}
}
