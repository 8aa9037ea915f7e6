package sqlstore

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// tracerName is the instrumentation scope of the store's spans.
const tracerName = "byre/sqlstore"

// StartSpan begins a child of the context's span, with that span's provider, and returns
// the function that ends it. If the context's span is not recorded it does nothing.
func StartSpan(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, func(error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func(error) {}
	}
	ctx, span := parent.TracerProvider().Tracer(tracerName).Start(ctx, name,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	return ctx, func(err error) {
		if err != nil {
			// The error's text stays out of the span: it may hold SQL and addresses,
			// which are for the operator's log alone.
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// spanAttributes returns the attributes of a span: the SQL command and the key.
func spanAttributes(operation string, key Key) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("db.operation.name", operation),
		attribute.String("k8s.group", key.Group),
		attribute.String("k8s.resource", key.Resource),
		attribute.String("k8s.namespace", key.Namespace),
		attribute.String("k8s.name", key.Name),
	}
}

// Get calls the driver's Get in a span.
func (s *Store) Get(ctx context.Context, key Key) (record Record, revision int64, err error) {
	ctx, end := StartSpan(ctx, "Database Get", spanAttributes("SELECT", key)...)
	defer func() { end(err) }()
	return s.Driver.Get(ctx, key)
}

// List calls the driver's List in a span.
func (s *Store) List(ctx context.Context, q Query, yield func(Record) error) (listed ListResult, err error) {
	ctx, end := StartSpan(ctx, "Database List", spanAttributes("SELECT", Key{Group: q.Group, Resource: q.Resource, Namespace: q.Namespace})...)
	defer func() { end(err) }()
	return s.Driver.List(ctx, q, yield)
}
