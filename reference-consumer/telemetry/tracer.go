package telemetry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Tracer makes the consumer's and the producer's spans, named by the messaging
// conventions of semconv v1.43.0. A nil Tracer makes none.
type Tracer struct {
	tracer   trace.Tracer
	group    string
	shutdown func(context.Context) error
}

const scope = "oncewatch/reference-consumer"

// NewTracer makes spans with a provider of the caller's.
func NewTracer(provider trace.TracerProvider, group string) *Tracer {
	return &Tracer{
		tracer: provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)), group: group,
		shutdown: func(context.Context) error { return nil },
	}
}

// StartTracer exports spans by OTLP as the OTEL_* variables say, or returns
// nil where they name no endpoint (or OTEL_SDK_DISABLED is true). maxBatch is
// the most links one span needs; the SDK's default of 128 would drop the rest
// without a word.
func StartTracer(ctx context.Context, reg prometheus.Registerer, group string, maxBatch int) (*Tracer, error) {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" || os.Getenv("OTEL_TRACES_EXPORTER") == "none" ||
		os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	res, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("reference-consumer")), resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithHost())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this process for traces: %w", err)
	}
	limits := sdk.NewSpanLimits()
	limits.LinkCountLimit = max(limits.LinkCountLimit, maxBatch)
	counted := count(reg)
	// The batch processor never blocks: what does not fit its queue is
	// dropped, and shows as the difference of the two counters.
	provider := sdk.NewTracerProvider(
		sdk.WithResource(res), sdk.WithRawSpanLimits(limits), sdk.WithSpanProcessor(counted),
		sdk.WithBatcher(&countingExporter{exporter, counted}),
	)
	t := NewTracer(provider, group)
	t.shutdown = provider.Shutdown
	return t, nil
}

func newExporter(ctx context.Context) (sdk.SpanExporter, error) {
	protocol := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	switch protocol {
	case "", "http/protobuf":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	}
	return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s is not supported: use http/protobuf or grpc", protocol)
}

// Shutdown exports what is left, until ctx ends.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.shutdown(ctx)
}

func (t *Tracer) start(ctx context.Context, operation, destination string, began time.Time, kind trace.SpanKind, typ attribute.KeyValue, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	ctx, span := t.tracer.Start(ctx, operation+" "+destination, trace.WithSpanKind(kind), trace.WithTimestamp(began))
	if span.IsRecording() {
		span.SetAttributes(append(attrs, semconv.MessagingSystemKafka, semconv.MessagingDestinationName(destination), semconv.MessagingOperationName(operation), typ)...)
		if t.group != "" && kind != trace.SpanKindProducer {
			span.SetAttributes(semconv.MessagingConsumerGroupName(t.group))
		}
	}
	return ctx, span
}

// Polled records a poll that brought records.
func (t *Tracer) Polled(topic string, began time.Time, records int) {
	if t == nil {
		return
	}
	_, span := t.start(context.Background(), "poll", topic, began, trace.SpanKindClient, semconv.MessagingOperationTypeReceive, semconv.MessagingBatchMessageCount(records))
	span.End()
}

// Process is the span of one transaction.
type Process struct {
	span trace.Span
}

// Process begins the span of a batch of a partition, with a link to each
// record's producer.
func (t *Tracer) Process(ctx context.Context, topic string, partition int32, records []*kgo.Record) (context.Context, Process) {
	if t == nil {
		return ctx, Process{}
	}
	ctx, span := t.start(ctx, "process", topic, time.Now(), trace.SpanKindConsumer, semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationPartitionID(strconv.Itoa(int(partition))), semconv.MessagingBatchMessageCount(len(records)))
	if span.IsRecording() {
		for _, r := range records {
			if sc := Remote(r); sc.IsValid() {
				span.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{semconv.MessagingKafkaOffset(int(r.Offset))}})
			}
		}
	}
	return ctx, Process{span}
}

// Sampled says whether the span will be exported.
func (p Process) Sampled() bool { return p.span != nil && p.span.SpanContext().IsSampled() }

