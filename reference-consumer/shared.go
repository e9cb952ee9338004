package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/config"
	"oncewatch/collectors/dbconn"
	"oncewatch/collectors/kafkaconn"
)

// Shared flags of all commands.
type Shared struct {
	Postgres Postgres `embed:"" prefix:"postgres."`
	Kafka    Kafka    `embed:"" prefix:"kafka."`
	Topic    string   `default:"payments" help:"Topic of the events."`
	Group    string   `default:"ledger-writer" help:"Consumer group; the first half of a marker's key."`
	Web      struct {
		ListenAddress string `name:"listen-address" default:":10078" help:"Address of the metrics, /-/healthy and /-/ready; empty: none."`
		TelemetryPath string `name:"telemetry-path" default:"/metrics" help:"Path under which to expose metrics."`
		ConfigFile    string `name:"config.file" type:"path" help:"exporter-toolkit configuration: TLS, basic auth."`
	} `embed:"" prefix:"web."`
	Log config.Log `embed:"" prefix:"log."`
}

// Postgres is how to reach the database.
type Postgres struct {
	dbconn.Config  `embed:""`
	MaxConnections int32 `default:"16" help:"Size of the connection pool."`
}

// pool of at most so many connections.
func (p Postgres) pool(ctx context.Context, connections int32) (*pgxpool.Pool, error) {
	pc, err := p.Pool()
	if err != nil {
		return nil, err
	}
	pc.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open the pool: %w", err)
	}
	return pool, nil
}

// Kafka is how to reach the brokers.
type Kafka struct {
	kafkaconn.Config `embed:""`
	ClientID         string `default:"reference-consumer" help:"Client id shown on the brokers."`
}

// dialTimeout bounds the setup of a connection to a broker.
const dialTimeout = 10 * time.Second

// Options of a client.
func (k Kafka) Options() ([]kgo.Opt, error) {
	opts, err := k.Config.Options(dialTimeout, nil)
	if err != nil {
		return nil, err
	}
	return append(opts, kgo.ClientID(k.ClientID)), nil
}

// output of the commands.
type output struct{ stdout, stderr io.Writer }
