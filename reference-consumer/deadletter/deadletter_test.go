package deadletter_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/deadletter"
	"oncewatch/reference-consumer/schema"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	t.Parallel()
	dsn := testenv.Postgres(t)
	if err := schema.Migrate(t.Context(), dsn, schema.Options{}); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// letter of an age, of event evt-ID, put aside for a reason.
func letter(t *testing.T, pool *pgxpool.Pool, offset int64, age time.Duration, reason string) (id int64) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `INSERT INTO dead_letters (consumer_group, event_id, topic, topic_id, partition, "offset", reason, error, attempts, value, headers, created_at)
VALUES ('g', 'evt-' || $1::bigint, 'payments', gen_random_uuid(), 0, $1, $2, 'refused', 1, 'value', '[{"key":"event_id","value":"ZXZ0"},{"key":"producer_sequence","value":"MQ=="}]', now() - $3::interval) RETURNING id`, offset, reason, age).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// An event may have been applied since its letter was written, by another
// publication of it. While the marker of that would still be there, sending the
// letter again is safe whatever happened; afterwards nothing tells, and it is
// refused unless forced.
func TestRequeueOnlyWhatMarkersProtect(t *testing.T) {
	pool := database(t)
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const day = 24 * time.Hour
	marker := func(offset int64) {
		exec(t, pool, `INSERT INTO processed_events (consumer_group, event_id, topic, partition, "offset") VALUES ('g', 'evt-' || $1::bigint, 'payments', 0, 9)`, offset)
	}
	offset := int64(0)
	for name, c := range map[string]struct {
		age     time.Duration
		reason  string
		marked  bool
		o       deadletter.Options
		refusal error
		outcome deadletter.Outcome
	}{
		"young":                             {2 * day, deadletter.ReasonData, false, deadletter.Options{Retention: 8 * day}, nil, deadletter.WillBeApplied},
		"young, applied since":              {2 * day, deadletter.ReasonData, true, deadletter.Options{Retention: 8 * day}, nil, deadletter.WillBeSkipped},
		"just older than the markers":       {8*day + time.Minute, deadletter.ReasonData, false, deadletter.Options{Retention: 8 * day}, deadletter.ErrUnprotected, ""},
		"old, its marker still there":       {30 * day, deadletter.ReasonRetries, true, deadletter.Options{Retention: 8 * day}, nil, deadletter.WillBeSkipped},
		"old, markers are kept for ever":    {300 * day, deadletter.ReasonCrash, false, deadletter.Options{}, nil, deadletter.WillBeApplied},
		"old, forced":                       {30 * day, deadletter.ReasonData, false, deadletter.Options{Retention: 8 * day, Force: true}, nil, deadletter.WillBeApplied},
		"another event's id, even forced":   {day, deadletter.ReasonIDConflict, false, deadletter.Options{Force: true}, deadletter.ErrConflict, ""},
		"older than the table, even so":     {day, deadletter.ReasonTooOld, false, deadletter.Options{Force: true}, deadletter.ErrTooOld, ""},
		"put aside by a panic, and younger": {time.Hour, deadletter.ReasonPanic, false, deadletter.Options{Retention: 8 * day}, nil, deadletter.WillBeApplied},
	} {
		offset++
		id := letter(t, pool, offset, c.age, c.reason)
		if c.marked {
			marker(offset)
		}
		_, outcome, err := deadletter.Requeue(t.Context(), pool, client, id, c.o)
		if !errors.Is(err, c.refusal) || outcome != c.outcome {
			t.Errorf("%s: %q, %v, want %q, %v", name, outcome, err, c.outcome, c.refusal)
		}
		if errors.Is(err, deadletter.ErrUnprotected) && (!strings.Contains(err.Error(), "applied since") || !strings.Contains(err.Error(), "--force")) {
			t.Errorf("%s: %v does not say why and what to do", name, err)
		}
		var sent bool
		if err := pool.QueryRow(t.Context(), "SELECT requeued_at IS NOT NULL FROM dead_letters WHERE id = $1", id).Scan(&sent); err != nil || sent != (c.refusal == nil) {
			t.Errorf("%s: noted as sent: %v, %v", name, sent, err)
		}
		if c.refusal != nil {
			continue
		}
		if _, _, err := deadletter.Requeue(t.Context(), pool, client, id, deadletter.Options{}); !errors.Is(err, deadletter.ErrRequeued) {
			t.Errorf("%s, once more: %v, want a refusal", name, err)
		}
	}
	if _, _, err := deadletter.Requeue(t.Context(), pool, client, 1_000_000, deadletter.Options{}); !errors.Is(err, deadletter.ErrNotFound) {
		t.Errorf("%v, want not found", err)
	}
}

// The list is streamed and holds no values: letters of 50 MB cost it nothing.
// Only Show reads one.
func TestListIsStreamed(t *testing.T) {
	pool := database(t)
	const size = 50 << 20
	for i := range 3 {
		id := letter(t, pool, int64(i), time.Hour, deadletter.ReasonData)
		exec(t, pool, "ALTER TABLE dead_letters ALTER COLUMN value SET STORAGE EXTERNAL")
		exec(t, pool, "UPDATE dead_letters SET value = convert_to(repeat('x', $2), 'UTF8') WHERE id = $1", id, size)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0
	err := deadletter.List(t.Context(), pool, deadletter.Filter{Group: "g"}, func(l deadletter.Letter) error {
		n++
		if l.Value != nil || l.ValueBytes != size || l.Reason != deadletter.ReasonData {
			t.Errorf("letter %d: %d bytes of a value of %d in the list", l.ID, len(l.Value), l.ValueBytes)
		}
		return nil
	})
	runtime.ReadMemStats(&after)
	if err != nil || n != 3 {
		t.Fatalf("%d letters, %v, want 3", n, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 5<<20 {
		t.Errorf("listing took %d MB", used>>20)
	}
	stop := errors.New("enough")
	n = 0
	if err := deadletter.List(t.Context(), pool, deadletter.Filter{}, func(deadletter.Letter) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		t.Errorf("%d letters after the first was enough, %v", n, err)
	}
	shown, err := deadletter.Show(context.Background(), pool, 1)
	if err != nil || len(shown.Value) != size {
		t.Errorf("show: %d bytes, %v", len(shown.Value), err)
	}
}
