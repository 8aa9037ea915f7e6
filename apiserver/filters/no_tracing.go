package filters

import (
	"context"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// noTracing is the tracer provider of a server that doesn't trace. OpenTelemetry's
// own compares span contexts at each start of a span, which in a chain of timed
// filters adds up to several microseconds a request; this one does nothing.
type noTracing struct{ noop.TracerProvider }

func (noTracing) Tracer(string, ...trace.TracerOption) trace.Tracer { return noTracer{} }

type noTracer struct{ noop.Tracer }

func (noTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	return ctx, noop.Span{}
}
