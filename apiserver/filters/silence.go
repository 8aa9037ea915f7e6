package filters

import (
	"context"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// silence is the tracer provider of a server that doesn't trace. OpenTelemetry's
// own compares span contexts at each start of a span, which in a chain of timed
// filters adds up to several microseconds a request; this one does nothing.
type silence struct{ noop.TracerProvider }

func (silence) Tracer(string, ...trace.TracerOption) trace.Tracer { return silentTracer{} }

type silentTracer struct{ noop.Tracer }

func (silentTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	return ctx, noop.Span{}
}
