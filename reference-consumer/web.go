package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
)

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
