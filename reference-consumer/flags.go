package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/exporter-toolkit/web"

	"oncewatch/reference-consumer/kafkaconn"
)

// Shared flags of all commands.
type Shared struct {
	Postgres struct {
		DSN            string `name:"dsn" help:"Connection string; absent: libpq's PG* variables."`
		MaxConnections int32  `name:"max-connections" default:"16" help:"Size of the connection pool."`
	} `embed:"" prefix:"postgres."`
	Kafka kafkaconn.Config `embed:"" prefix:"kafka."`
	Topic string           `default:"payments" help:"Topic of the events."`
	Group string           `default:"ledger-writer" help:"Consumer group; the first half of a marker's key."`
	Web   struct {
		ListenAddress string `name:"listen-address" default:":10078" help:"Address of the metrics, /-/healthy and /-/ready; empty: none."`
		TelemetryPath string `name:"telemetry-path" default:"/metrics" help:"Path under which to expose metrics."`
		ConfigFile    string `name:"config.file" type:"path" help:"exporter-toolkit configuration: TLS, basic auth."`
	} `embed:"" prefix:"web."`
	Log struct {
		Level  string `default:"info" enum:"debug,info,warn,error" help:"debug, info, warn or error."`
		Format string `default:"logfmt" enum:"logfmt,json" help:"logfmt or json."`
	} `embed:"" prefix:"log."`
}

func (s *Shared) logger(w io.Writer) (*slog.Logger, error) {
	level, format := promslog.NewLevel(), promslog.NewFormat()
	if err := errors.Join(level.Set(s.Log.Level), format.Set(s.Log.Format)); err != nil {
		return nil, fmt.Errorf("--log.level, --log.format: %w", err)
	}
	return promslog.New(&promslog.Config{Level: level, Format: format, Writer: w}), nil
}

// serve exposes the registry until the returned function is called.
func (s *Shared) serve(reg *prometheus.Registry, log *slog.Logger, ready func() bool) (func(), error) {
	if s.Web.ListenAddress == "" {
		return func() {}, nil
	}
	path := s.Web.TelemetryPath
	if !strings.HasPrefix(path, "/") || path == "/" || strings.HasPrefix(path, "/-/") || strings.ContainsAny(path, " {}") {
		return nil, fmt.Errorf("--web.telemetry-path=%s: want a path of its own, such as /metrics", path)
	}
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle(path, promhttp.InstrumentMetricHandler(reg, promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, Timeout: 10 * time.Second})))
	mux.HandleFunc("/-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("/-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	l, err := net.Listen("tcp", s.Web.ListenAddress)
	if err != nil {
		return nil, fmt.Errorf("--web.listen-address: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	addresses, socket := []string{s.Web.ListenAddress}, false
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := web.Serve(l, server, &web.FlagConfig{WebListenAddresses: &addresses, WebSystemdSocket: &socket, WebConfigFile: &s.Web.ConfigFile}, log)
		if err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not served", "error", err)
		}
	}()
	log.Info("serving metrics", "address", l.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close()
		}
		<-done
	}, nil
}

// daysMapper decodes durations that may be given in days.
type daysMapper struct{}

func (daysMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := parseDuration(text)
	if err != nil {
		return err
	}
	target.SetInt(int64(d))
	return nil
}

// parseDuration takes Go's units and d for 24 hours, such as 8d or 1d12h.
func parseDuration(text string) (time.Duration, error) {
	rest := text
	var sum time.Duration
	if days, tail, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration: give it as 8d, 36h or 1d12h", text)
		}
		sum, rest = time.Duration(n*float64(24*time.Hour)), tail
	}
	if rest == "" || rest == "0" {
		return sum, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration: give it as 8d, 36h or 1d12h", text)
	}
	return sum + d, nil
}
