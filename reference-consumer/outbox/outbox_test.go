package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/outbox"
	"oncewatch/reference-consumer/schema"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// mailer is a receiver that counts. With honours it does what a good one does:
// the second request with an Idempotency-Key sends nothing.
type mailer struct {
	*httptest.Server
	honours bool
	answer  func(operation string, attempt int) int // status; nil: 200

	mu    sync.Mutex
	asked map[string]int // requests by operation
	sent  map[string]int // e-mails by operation
	order []string
}

func newMailer(t testing.TB) *mailer {
	m := &mailer{asked: map[string]int{}, sent: map[string]int{}}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var in struct {
			OperationID string `json:"operation_id"`
			Payload     json.RawMessage
		}
		key := r.Header.Get("Idempotency-Key")
		if err := json.Unmarshal(body, &in); err != nil || in.OperationID != key || key == "" || len(in.Payload) == 0 {
			t.Errorf("request %q with key %q: %v", body, key, err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asked[key]++
		status := http.StatusOK
		if m.answer != nil {
			status = m.answer(key, m.asked[key])
		}
		if status < 300 && (!m.honours || m.sent[key] == 0) {
			m.sent[key]++
			m.order = append(m.order, key)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *mailer) counts() (operations, emails, requests int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.sent {
		emails += n
	}
	for _, n := range m.asked {
		requests += n
	}
	return len(m.sent), emails, requests
}

type bundle struct {
	t    testing.TB
	pool *pgxpool.Pool
	m    *mailer
	reg  *prometheus.Registry
}

func setup(t testing.TB) *bundle {
	t.Helper()
	dsn := testenv.Postgres(t)
	if err := schema.Migrate(t.Context(), dsn, schema.Options{}); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &bundle{t, pool, newMailer(t), prometheus.NewRegistry()}
}

func (b *bundle) count(sql string) int {
	b.t.Helper()
	var n int
	if err := b.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// intent is written by a handler, with its effect.
func (b *bundle) intent(event int64, in outbox.Intent) inbox.Handled {
	b.t.Helper()
	box, err := inbox.New(inbox.Config{Group: "g", Handler: func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
		return outbox.Queue(tx, "g", ev, in)
	}})
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := box.Apply(context.Background(), b.pool, inbox.Batch{Topic: "t", Next: event + 1, Events: []inbox.Event{{ID: fmt.Sprint("evt-", event), Offset: event}}})
	if err != nil {
		b.t.Fatal(err)
	}
	return res.Handled[0]
}

// relay runs until the test says stop.
func (b *bundle) relay(change func(*outbox.Config)) (stop func()) {
	b.t.Helper()
	cfg := outbox.Config{Pool: b.pool, Group: "g", Endpoint: b.m.URL, Poll: 5 * time.Millisecond, BackoffBase: time.Millisecond, BackoffMax: 5 * time.Millisecond,
		Timeout: 2 * time.Second, Lease: 5 * time.Second, Registerer: prometheus.NewRegistry()}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- outbox.Run(ctx, cfg) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				b.t.Error(err)
			}
		})
	}
	b.t.Cleanup(stop)
	return stop
}

func (b *bundle) eventually(what string, ok func() bool) {
	b.t.Helper()
	testenv.Eventually(b.t, what, ok)
}

func TestDeliversOnceInOrderOfTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range int64(60) {
		b.intent(i, outbox.Intent{OperationID: fmt.Sprintf("op-%03d", i), Key: fmt.Sprintf("acct-%d", i%3), Kind: "mail", Payload: i})
	}
	// Several relays at once: SKIP LOCKED shares the work, keys stay in order.
	for range 3 {
		b.relay(nil)
	}
	b.eventually("60 delivered", func() bool { return b.count("SELECT count(*) FROM outbox WHERE status = 'delivered'") == 60 })
	if ops, emails, requests := b.m.counts(); ops != 60 || emails != 60 || requests != 60 {
		t.Errorf("%d operations, %d e-mails, %d requests, want 60 each", ops, emails, requests)
	}
	last := map[byte]string{}
	for _, op := range b.m.order {
		var n int
		if _, err := fmt.Sscanf(op, "op-%d", &n); err != nil {
			t.Fatal(err)
		}
		key := byte(n % 3)
		if op < last[key] {
			t.Errorf("%s delivered after %s of the same key", op, last[key])
		}
		last[key] = op
	}
}

// A transaction that commits late, with a smaller id, is not
// skipped.
func TestLateCommitIsNotSkipped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const insert = `INSERT INTO outbox (consumer_group, operation_id, key, kind, payload, event_id) VALUES ('g', $1, $1, 'mail', '1', $1)`
	late, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), insert, "late"); err != nil { // takes the smaller id
		t.Fatal(err)
	}
	if _, err := b.pool.Exec(t.Context(), insert, "early"); err != nil {
		t.Fatal(err)
	}
	b.relay(nil)
	b.eventually("the early one", func() bool { _, n, _ := b.m.counts(); return n == 1 })
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.eventually("the late one", func() bool { _, n, _ := b.m.counts(); return n == 2 })
	if !slices.Equal(b.m.order, []string{"early", "late"}) {
		t.Error(b.m.order)
	}
}

