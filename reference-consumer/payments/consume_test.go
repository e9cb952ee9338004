package payments_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/testenv"
	"oncewatch/reference-consumer/payments"
	"oncewatch/reference-consumer/produce"
	"oncewatch/reference-consumer/schema"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestConsume(t *testing.T) {
	dsn := testenv.Postgres(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := schema.Migrate(ctx, dsn, schema.Options{}); err != nil {
		t.Fatal(err)
	}
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "payments"))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	client := []kgo.Opt{kgo.SeedBrokers(k.ListenAddrs()...)}
	stats, err := produce.Run(ctx, produce.Config{Client: client, Topic: "payments", Count: 5000, Duplicates: 0.01, Poison: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(stats)
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- payments.Run(run, payments.Config{DSN: dsn, Client: client, Topic: "payments", Group: "g", MarkerRetention: 8 * 24 * time.Hour,
			Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	}()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	start := time.Now()
	for {
		var n, d int
		if err := conn.QueryRow(ctx, "select (select count(*) from ledger_entries), (select count(*) from dead_letters)").Scan(&n, &d); err != nil {
			t.Fatal(err)
		}
		if int64(n)+int64(d) >= stats.Events {
			t.Log(n, d, time.Since(start))
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	t.Log(<-done)
}
