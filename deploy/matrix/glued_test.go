package matrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/demo"
)

// startGlued serves what a lag exporter and a count(*) exporter would, asked
// on each scrape: the stack that people glue together. It returns its address.
func startGlued(t *testing.T, s *demo.Stack) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Broker.Brokers()...), kgo.RetryTimeout(500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 900*time.Millisecond)
		defer cancel()
		lag, lagErr := gluedLag(ctx, kadm.NewClient(client))
		counts, countErr := gluedCounts(ctx, s.Consumer.DSN)
		if err := errors.Join(lagErr, countErr); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, lag, counts)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done; client.Close() })
	return l.Addr().String()
}

func gluedLag(ctx context.Context, admin *kadm.Client) (text string, err error) {
	lags, err := admin.Lag(ctx, demo.Group)
	if err != nil {
		return "", err
	}
	for _, g := range lags {
		if g.Error() != nil {
			return "", g.Error()
		}
		text += fmt.Sprintf("kafka_consumergroup_members{consumergroup=%q} %d\n", g.Group, len(g.Members))
		for _, topic := range g.Lag {
			for _, l := range topic {
				text += fmt.Sprintf("kafka_consumergroup_lag{consumergroup=%q,topic=%q,partition=\"%d\"} %d\n", g.Group, l.Topic, l.Partition, l.Lag)
			}
		}
	}
	return text, nil
}

func gluedCounts(ctx context.Context, dsn string) (text string, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, "SELECT consumer_group, count(*), extract(epoch FROM now() - min(processed_at))::float8 FROM processed_events GROUP BY 1")
	if err != nil {
		return "", err
	}
	var group string
	var n int64
	var age float64
	if _, err := pgx.ForEachRow(rows, []any{&group, &n, &age}, func() error {
		text += fmt.Sprintf("sql_processed_events_count{consumer_group=%q} %d\nsql_processed_events_oldest_age_seconds{consumer_group=%q} %g\n", group, n, group, age)
		return nil
	}); err != nil {
		return "", err
	}
	var markers, effects int64
	err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM processed_events WHERE processed_at > now() - interval '1 day'),
(SELECT count(*) FROM ledger_entries WHERE created_at > now() - interval '1 day')`).Scan(&markers, &effects)
	return text + fmt.Sprintf("sql_processed_events_last_day %d\nsql_ledger_entries_last_day %d\n", markers, effects), err
}
