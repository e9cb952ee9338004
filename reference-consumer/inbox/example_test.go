package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"oncewatch/deploy/pgserver"
	"oncewatch/reference-consumer/inbox"
	"oncewatch/reference-consumer/schema"
)

// A service of its own: bookings into a table of seats. The handler is all
// there is to write; the inbox does the rest.
func ExampleInbox_Apply() {
	ctx := context.Background()
	pool, done := exampleDatabase(ctx)
	defer done()

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
	delivered := inbox.Event{ID: "evt-42", Topic: "bookings", Offset: 7, Value: []byte(`{"seat":"12A","guest":"Ada"}`)}
	for range 2 { // the broker delivers it twice
		res, err := in.Apply(ctx, pool, inbox.Batch{Topic: "bookings", Events: []inbox.Event{delivered}, Next: 8})
		if err != nil {
			panic(err)
		}
		fmt.Println(res.Handled[0].Outcome)
	}
	// Output:
	// processed
	// duplicate
}

func exampleDatabase(ctx context.Context) (*pgxpool.Pool, func()) {
	server, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		panic(err)
	}
	if err := schema.Migrate(ctx, server.DSN("postgres"), schema.Options{}); err != nil {
		panic(err)
	}
	pool, err := pgxpool.New(ctx, server.DSN("postgres"))
	if err != nil {
		panic(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE seats (seat text PRIMARY KEY, guest text)"); err != nil {
		panic(err)
	}
	return pool, func() {
		pool.Close()
		_ = server.Close()
	}
}
