package postgres

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/dbconn"
	"oncewatch/deploy/pgserver"
	"oncewatch/deploy/testenv"
)

var (
	propertyFor  = flag.Duration("property.for", 12*time.Second, "how long random histories are driven against the ledger")
	propertySeed = flag.Uint64("property.seed", 0, "run only the history of this seed")
)

// smallTuning makes buckets of a fraction of a second, so that a history of
// seconds goes through everything that a table goes through in days, and a
// scrub so slow that what it finds does not hide what the rest misses.
func smallTuning() tuning {
	t := defaultTuning()
	t.fine, t.coarse = 20_000, 100_000
	t.slack = 5_000
	t.edgeRows, t.scrubRows = 3, 5
	return t
}

// TestRandomHistories drives random histories against a real PostgreSQL and
// compares the ledger with SELECT, in the poll's own snapshot, after every
// poll.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, pgserver.Options{Config: map[string]string{"max_prepared_transactions": "20"}})
	for _, kind := range []string{"plain", "partitioned"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			end := time.Now().Add(*propertyFor)
			for n := 0; time.Now().Before(end); n++ {
				seed := *propertySeed
				if seed == 0 {
					seed = rand.Uint64()
				}
				name := fmt.Sprintf("history_%s_%d", kind, n)
				if err := server.CreateDatabase(t.Context(), name); err != nil {
					t.Fatal(err)
				}
				ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					newHistory(t, server.DSN(name), seed, kind == "partitioned").drive(150)
				})
				if err := server.DropDatabase(t.Context(), name); err != nil {
					t.Fatal(err)
				}
				if !ok || *propertySeed != 0 {
					return
				}
			}
		})
	}
}

type history struct {
	*bench
	rng         *rand.Rand
	partitioned bool
	partitions  []int64 // starts, in seconds
	open        []*openTx
	prepared    []string
	steps       []string
}

type openTx struct {
	conn  *pgx.Conn
	wrote bool
}

func newHistory(t *testing.T, dsn string, seed uint64, partitioned bool) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 1)), partitioned: partitioned}
	ddl := runbookDDL
	if partitioned {
		ddl = `CREATE TABLE processed_events (consumer_group text NOT NULL, event_id text NOT NULL, topic text NOT NULL, partition int NOT NULL,
		  "offset" bigint NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer_group, event_id, processed_at))
		  PARTITION BY RANGE (processed_at); CREATE INDEX ON processed_events (processed_at)`
	}
	h.bench = newBench(t, Config{Config: dbconn.To(dsn)}, ddl)
	if partitioned {
		now := time.Now().Unix()
		for at := now - 60; at < now-10; at += 10 {
			h.createPartition(at, at+10)
		}
		at := h.partitions[len(h.partitions)-1] + 10
		h.createPartition(at, at+3600)
	}
	h.store.ledger = newLedger(h.store, smallTuning())
	for range h.rng.IntN(300) {
		h.insertAged()
	}
	return h
}

func (h *history) createPartition(from, to int64) {
	h.exec(fmt.Sprintf("CREATE TABLE part_%d PARTITION OF processed_events FOR VALUES FROM (to_timestamp(%d)) TO (to_timestamp(%d))", from, from, to))
	h.partitions = append(h.partitions, from)
}

func (h *history) row() string {
	h.ids++
	group, topic := []string{"a", "b", "rare"}[min(h.rng.IntN(20)/9, 2)], []string{"t", "u"}[h.rng.IntN(2)]
	return fmt.Sprintf("'%s', 'e%d', '%s', %d, %d", group, h.ids, topic, h.rng.IntN(3), h.ids)
}

const insertSQL = `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset"%s) VALUES (%s)`

func (h *history) insertAged() {
	lowest := 50.0
	if h.partitioned {
		lowest = time.Since(time.Unix(h.partitions[0], 0)).Seconds() - 1
	}
	h.exec(fmt.Sprintf(insertSQL, ", processed_at", h.row()+fmt.Sprintf(", clock_timestamp() - interval '%f seconds'", h.rng.Float64()*lowest)))
}

// drive makes random steps with polls between.
func (h *history) drive(steps int) {
	defer func() {
		if h.Failed() {
			h.Logf("the last steps: %s", strings.Join(h.steps[max(0, len(h.steps)-25):], "; "))
		}
	}()
	h.Cleanup(func() {
		for len(h.prepared) > 0 {
			h.endPrepared()
		}
	})
	h.pollExact()
	for range steps {
		h.step()
		if h.rng.IntN(2) == 0 {
			h.steps = append(h.steps, "POLL")
			h.pollExact()
		}
	}
	h.endAll()
	h.pollExact()
}

func (h *history) endAll() {
	for len(h.open) > 0 {
		h.endTx()
	}
	for len(h.prepared) > 0 {
		h.endPrepared()
	}
}

