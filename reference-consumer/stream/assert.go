package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/topicconfig"
)

// Names of the startup assertions, for --allow.
const (
	AssertAutoCommit      = "auto-commit"
	AssertOffsetPolicy    = "offset-policy"
	AssertMarkerRetention = "marker-retention"
	AssertUniqueIndex     = "unique-index"
	AssertSchema          = "schema"
	AssertIsolation       = "isolation"
	AssertSyncCommit      = "synchronous-commit"
	AssertPrimary         = "primary"
	AssertTimeouts        = "timeouts"
	AssertClock           = "clock"
	AssertClientOptions   = "client-options"
	AssertProtocol        = "protocol"
	maxClockSkew          = time.Second
	assertionTimeout      = 15 * time.Second
)

// Assertions is every name --allow takes.
func Assertions() []string {
	return []string{AssertAutoCommit, AssertOffsetPolicy, AssertMarkerRetention, AssertUniqueIndex, AssertSchema,
		AssertIsolation, AssertSyncCommit, AssertPrimary, AssertTimeouts, AssertClock, AssertClientOptions, AssertProtocol}
}

// Violation is an assertion that does not hold.
type Violation struct{ Name, Text string }

// passes says that time alone may mend it: a failover has read-only moments,
// a clock is set.
func (v Violation) passes() bool { return v.Name == AssertPrimary || v.Name == AssertClock }

// RefusedError says why the consumer does not start.
type RefusedError struct{ Violations []Violation }

// Passes says that another start may succeed without anybody's doing.
func (e *RefusedError) Passes() bool {
	return !slices.ContainsFunc(e.Violations, func(v Violation) bool { return !v.passes() })
}

func (e *RefusedError) Error() string {
	lines := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		lines[i] = v.Name + ": " + v.Text
	}
	return strings.Join(lines, "\n")
}

// Guard checks what exactly-once handling rests on.
type Guard struct {
	// MarkerRetention is how long the pruner keeps markers; 0: for ever.
	MarkerRetention time.Duration
	// RedeliverFrom names further topics that events may come back from, such
	// as a dead-letter or retry topic.
	RedeliverFrom []string
	// Allow waives assertions by name.
	Allow []string
	// IdleTimeout, StatementTimeout and TransactionTimeout of the inbox.
	IdleTimeout, StatementTimeout, TransactionTimeout time.Duration
}

// check returns what does not hold around the consumer, waived or not. An
// error means that it could not be found out.
func (g Guard) check(ctx context.Context, admin *kadm.Client, cfg Config) ([]Violation, error) {
	ctx, cancel := context.WithTimeout(ctx, assertionTimeout)
	defer cancel()
	vs := g.timeoutViolations(cfg)
	retention, err := g.retention(ctx, admin, cfg.Topics)
	if err != nil {
		return nil, err
	}
	protocol, err := protocolViolations(ctx, cfg.Pool)
	if err != nil {
		return nil, err
	}
	if len(protocol) > 0 {
		return slices.Concat(vs, retention, protocol), nil // what else is asked of the server might fail for it
	}
	database, err := databaseViolations(ctx, cfg.Pool, cfg.Now)
	if err != nil {
		return nil, err
	}
	return slices.Concat(vs, retention, database), nil
}

func (g Guard) timeoutViolations(cfg Config) []Violation {
	var vs []Violation
	if g.IdleTimeout >= cfg.SessionTimeout {
		vs = append(vs, Violation{AssertTimeouts, fmt.Sprintf("idle_in_transaction_session_timeout (%s) is not below the group's session timeout (%s): a stopped owner would block its partition's next one", g.IdleTimeout, cfg.SessionTimeout)})
	}
	if longest := max(g.StatementTimeout, g.TransactionTimeout); longest >= cfg.RebalanceTimeout {
		vs = append(vs, Violation{AssertTimeouts, fmt.Sprintf("statement and transaction timeout (%s) are not below the rebalance timeout (%s): a slow handler would outlive its ownership", longest, cfg.RebalanceTimeout)})
	}
	return vs
}

// retention compares the markers' life with that of the records they guard
// against.
func (g Guard) retention(ctx context.Context, admin *kadm.Client, topics []string) ([]Violation, error) {
	topics = append(slices.Clone(topics), g.RedeliverFrom...)
	limits, err := topicconfig.Retentions(ctx, admin, topics...)
	if err != nil {
		return nil, err
	}
	var vs []Violation
	for _, t := range topics {
		r := limits[t]
		if g.MarkerRetention <= 0 {
			continue // kept for ever
		}
		if r.Unlimited {
			vs = append(vs, Violation{AssertMarkerRetention, fmt.Sprintf("topic %s keeps records for ever, markers are kept for %s: a replay would apply old events again; limit retention.ms, or keep markers for ever (--retention=0)", t, days(g.MarkerRetention))})
		} else if float64(g.MarkerRetention) < topicconfig.Margin*float64(r.Time) {
			vs = append(vs, Violation{AssertMarkerRetention, fmt.Sprintf("markers are kept for %s, less than 1.1 × the %s that topic %s keeps records: raise --retention to at least %s", days(g.MarkerRetention), days(r.Time), t, days(time.Duration(topicconfig.Margin*float64(r.Time))))})
		}
	}
	return vs, nil
}

