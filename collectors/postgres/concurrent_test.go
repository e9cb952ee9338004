package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"oncewatch/collectors/postgres/cells"
)

// TestExactUnderConcurrentWriters polls while consumers and a pruner work, with
// the scrub switched off: every poll must be exact by itself.
func TestExactUnderConcurrentWriters(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, runbookDDL)
	b.insert("g0", "t", 3000, 3*time.Second)
	tuning := defaultTuning()
	tuning.fine, tuning.coarse, tuning.slack = cells.Second/5, cells.Second, cells.Second
	tuning.edgeRows, tuning.scrubRows = 1, 0
	b.store.ledger = newLedger(b.store, tuning)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	work := func(seed uint64, f func(rng *rand.Rand, conn *pgx.Conn) error) {
		conn := dial(t, b.dsn)
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, seed))
			for ctx.Err() == nil {
				if err := f(rng, conn); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for w := range uint64(4) {
		n := 0
		work(w, func(rng *rand.Rand, conn *pgx.Conn) error {
			tx, err := conn.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			if w == 3 { // one that reads, waits and then writes: no xid until it does
				if _, err := tx.Exec(ctx, "SELECT count(*) FROM pg_class"); err != nil {
					return err
				}
				time.Sleep(time.Duration(rng.IntN(2500)) * time.Millisecond)
			}
			for range 1 + rng.IntN(20) {
				n++
				if _, err := tx.Exec(ctx, fmt.Sprintf(insertSQL, "", fmt.Sprintf("'g%d', 'w%d-%d', 't', %d, %d", w, w, n, w, n))); err != nil {
					return err
				}
			}
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			if rng.IntN(20) == 0 {
				return nil // rolled back
			}
			return tx.Commit(ctx)
		})
	}
	work(9, func(_ *rand.Rand, conn *pgx.Conn) error {
		time.Sleep(50 * time.Millisecond)
		_, err := conn.Exec(ctx, `DELETE FROM processed_events WHERE ctid = ANY (ARRAY(
		  SELECT ctid FROM processed_events WHERE processed_at < now() - interval '4 seconds' ORDER BY processed_at LIMIT 100))`)
		return err
	})
	polls := 0
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); polls++ {
		b.pollExact()
		time.Sleep(20 * time.Millisecond) // the consumers' turn
	}
	t.Logf("%d polls, all exact", polls)
	if polls < 20 {
		t.Errorf("only %d polls in 8 s", polls)
	}
}
