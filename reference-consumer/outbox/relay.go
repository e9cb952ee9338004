package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"oncewatch/reference-consumer/retry"
)

// Config of Run.
type Config struct {
	Pool  *pgxpool.Pool
	Group string
	// Endpoint receives each intent as a POST of its payload.
	Endpoint string
	HTTP     *http.Client

	// Workers deliver at the same time (default 8), each key in order.
	Workers int
	// Timeout of one delivery (default 10 s); Lease is how long a claimed
	// intent is nobody else's, longer than Timeout (default 30 s). After a
	// crash the intent waits for its lease to end.
	Timeout, Lease time.Duration
	// MaxAttempts until an intent is dead (default 10); Backoff between them
	// starts at BackoffBase (1 s), doubles up to BackoffMax (5 min), jittered.
	MaxAttempts             int
	BackoffBase, BackoffMax time.Duration
	// Poll is how often to look for intents when there were none; default 1 s.
	Poll time.Duration

	Registerer prometheus.Registerer
	Log        *slog.Logger
	// Failpoint is called at named boundaries; for crash tests only.
	Failpoint func(name string)
}

func (cfg *Config) defaults() error {
	if cfg.Pool == nil || cfg.Group == "" || cfg.Endpoint == "" {
		return errors.New("outbox: Pool, Group and Endpoint are required")
	}
	def(&cfg.Workers, 8)
	def(&cfg.Timeout, 10*time.Second)
	def(&cfg.Lease, 3*cfg.Timeout)
	def(&cfg.MaxAttempts, 10)
	def(&cfg.BackoffBase, time.Second)
	def(&cfg.BackoffMax, 5*time.Minute)
	def(&cfg.Poll, time.Second)
	if cfg.Lease <= cfg.Timeout {
		return fmt.Errorf("outbox: the lease (%s) must be longer than the timeout of a delivery (%s)", cfg.Lease, cfg.Timeout)
	}
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{}
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Failpoint == nil {
		cfg.Failpoint = func(string) {}
	}
	return nil
}

func def[T int | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Run delivers intents until ctx ends; deliveries in flight are finished.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.defaults(); err != nil {
		return err
	}
	m := newMetrics(cfg)
	defer m.unregister()
	r := &relay{cfg: cfg, m: m}
	for ctx.Err() == nil {
		n, err := r.round(ctx)
		if err != nil && ctx.Err() == nil {
			cfg.Log.Error("outbox: could not claim intents", "consumer_group", cfg.Group, "error", err)
		}
		if n > 0 && err == nil {
			continue
		}
		_ = retry.Wait(ctx, cfg.Poll)
	}
	return nil
}

type relay struct {
	cfg Config
	m   *metrics
}

// claimed is an intent this relay may deliver until its lease ends.
type claimed struct {
	id          int64
	operationID string
	key         string
	kind        string
	payload     []byte
	eventID     string
	trace       *string
	attempts    int
}

// Of each key only the oldest pending intent can be claimed, so a key's order
// holds whatever the number of relays. Nothing is remembered of ids already
// passed: a transaction that commits late, with a smaller id, is found like
// any other. (min and not NOT EXISTS: it is one probe of an index even on a
// table without statistics, where the join read every pending row each time.)
// The attempt is counted before it is made: a delivery that kills
// the relay counts.
const claimSQL = `UPDATE outbox o
SET available_at = clock_timestamp() + $3::interval, attempts = o.attempts + 1
FROM (
    SELECT id FROM outbox c
    WHERE consumer_group = $1 AND status = 'pending' AND available_at <= clock_timestamp()
      AND id = (SELECT min(e.id) FROM outbox e WHERE e.consumer_group = $1 AND e.key = c.key AND e.status = 'pending')
    ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
) head
WHERE o.id = head.id
RETURNING o.id, o.operation_id, o.key, o.kind, o.payload, o.event_id, o.trace_context, o.attempts`

// round claims some intents and delivers them side by side: their keys differ.
func (r *relay) round(ctx context.Context) (int, error) {
	claim, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rows, err := r.cfg.Pool.Query(claim, claimSQL, r.cfg.Group, r.cfg.Workers, r.cfg.Lease)
	if err != nil {
		return 0, err
	}
	intents, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (claimed, error) {
		var c claimed
		return c, row.Scan(&c.id, &c.operationID, &c.key, &c.kind, &c.payload, &c.eventID, &c.trace, &c.attempts)
	})
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	for _, c := range intents {
		wg.Go(func() { r.deliver(context.WithoutCancel(ctx), c) })
	}
	wg.Wait()
	return len(intents), nil
}

func (r *relay) deliver(ctx context.Context, c claimed) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	r.cfg.Failpoint("before_send")
	err := r.send(ctx, c)
	r.cfg.Failpoint("after_send")
	attrs := []any{"consumer_group", r.cfg.Group, "operation_id", c.operationID, "event_id", c.eventID, "attempt", c.attempts}
	var permanent *permanentError
	outcome := "delivered"
	switch {
	case err == nil:
		r.cfg.Log.Debug("intent delivered", attrs...)
	case errors.As(err, &permanent) || c.attempts >= r.cfg.MaxAttempts:
		outcome = "dead"
		r.cfg.Log.Warn("intent dead", append(attrs, "error", err)...)
	default:
		outcome = "retry"
		r.cfg.Log.Info("delivery failed, will be repeated", append(attrs, "error", err)...)
	}
	if markErr := r.mark(ctx, c, outcome, err); markErr != nil {
		r.cfg.Log.Error("could not mark the intent: it will be sent again after its lease", append(attrs, "error", markErr)...)
		return
	}
	r.cfg.Failpoint("after_mark")
	r.m.deliveries.WithLabelValues(outcome).Inc()
}

// permanentError is an answer that another attempt would get again.
type permanentError struct{ status int }

func (e *permanentError) Error() string { return fmt.Sprintf("the receiver answered %d", e.status) }

func (r *relay) send(ctx context.Context, c claimed) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"operation_id": c.operationID, "kind": c.kind, "key": c.key, "payload": json.RawMessage(c.payload)})
	if err != nil {
		return fmt.Errorf("encode the intent: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.cfg.Endpoint, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", c.operationID)
	if c.trace != nil {
		req.Header.Set("traceparent", *c.trace)
	}
	resp, err := r.cfg.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300:
		return nil
	case s >= 400 && s < 500 && s != http.StatusRequestTimeout && s != http.StatusTooEarly && s != http.StatusTooManyRequests:
		return &permanentError{s}
	default:
		return fmt.Errorf("the receiver answered %d", s)
	}
}

func (r *relay) mark(ctx context.Context, c claimed, outcome string, cause error) error {
	var err error
	switch outcome {
	case "delivered":
		_, err = r.cfg.Pool.Exec(ctx, "UPDATE outbox SET status = 'delivered', last_error = NULL, finished_at = now() WHERE id = $1", c.id)
	case "dead":
		_, err = r.cfg.Pool.Exec(ctx, "UPDATE outbox SET status = 'dead', last_error = $2, finished_at = now() WHERE id = $1 AND status = 'pending'", c.id, cause.Error())
	default:
		_, err = r.cfg.Pool.Exec(ctx, "UPDATE outbox SET available_at = clock_timestamp() + $2::interval, last_error = $3 WHERE id = $1 AND status = 'pending'", c.id, retry.Backoff(r.cfg.BackoffBase, r.cfg.BackoffMax, c.attempts), cause.Error())
	}
	return err
}