// TraceID of the span; empty where it is not exported, so that nothing points
// to a trace that does not exist.
func (p Process) TraceID() string {
	if !p.Sampled() {
		return ""
	}
	return p.span.SpanContext().TraceID().String()
}

// TraceParent of the span in W3C form; empty like TraceID.
func (p Process) TraceParent() string {
	if !p.Sampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpan(context.Background(), p.span), carrier)
	return carrier["traceparent"]
}

// Context for a link from the offset commit.
func (p Process) Context() trace.SpanContext {
	if p.span == nil {
		return trace.SpanContext{}
	}
	return p.span.SpanContext()
}

// End of the transaction.
func (p Process) End(err error) {
	if p.span == nil {
		return
	}
	fail(p.span, err)
	p.span.End()
}

// Commit begins the span of an offset commit that covers the given
// transactions.
func (t *Tracer) Commit(ctx context.Context, topic string, covers []trace.SpanContext) (end func(error)) {
	if t == nil {
		return func(error) {}
	}
	_, span := t.start(ctx, "commit", topic, time.Now(), trace.SpanKindClient, semconv.MessagingOperationTypeSettle)
	for _, sc := range covers {
		if sc.IsSampled() {
			span.AddLink(trace.Link{SpanContext: sc})
		}
	}
	return func(err error) {
		fail(span, err)
		span.End()
	}
}

// Send adds the trace context of a new producer span to a record's headers;
// call end once the broker has it.
func (t *Tracer) Send(ctx context.Context, r *kgo.Record) (end func(error)) {
	if t == nil {
		return func(error) {}
	}
	ctx, span := t.start(ctx, "send", r.Topic, time.Now(), trace.SpanKindProducer, semconv.MessagingOperationTypeSend)
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for k, v := range carrier {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: k, Value: []byte(v)})
	}
	return func(err error) {
		fail(span, err)
		span.End()
	}
}

func fail(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
	}
}

// errorType is what an error is called for those who sort by it: its SQLSTATE,
// the reason it carries, or the broker's name for it; a Go type says nothing.
func errorType(err error) string {
	var pg *pgconn.PgError
	var broker *kerr.Error
	var reason interface{ ErrorType() string }
	switch {
	case errors.As(err, &pg):
		return pg.Code
	case errors.As(err, &reason):
		return reason.ErrorType()
	case errors.As(err, &broker):
		return broker.Message
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return semconv.ErrorTypeOther.Value.AsString()
}

// Remote is the trace context a record carries. Where several hops each added
// a header, the last valid one counts.
func Remote(r *kgo.Record) trace.SpanContext {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key != "traceparent" {
			continue
		}
		ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": string(r.Headers[i].Value)})
		if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
			return sc
		}
	}
	return trace.SpanContext{}
}

// counter counts what ends, what is exported, and what a limit cut off.
type counter struct {
	ended, exported, failed, droppedLinks atomic.Int64
}

func count(reg prometheus.Registerer) *counter {
	c := &counter{}
	for _, m := range []struct {
		name, help string
		v          *atomic.Int64
	}{
		{"trace_spans_ended_total", "Sampled spans that ended.", &c.ended},
		{"trace_spans_exported_total", "Spans the OTLP endpoint has taken; the difference is waiting, failed or was dropped.", &c.exported},
		{"trace_spans_failed_total", "Spans whose export failed.", &c.failed},
		{"trace_links_dropped_total", "Links cut off by a span's limit.", &c.droppedLinks},
	} {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: m.name, Help: m.help}, func() float64 { return float64(m.v.Load()) }))
	}
	return c
}

func (c *counter) OnStart(context.Context, sdk.ReadWriteSpan) {}

func (c *counter) OnEnd(s sdk.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.ended.Add(1)
		c.droppedLinks.Add(int64(s.DroppedLinks()))
	}
}

func (c *counter) Shutdown(context.Context) error   { return nil }
func (c *counter) ForceFlush(context.Context) error { return nil }

type countingExporter struct {
	sdk.SpanExporter
	c *counter
}

func (e *countingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.c.failed.Add(int64(len(spans)))
		return err
	}
	e.c.exported.Add(int64(len(spans)))
	return nil
}