// uniqueIndexSQL looks for a valid, whole, unique index on exactly the key's
// two columns. IMMEDIATE and NULLS do not matter: both are NOT NULL.
const uniqueIndexSQL = `SELECT EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = to_regclass('processed_events') AND i.indisunique AND i.indisvalid AND i.indisready
      AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = 2
      AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
           WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:1])) = ARRAY['consumer_group', 'event_id'])`

func databaseViolations(ctx context.Context, pool *pgxpool.Pool, now func() time.Time) ([]Violation, error) {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer c.Release()
	var vs []Violation
	switch err := schema.Check(ctx, c); {
	case errors.Is(err, schema.ErrOutdated):
		vs = append(vs, Violation{AssertSchema, err.Error()})
	case err != nil: // a failover, a missing right: nothing is known of the schema
		return nil, err
	}
	var unique, recovery bool
	var isolation, sync, readOnly string
	var server time.Time
	before := now()
	err = c.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&server)
	after := now()
	if err != nil {
		return nil, fmt.Errorf("read the server's clock: %w", err)
	}
	err = c.QueryRow(ctx, "SELECT ("+uniqueIndexSQL+"), current_setting('default_transaction_isolation'), current_setting('synchronous_commit'), current_setting('default_transaction_read_only'), pg_is_in_recovery()").
		Scan(&unique, &isolation, &sync, &readOnly, &recovery)
	if err != nil {
		return nil, fmt.Errorf("read the server's settings: %w", err)
	}
	if !unique {
		vs = append(vs, Violation{AssertUniqueIndex, "processed_events has no unique index on exactly (consumer_group, event_id): duplicates would be applied; run `reference-consumer migrate`"})
	}
	if isolation != "read committed" {
		vs = append(vs, Violation{AssertIsolation, fmt.Sprintf("default_transaction_isolation is %q: at other levels than read committed concurrent redeliveries fail instead of being skipped; ALTER ROLE … SET default_transaction_isolation = 'read committed'", isolation)})
	}
	if sync == "off" {
		vs = append(vs, Violation{AssertSyncCommit, "synchronous_commit is off: a crash of the server would lose events whose offset is already committed; ALTER ROLE … SET synchronous_commit = on"})
	}
	if recovery || readOnly == "on" {
		vs = append(vs, Violation{AssertPrimary, "the server takes no writes (standby or default_transaction_read_only): connect to the primary (target_session_attrs=read-write)"})
	}
	if skew := server.Sub(before.Add(after.Sub(before) / 2)).Abs(); skew > maxClockSkew+after.Sub(before)/2 {
		vs = append(vs, Violation{AssertClock, fmt.Sprintf("this machine's clock and the server's differ by %s: ages and retention would be wrong; run NTP on both", skew.Round(time.Millisecond))})
	}
	return vs, nil
}

// assertSurroundings checks everything but the consuming client itself.
func (c *consumer) assertSurroundings(ctx context.Context) error {
	for _, name := range c.cfg.Guard.Allow {
		if !slices.Contains(Assertions(), name) {
			return fmt.Errorf("--allow=%s: no such assertion; there are %s", name, strings.Join(Assertions(), ", "))
		}
	}
	vs, err := c.cfg.Guard.check(ctx, c.admin, c.cfg)
	if err != nil {
		return err
	}
	c.export(vs)
	return c.refuse(vs)
}

// refuse returns what is not waived as a *RefusedError.
func (c *consumer) refuse(vs []Violation) error {
	var refused []Violation
	for _, v := range vs {
		if slices.Contains(c.cfg.Guard.Allow, v.Name) {
			c.cfg.Log.Warn("assertion waived", "assertion", v.Name, "reason", v.Text)
			continue
		}
		refused = append(refused, v)
	}
	if len(refused) > 0 {
		return &RefusedError{refused}
	}
	return nil
}

// export shows which assertions hold and which are waived.
func (c *consumer) export(vs []Violation) {
	for _, name := range Assertions() {
		holds := !slices.ContainsFunc(vs, func(v Violation) bool { return v.Name == name })
		c.metrics.Assertion(name, holds, slices.Contains(c.cfg.Guard.Allow, name))
	}
}

// watch repeats the assertions while the consumer runs: a topic's retention
// can be raised at any time. It warns and exports, and does not stop: events
// in flight are better handled than not.
func (c *consumer) watch(ctx context.Context) {
	t := time.NewTicker(c.cfg.AssertEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		vs, err := c.cfg.Guard.check(ctx, c.admin, c.cfg)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				c.cfg.Log.Warn("could not repeat the startup assertions", "error", err)
			}
			continue
		}
		c.export(vs)
		for _, v := range vs {
			if !slices.Contains(c.cfg.Guard.Allow, v.Name) {
				c.cfg.Log.Error("an assertion of the start no longer holds", "assertion", v.Name, "reason", v.Text)
			}
		}
	}
}

// days prints a duration in days where it is long.
func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(strconv.FormatFloat(d.Hours()/24, 'f', 1, 64), ".0") + "d"
}