func (h *history) step() {
	type choice struct {
		weight int
		name   string
		do     func()
	}
	choices := []choice{
		{20, "insert", func() { h.exec(fmt.Sprintf(insertSQL, "", h.row())) }},
		{10, "insert several", func() {
			for range h.rng.IntN(30) {
				h.exec(fmt.Sprintf(insertSQL, "", h.row()))
			}
		}},
		{10, "begin", h.beginTx},
		{14, "write in tx", h.writeTx},
		{10, "end tx", h.endTx},
		{3, "prepare", h.prepareTx},
		{3, "end prepared", h.endPrepared},
		{10, "prune by age", func() {
			h.exec(fmt.Sprintf("DELETE FROM processed_events WHERE processed_at < now() - interval '%f seconds'", h.rng.Float64()*50))
		}},
		{10, "prune a batch", func() {
			h.exec(fmt.Sprintf("DELETE FROM processed_events WHERE event_id = ANY (ARRAY(SELECT event_id FROM processed_events ORDER BY processed_at LIMIT %d))", h.rng.IntN(20)))
		}},
		{2, "truncate", func() {
			h.endAll()
			h.exec("TRUNCATE processed_events")
		}},
		{4, "future", func() {
			h.exec(fmt.Sprintf(insertSQL, ", processed_at", h.row()+fmt.Sprintf(", clock_timestamp() + interval '%f seconds'", h.rng.Float64())))
		}},
		{10, "time passes", func() { time.Sleep(time.Duration(h.rng.IntN(150)) * time.Millisecond) }},
		{2, "exporter restarts", func() { h.store.ledger = newLedger(h.store, smallTuning()); h.pollExact() }},
		// What no part but the scrub can know of; the server's tally betrays it.
		{3, "delete in the middle", func() {
			h.exec(fmt.Sprintf("DELETE FROM processed_events WHERE event_id = ANY (ARRAY(SELECT event_id FROM processed_events ORDER BY md5(event_id || '%d') LIMIT 5))", h.rng.Int64()))
			h.settle()
		}},
		{3, "back-date", func() { h.insertAged(); h.insertAged(); h.settle() }},
	}
	if h.partitioned {
		choices = append(choices, choice{4, "drop a partition", func() {
			if len(h.partitions) < 2 || h.partitions[1] > time.Now().Unix() {
				return // the one that takes today's rows
			}
			h.endAll()
			h.exec(fmt.Sprintf("DROP TABLE part_%d", h.partitions[0]))
			h.partitions = h.partitions[1:]
		}}, choice{2, "create a partition", func() {
			h.endAll() // they hold locks
			at := h.partitions[len(h.partitions)-1] + 7200
			h.createPartition(at, at+10)
		}})
	}
	sum := 0
	for _, c := range choices {
		sum += c.weight
	}
	n := h.rng.IntN(sum)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			h.steps = append(h.steps, c.name)
			c.do()
			return
		}
	}
}

// settle polls until what the server's tally betrays has been counted again, and
// a full round of the scrub has begun and ended since: what the tally hides, one
// change behind another, only the scrub finds.
func (h *history) settle() {
	h.exec("SELECT pg_stat_force_next_flush()")
	h.exec("SELECT 1")
	began := time.Now()
	l := h.store.ledger
	defer func(rows int64) { l.t.scrubRows = rows }(l.t.scrubRows)
	l.t.scrubRows = 100 // so that a round takes few polls
	for n := 0; ; n++ {
		h.poll()
		if !l.suspects.pending() && l.scrub.since.After(began) {
			return
		}
		if n > 500 {
			h.Fatal("the recount does not end, or the scrub does not come round")
		}
	}
}

func (h *history) beginTx() {
	if len(h.open) >= 4 {
		return
	}
	tx := &openTx{conn: dial(h.T, h.dsn)}
	run(h.T, tx.conn, "BEGIN")
	h.open = append(h.open, tx)
}

func (h *history) writeTx() {
	if len(h.open) == 0 {
		return
	}
	tx := h.open[h.rng.IntN(len(h.open))]
	tx.wrote = true
	switch h.rng.IntN(3) {
	case 0:
		run(h.T, tx.conn, "SAVEPOINT s")
		run(h.T, tx.conn, fmt.Sprintf(insertSQL, "", h.row()))
		run(h.T, tx.conn, "ROLLBACK TO s")
	case 1: // a duplicate that is rolled back
		run(h.T, tx.conn, "SAVEPOINT s")
		row := h.row()
		run(h.T, tx.conn, fmt.Sprintf(insertSQL, "", row))
		if _, err := tx.conn.Exec(h.Context(), fmt.Sprintf(insertSQL, "", row)); err == nil {
			h.Error("a duplicate was accepted")
		}
		run(h.T, tx.conn, "ROLLBACK TO s")
	default:
		run(h.T, tx.conn, fmt.Sprintf(insertSQL, "", h.row()))
	}
}

func (h *history) takeTx() *openTx {
	if len(h.open) == 0 {
		return nil
	}
	i := h.rng.IntN(len(h.open))
	tx := h.open[i]
	h.open = append(h.open[:i], h.open[i+1:]...)
	return tx
}

func (h *history) endTx() {
	if tx := h.takeTx(); tx != nil {
		// The tally has no more to tell when the next operation is hidden by it.
		run(h.T, tx.conn, "SELECT pg_stat_force_next_flush()")
		run(h.T, tx.conn, []string{"COMMIT", "COMMIT", "ROLLBACK"}[h.rng.IntN(3)])
		_ = tx.conn.Close(h.Context())
	}
}

func (h *history) prepareTx() {
	if tx := h.takeTx(); tx != nil {
		h.ids++
		gid := fmt.Sprintf("%s %d", h.Name(), h.ids)
		run(h.T, tx.conn, fmt.Sprintf("PREPARE TRANSACTION '%s'", gid))
		h.prepared = append(h.prepared, gid)
		_ = tx.conn.Close(h.Context())
	}
}

func (h *history) endPrepared() {
	if len(h.prepared) > 0 {
		h.exec(fmt.Sprintf("%s PREPARED '%s'", []string{"COMMIT", "ROLLBACK"}[h.rng.IntN(2)], h.prepared[0]))
		h.prepared = h.prepared[1:]
	}
}
