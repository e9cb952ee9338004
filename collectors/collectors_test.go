package collectors_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/common/expfmt"
	"github.com/twmb/franz-go/pkg/kfake"

	"oncewatch/collectors"
	"oncewatch/collectors/checklist"
	"oncewatch/collectors/config"
	"oncewatch/collectors/postgres"
	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func defaults(t *testing.T) collectors.Config {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	var c collectors.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Kafka.Brokers = fake.ListenAddrs()
	return c
}

func stores(t *testing.T, yaml string) []postgres.Config {
	t.Helper()
	f, err := config.Parse("oncewatch.yml", []byte(yaml), "stores")
	if err != nil {
		t.Fatal(err)
	}
	var c collectors.Config
	if err := c.LoadStores(f); err != nil {
		t.Fatal(err)
	}
	return c.Stores
}

// scrape polls everything once and returns the page.
func scrape(t *testing.T, c collectors.Config) (string, *collectors.Exporter) {
	t.Helper()
	e, err := collectors.New(c, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e.Once(ctx)
	reg, err := e.Registry()
	if err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err) // a label set that comes twice fails here
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String(), e
}

func has(t *testing.T, page, line string) {
	t.Helper()
	if !strings.Contains(page, line) {
		t.Errorf("the page lacks %s", line)
	}
}

func markerTable(t *testing.T, dsn, name string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	table := pgx.Identifier{name}.Sanitize()
	if _, err := conn.Exec(ctx, `CREATE TABLE `+table+` (consumer_group text, event_id text, topic text, partition int, "offset" bigint,
		processed_at timestamptz DEFAULT now(), PRIMARY KEY (consumer_group, event_id));
		CREATE INDEX ON `+table+` (processed_at);
		INSERT INTO `+table+` VALUES ('g', 'e', 't', 0, 0)`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// The same group and topic in two databases are two series; a
// store that is away, or mapped to a column that is not there, costs only its
// own.
func TestManyStores(t *testing.T) {
	one, two := testenv.Postgres(t), testenv.Postgres(t)
	markerTable(t, one, "processed_events")
	markerTable(t, two, "inbox")
	c := defaults(t)
	c.Stores = stores(t, `
stores:
  - {database: orders, dsn: "`+one+`"}
  - {database: billing, dsn: "`+two+`", table: inbox, retention: 8d}
  - {database: away, dsn: "postgres://u@127.0.0.1:1/x?sslmode=disable"}
  - {database: odd, dsn: "`+one+`", column.processed-at: handled_at}
`)
	page, e := scrape(t, c)
	has(t, page, `processed_events_row_count{consumer_group="g",database="orders",topic="t"} 1`)
	has(t, page, `processed_events_row_count{consumer_group="g",database="billing",topic="t"} 1`)
	has(t, page, `processed_events_configured_retention_seconds{consumer_group="g",database="billing"} 691200`)
	has(t, page, `oncewatch_collector_success{collector="markers:orders"} 1`)
	has(t, page, `oncewatch_collector_success{collector="markers:away"} 0`)
	has(t, page, `oncewatch_errors_total{collector="markers:odd",kind="missing"} 1`)
	for _, s := range e.Facts().Sources {
		if s.ID.String() == "markers:odd" && (s.Err == nil || !strings.Contains(s.Err.Error(), `"handled_at"`) || !strings.Contains(s.Err.Error(), "postgres.column.processed-at")) {
			t.Errorf("the error names neither column nor remedy: %v", s.Err)
		}
	}
}

// Of two databases that cannot be reached each line tells its own cause.
func TestUnreachableStoresTellTheirCauses(t *testing.T) {
	c := defaults(t)
	c.Stores = stores(t, `
stores:
  - {dsn: "postgres://u@127.0.0.1:1/x?sslmode=disable"}
  - {dsn: "postgres://u@127.0.0.1:2/x?sslmode=disable"}
`)
	_, e := scrape(t, c)
	lines := checklist.Evaluate(e.Facts())
	for i, want := range []string{"127.0.0.1:1", "127.0.0.1:2"} {
		if l := lines[i]; l.Rule != "markers" || !strings.Contains(l.Remedy, want) || l.Database != fmt.Sprintf("store %d (processed_events)", i+1) {
			t.Errorf("store %d: %+v", i+1, l)
		}
	}
}

// Two stores that would produce the same series: the second says so,
// the first goes on.
func TestClashingStores(t *testing.T) {
	dsn := testenv.Postgres(t)
	markerTable(t, dsn, "processed_events")
	markerTable(t, dsn, "inbox")
	c := defaults(t)
	for name, yaml := range map[string]string{
		"by the database's name": `stores: [{dsn: "` + dsn + `"}, {dsn: "` + dsn + `", table: inbox}]`,
		"as configured":          `stores: [{database: x, dsn: "` + dsn + `"}, {database: x, dsn: "` + dsn + `", table: inbox}]`,
	} {
		t.Run(name, func(t *testing.T) {
			c.Stores = stores(t, yaml)
			page, e := scrape(t, c)
			if n := strings.Count(page, "processed_events_row_count{"); n != 1 {
				t.Errorf("%d stores are served, want 1", n)
			}
			clashes := 0
			for _, s := range e.Facts().Sources {
				if s.Err != nil && strings.Contains(s.Err.Error(), "store 2 (table inbox): its series would be those of store 1") && strings.Contains(s.Err.Error(), "set database in one of them") {
					clashes++
				}
			}
			if clashes != 2 { // markers and table
				t.Errorf("%d collectors of the second store say why", clashes)
			}
		})
	}
}

// What the configuration alone tells, a dry run says.
func TestStoresOfOneName(t *testing.T) {
	c := defaults(t)
	c.Stores = stores(t, `stores: [{database: x, dsn: host=a}, {dsn: host=b dbname=b}, {dsn: host=c dbname=c}, {database: x, dsn: host=d}]`)
	if _, err := c.Targets(); err == nil || !strings.Contains(err.Error(), "stores 1 and 4: the label database is \"x\" of both") {
		t.Errorf("error: %v", err)
	}
}

func TestStoresFileErrorsNameTheStore(t *testing.T) {
	f, err := config.Parse("oncewatch.yml", []byte("stores:\n  - dsn: host=x\n  - {dsn: host=x, tabel: y}\n"), "stores")
	if err != nil {
		t.Fatal(err)
	}
	var c collectors.Config
	if err := c.LoadStores(f); err == nil || !strings.Contains(err.Error(), "store 2: oncewatch.yml:3: unknown key tabel; did you mean table?") {
		t.Errorf("error: %v", err)
	}
}
