package telemetry

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// endpoint is an OTLP endpoint that speaks gRPC.
type endpoint struct {
	collector.UnimplementedTraceServiceServer
	received chan *collector.ExportTraceServiceRequest
}

func (e *endpoint) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	e.received <- req
	return &collector.ExportTraceServiceResponse{}, nil
}

// Spans are sent by gRPC where OTEL_EXPORTER_OTLP_PROTOCOL says so.
func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &endpoint{received: make(chan *collector.ExportTraceServiceRequest, 1)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, e)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tracer, err := StartTracer(ctx, prometheus.NewRegistry(), "g", 1)
	if err != nil {
		t.Fatal(err)
	}
	tracer.Polled("payments", time.Now(), 1)
	if err := tracer.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case req := <-e.received:
		if name := req.ResourceSpans[0].ScopeSpans[0].Spans[0].Name; name != "poll payments" {
			t.Errorf("span %q, want poll payments", name)
		}
	default:
		t.Error("nothing was received")
	}
}

func TestUnknownProtocol(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	if _, err := StartTracer(t.Context(), prometheus.NewRegistry(), "g", 1); err == nil {
		t.Error("no error for a protocol that is not spoken")
	}
}
