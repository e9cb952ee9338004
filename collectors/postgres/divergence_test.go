package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"oncewatch/collectors/dbconn"
)

const effectsDDL = `CREATE TABLE ledger_entries (id bigserial PRIMARY KEY, event_id text NOT NULL, amount int, created_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON ledger_entries (event_id); CREATE INDEX ON ledger_entries (created_at)`

func (b *bench) divergence(d *divergence) map[string]int64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	for range 100 {
		snap, err := d.Poll(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if out := snap.(*Divergence); out.Compared == 1 {
			rows := map[string]int64{}
			for _, r := range out.Rows {
				rows[r.Group+" "+r.Kind] = r.Rows
			}
			return rows
		}
	}
	b.Fatal("the window is never compared")
	return nil
}

func wantRows(t *testing.T, what string, got map[string]int64, want map[string]int64) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Half of the effects on another connection: both counts are the same, and
// yet none of the half is safe.
func TestEffectsInAnotherTransaction(t *testing.T) {
	t.Parallel()
	for name, columns := range map[string]string{"by time": "", "by txid": "txid xid8 DEFAULT pg_current_xact_id()"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Effect: Effect{Table: "ledger_entries", EventID: "event_id", Time: "created_at", TxID: "txid", Group: "g"}}
			b := newBench(t, cfg, runbookDDL, effectsDDL)
			if columns != "" {
				b.exec("ALTER TABLE processed_events ADD " + columns)
				b.exec("ALTER TABLE ledger_entries ADD " + columns)
			}
			// In closed minutes: the clock of both rows is set back alike.
			for n := range 200 {
				tx := "INSERT INTO processed_events (consumer_group, event_id, topic, partition, \"offset\", processed_at) VALUES ('g', 'e%[1]d', 't', 0, %[1]d, now() - interval '10 minutes');"
				effect := "INSERT INTO ledger_entries (event_id, created_at) VALUES ('e%[1]d', now() - interval '10 minutes');"
				if n%2 == 0 {
					b.exec(fmt.Sprintf(tx+effect, n)) // one transaction
				} else {
					b.exec(fmt.Sprintf(tx, n))
					b.exec(fmt.Sprintf(effect, n))
				}
			}
			b.insert("another group", "t", 10, 10*time.Minute) // without effects, and no fault
			b.pollExact()
			source := b.store.Divergence().(*divergence)
			wantRows(t, "half apart", b.divergence(source), map[string]int64{"g marker_without_effect": 0, "g effect_without_marker": 0, "g different_transaction": 100})
			b.exec("DELETE FROM ledger_entries WHERE event_id IN ('e0', 'e2', 'e4')")
			b.exec("DELETE FROM processed_events WHERE event_id IN ('e6', 'e8')")
			source = b.store.Divergence().(*divergence)
			wantRows(t, "some missing", b.divergence(source), map[string]int64{"g marker_without_effect": 3, "g effect_without_marker": 2, "g different_transaction": 100})
			// A repair shows without a restart.
			b.exec("INSERT INTO ledger_entries (event_id, created_at) SELECT event_id, processed_at FROM processed_events WHERE event_id IN ('e0', 'e2', 'e4')")
			b.exec("DELETE FROM ledger_entries WHERE event_id IN ('e6', 'e8')")
			got := b.divergence(source)
			if got["g marker_without_effect"] != 0 || got["g effect_without_marker"] != 0 {
				t.Errorf("after the repair: %v", got)
			}
		})
	}
}

func TestSeveralEffectsOfAnEvent(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Effect: Effect{Table: "ledger_entries", EventID: "event_id", Time: "created_at", TxID: "txid"}}, runbookDDL, effectsDDL)
	for n := range 20 {
		b.exec(fmt.Sprintf(`INSERT INTO processed_events VALUES ('g', 'e%[1]d', 't', 0, 0, now() - interval '5 minutes');
		  INSERT INTO ledger_entries (event_id, created_at) VALUES ('e%[1]d', now() - interval '5 minutes'), ('e%[1]d', now() - interval '5 minutes')`, n))
	}
	b.pollExact()
	wantRows(t, "two effects each", b.divergence(b.store.Divergence().(*divergence)),
		map[string]int64{"g marker_without_effect": 0, "g different_transaction": 0, " effect_without_marker": 0})
}

func TestEffectsWithoutAnEventID(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{Effect: Effect{Table: "ledger_entries", EventID: "-", Time: "created_at", Group: "g"}}, runbookDDL, effectsDDL)
	for n := range 20 {
		b.exec(fmt.Sprintf(`INSERT INTO processed_events VALUES ('g', 'e%[1]d', 't', 0, 0, now() - interval '5 minutes')`, n))
		if n > 2 {
			b.exec(`INSERT INTO ledger_entries (event_id, created_at) VALUES ('?', now() - interval '5 minutes')`)
		}
	}
	b.pollExact()
	got := b.divergence(b.store.Divergence().(*divergence))
	if n := got["g count_difference"]; n != 3 || len(got) != 1 {
		t.Errorf("%v, want a difference of 3", got)
	}
}

func TestEffectTablesThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL, "CREATE TABLE bare (event_id text)", "CREATE TABLE clock (event_id text, created_at timestamptz DEFAULT clock_timestamp())", "CREATE INDEX ON clock (event_id)")
	try := func(table string) (*Divergence, error) {
		s := newStore(t, Config{Config: dbconn.To(b.dsn), Effect: Effect{Table: table, EventID: "event_id", Time: "created_at", TxID: "txid"}})
		snap, err := s.Divergence().Poll(t.Context())
		if err != nil {
			return nil, err
		}
		return snap.(*Divergence), nil
	}
	for table, words := range map[string][]string{
		"nowhere": {"nowhere", "does not exist", "postgres.effect.table"},
		"bare":    {"bare", "CREATE INDEX CONCURRENTLY", "event_id"},
	} {
		_, err := try(table)
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want it to say %q", table, err, w)
			}
		}
	}
	d, err := try("clock")
	if err != nil || len(d.problems) != 2 {
		t.Errorf("%v %+v, want two things that are not compared", err, d)
	}
	for _, r := range d.Rows {
		if r.Kind != MarkerWithoutEffect {
			t.Errorf("%+v is published and was not compared", r)
		}
	}
	if newStore(t, Config{Config: dbconn.To(b.dsn)}).Divergence() != nil {
		t.Error("a source without an effect table")
	}
}