func TestRetriesAndDeadIntents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.m.answer = func(op string, attempt int) int {
		switch {
		case op == "flaky" && attempt < 4:
			return http.StatusServiceUnavailable
		case op == "busy" && attempt < 2:
			return http.StatusTooManyRequests
		case op == "hopeless":
			return http.StatusInternalServerError
		case op == "wrong":
			return http.StatusUnprocessableEntity
		}
		return http.StatusAccepted
	}
	for i, op := range []string{"flaky", "busy", "hopeless", "wrong"} {
		b.intent(int64(i), outbox.Intent{OperationID: op, Key: op, Kind: "mail", Payload: op})
	}
	b.intent(9, outbox.Intent{OperationID: "behind", Key: "hopeless", Kind: "mail", Payload: 1}) // the same key as a dead one
	reg := prometheus.NewRegistry()
	b.relay(func(c *outbox.Config) { c.MaxAttempts = 6; c.Registerer = reg })
	b.eventually("all finished", func() bool { return b.count("SELECT count(*) FROM outbox WHERE status = 'pending'") == 0 })
	for _, c := range []struct {
		op, status string
		attempts   int
	}{{"flaky", "delivered", 4}, {"busy", "delivered", 2}, {"hopeless", "dead", 6}, {"wrong", "dead", 1}, {"behind", "delivered", 1}} {
		var status string
		var attempts int
		var lastError *string
		if err := b.pool.QueryRow(t.Context(), "SELECT status, attempts, last_error FROM outbox WHERE operation_id = $1", c.op).Scan(&status, &attempts, &lastError); err != nil {
			t.Fatal(err)
		}
		if status != c.status || attempts != c.attempts || (status == "dead") != (lastError != nil) {
			t.Errorf("%s: %s after %d attempts (%v), want %s after %d", c.op, status, attempts, lastError, c.status, c.attempts)
		}
	}
	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" {
					name += "/" + l.GetValue()
				}
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{"outbox_deliveries_total/delivered": 3, "outbox_deliveries_total/dead": 2, "outbox_deliveries_total/retry": 3 + 1 + 5, "outbox_pending": 0, "outbox_oldest_pending_age_seconds": 0} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v, want %v", name, v, want)
		}
	}
}

func TestPendingIsShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.m.answer = func(string, int) int { return http.StatusServiceUnavailable }
	b.intent(1, outbox.Intent{OperationID: "op", Key: "k", Kind: "mail", Payload: 1})
	if _, err := b.pool.Exec(t.Context(), "UPDATE outbox SET created_at = now() - interval '20 minutes'"); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	b.relay(func(c *outbox.Config) { c.MaxAttempts = 1 << 30; c.Registerer = reg })
	b.eventually("an age of 20 minutes", func() bool {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "outbox_oldest_pending_age_seconds" {
				age := f.GetMetric()[0].GetGauge().GetValue()
				return age > 1190 && age < 1300
			}
		}
		return false
	})
}

// An intent is the business operation's: a second event of the same operation
// leaves none, and its effect still counts.
func TestOperationIdentity(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range int64(3) {
		if h := b.intent(i, outbox.Intent{OperationID: "confirmation:booking-7", Key: "booking-7", Kind: "mail", Payload: i}); h.Outcome != inbox.Processed {
			t.Errorf("event %d: %v, want processed", i, h.Outcome)
		}
	}
	b.relay(nil)
	b.eventually("delivered", func() bool { return b.count("SELECT count(*) FROM outbox WHERE status = 'delivered'") == 1 })
	if _, emails, _ := b.m.counts(); emails != 1 {
		t.Errorf("%d e-mails, want 1", emails)
	}
}

// The window that remains, measured: 1,000 relays that die after the
// receiver's answer and before the mark. Each sends once more; a receiver that
// honours the key mails nobody twice.
func TestDuplicateWindow(t *testing.T) {
	t.Parallel()
	for _, honours := range []bool{true, false} {
		t.Run(fmt.Sprintf("receiver honours the key: %v", honours), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.m.honours = honours
			const n = 1000
			_, err := b.pool.CopyFrom(t.Context(), pgx.Identifier{"outbox"}, []string{"consumer_group", "operation_id", "key", "kind", "payload", "event_id"},
				pgx.CopyFromSlice(n, func(i int) ([]any, error) {
					op := fmt.Sprintf("op-%04d", i)
					return []any{"g", op, op, "mail", "1", op}, nil
				}))
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			crashes := 0
			b.relay(func(c *outbox.Config) {
				c.Workers, c.Timeout, c.Lease = 20, 3*time.Second, 5*time.Second
				c.Failpoint = func(name string) {
					mu.Lock()
					die := name == "after_send" && crashes < n
					if die {
						crashes++
					}
					mu.Unlock()
					if die {
						runtime.Goexit() // this delivery never comes to its mark
					}
				}
			})
			b.eventually("all delivered", func() bool { return b.count("SELECT count(*) FROM outbox WHERE status = 'delivered'") == n })
			operations, emails, requests := b.m.counts()
			t.Logf("%d crashes between answer and mark: %d requests, %d e-mails for %d operations", crashes, requests, emails, operations)
			want := n
			if !honours {
				want = 2 * n
			}
			if crashes != n || requests != 2*n || emails != want {
				t.Errorf("%d crashes, %d requests, %d e-mails, want %d, %d, %d", crashes, requests, emails, n, 2*n, want)
			}
		})
	}
}
