// Package web serves the exporter over HTTP: /metrics for Prometheus, / for a
// person, /-/healthy and /-/ready for whoever runs it.
package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	toolkit "github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"

	"oncewatch/alerts"
)

// Config is the listener's flags, as the programs of Prometheus know them.
type Config struct {
	ListenAddress []string `name:"listen-address" default:":10077" help:"Addresses on which to expose metrics and the page."`
	ConfigFile    string   `name:"config.file" help:"Configuration file for TLS and basic authentication (exporter-toolkit's format)." type:"path"`
	TelemetryPath string   `name:"telemetry-path" default:"/metrics" help:"Path under which to expose metrics."`
	DashboardsURL string   `name:"dashboards-url" placeholder:"URL" help:"Address of the Grafana that has the dashboards: the page links each consumer group to its own there."`
	EnablePprof   bool     `name:"enable-pprof" help:"Serve the program's own profiles under /debug/pprof/, as protected as the metrics."`
}

// metricsPath is the default of web.telemetry-path.
const metricsPath = "/metrics"

// Handler serves the metrics, the page, and what a reset would do.
func Handler(c Config, metrics, page, replay http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+cmp.Or(c.TelemetryPath, metricsPath), metrics)
	if page != nil {
		mux.Handle("GET /{$}", page)
	}
	mux.HandleFunc("GET /runbooks/{name}", runbook)
	if c.EnablePprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	if replay != nil {
		mux.Handle("GET /api/", replay)
		mux.Handle("GET /replay", replay)
	}
	return mux
}

// runbook serves the page of an alert, as it is written.
func runbook(w http.ResponseWriter, r *http.Request) {
	text, ok := alerts.Runbook(r.PathValue("name"))
	if !ok {
		http.Error(w, "There is no such runbook.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text)
}

// Probes serves the two addresses that whoever runs the program asks, without
// a password: /-/healthy and /-/ready.
func Probes(ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "oncewatch is healthy.")
	})
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "Not every collector has succeeded yet; see /.", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "oncewatch is ready.")
	})
	return mux
}

// Server is a listening HTTP server.
type Server struct {
	listeners []net.Listener
	config    Config
	scheme    string
	log       *slog.Logger
}

// Listen opens the listeners, so that an address in use is known before
// anything else is started. It also reads the web configuration file once.
func Listen(ctx context.Context, c Config, log *slog.Logger) (*Server, error) {
	if p := cmp.Or(c.TelemetryPath, metricsPath); p == "/" || !strings.HasPrefix(p, "/") || strings.HasPrefix(p, "/-/") || strings.HasPrefix(p, "/api/") || p == "/replay" || path.Clean(p) != p || strings.ContainsAny(p, "{} ") {
		return nil, fmt.Errorf("--web.telemetry-path=%s: want a path of its own, such as /metrics; / and /replay are pages, /-/ the probes, /api/ for programs", p)
	}
	if u, err := url.Parse(c.DashboardsURL); c.DashboardsURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "") {
		return nil, fmt.Errorf("--web.dashboards-url=%s: want Grafana's address, such as https://grafana.example.com", c.DashboardsURL)
	}
	if err := toolkit.Validate(c.ConfigFile); err != nil {
		return nil, fmt.Errorf("--web.config.file %s: %w", c.ConfigFile, err)
	}
	s := &Server{config: c, scheme: scheme(c.ConfigFile), log: log}
	for _, address := range c.ListenAddress {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("--web.listen-address %s: %w", address, err)
		}
		s.listeners = append(s.listeners, l)
	}
	return s, nil
}

// scheme is https where the web configuration file has a certificate.
func scheme(file string) string {
	var c struct {
		TLS map[string]any `yaml:"tls_server_config"`
	}
	text, err := os.ReadFile(file)
	if err == nil && yaml.Unmarshal(text, &c) == nil && len(c.TLS) > 0 {
		return "https"
	}
	return "http"
}

// URL is where the first listener is reached from this machine.
func (s *Server) URL() string {
	address := s.listeners[0].Addr().(*net.TCPAddr)
	host := address.IP.String()
	if address.IP.IsUnspecified() {
		host = "localhost"
	}
	return fmt.Sprintf("%s://%s", s.scheme, net.JoinHostPort(host, fmt.Sprint(address.Port)))
}

// Serve answers requests until the context ends, then lets those under way
// finish within grace. The probes need no password.
func (s *Server) Serve(ctx context.Context, h, probes http.Handler, grace time.Duration) error {
	served := make(chan error, len(s.listeners))
	servers := make([]*http.Server, len(s.listeners))
	for i, l := range s.listeners {
		server := &http.Server{
			Handler:           h,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    32 << 10,
			ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		}
		servers[i] = server
		systemd := false
		flags := &toolkit.FlagConfig{WebListenAddresses: &s.config.ListenAddress, WebSystemdSocket: &systemd, WebConfigFile: &s.config.ConfigFile}
		dressed := &beforeAccept{Listener: l, do: func() { server.Handler = probesFirst(probes, server.Handler) }}
		go func() { served <- toolkit.Serve(dressed, server, flags, s.log) }()
	}
	var err error
	ended := 0
	select {
	case err = <-served:
		ended = 1
	case <-ctx.Done():
	}
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for _, server := range servers {
		if server.Shutdown(graceful) != nil {
			_ = server.Close() // a scraper that does not read must not hold the exit
		}
	}
	s.close()
	for ; ended < len(servers); ended++ {
		if late := <-served; err == nil {
			err = late
		}
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// beforeAccept runs do before the first connection is accepted. The toolkit
// puts its authentication around a server's handler just before it accepts,
// and that is the one moment at which something can be put around both.
type beforeAccept struct {
	net.Listener
	once sync.Once
	do   func()
}

func (b *beforeAccept) Accept() (net.Conn, error) {
	b.once.Do(b.do)
	return b.Listener.Accept()
}

func probesFirst(probes, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/-/") {
			probes.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (s *Server) close() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
}
