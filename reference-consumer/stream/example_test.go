package stream_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/pgserver"
	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/schema"
	"oncewatch/reference-consumer/stream"
)

// A whole service: bookings from Kafka into a table of seats, each applied
// once. What a service of your own needs is between the two lines.
func ExampleRun() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dsn, brokers, clean := surroundings(ctx)
	defer clean()

	// ----
	if err := schema.Migrate(ctx, dsn, schema.Options{}); err != nil { // or `reference-consumer migrate`
		panic(err)
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	in, err := inbox.New(inbox.Config{
		Group: "seat-projection",
		Handler: func(_ context.Context, tx *inbox.Tx, ev inbox.Event) error {
			var booking struct{ Seat, Guest string }
			if err := json.Unmarshal(ev.Value, &booking); err != nil {
				return inbox.Invalid(err) // never to be applied: the dead letters
			}
			tx.Queue("INSERT INTO seats (seat, guest) VALUES ($1, $2)", booking.Seat, booking.Guest)
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- stream.Run(ctx, stream.Config{ // until ctx ends
			Client: []kgo.Opt{kgo.SeedBrokers(brokers...)},
			Topics: []string{"bookings"},
			Pool:   pool,
			Inbox:  in,
		})
	}()
	// ----

	watchSeats(ctx, pool)
	cancel()
	fmt.Println("ended:", <-done)
	// Output:
	// 12A Ada
	// 12B Grace
	// ended: <nil>
}

// surroundings are a database and a topic with three bookings, one of them
// delivered twice.
func surroundings(ctx context.Context) (dsn string, brokers []string, clean func()) {
	server, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		panic(err)
	}
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "bookings"))
	if err != nil {
		panic(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...), kgo.DefaultProduceTopic("bookings"))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	for _, b := range [][2]string{{"evt-1", `{"seat":"12A","guest":"Ada"}`}, {"evt-1", `{"seat":"12A","guest":"Ada"}`}, {"evt-2", `{"seat":"12B","guest":"Grace"}`}} {
		r := &kgo.Record{Value: []byte(b[1]), Headers: []kgo.RecordHeader{{Key: header.EventID, Value: []byte(b[0])}}}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			panic(err)
		}
	}
	pool, err := pgxpool.New(ctx, server.DSN("postgres"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE seats (seat text, guest text)"); err != nil {
		panic(err)
	}
	return server.DSN("postgres"), k.ListenAddrs(), func() { k.Close(); _ = server.Close() }
}

// watchSeats prints the seats once there are two.
func watchSeats(ctx context.Context, pool *pgxpool.Pool) {
	for n := 0; n < 2; {
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM seats").Scan(&n); err != nil {
			panic(err)
		}
	}
	rows, err := pool.Query(ctx, "SELECT seat || ' ' || guest FROM seats ORDER BY seat")
	if err != nil {
		panic(err)
	}
	defer rows.Close()
	for rows.Next() {
		var seat string
		if err := rows.Scan(&seat); err != nil {
			panic(err)
		}
		fmt.Println(seat)
	}
}
