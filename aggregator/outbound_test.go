package aggregator_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/component-base/tracing"

	"byre/aggregator"
	"byre/apiserver/process"
)

// inTrace makes requests part of a trace, as the filters do.
type inTrace struct{ next http.RoundTripper }

func (r inTrace) RoundTrip(req *http.Request) (*http.Response, error) {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4}, TraceFlags: trace.FlagsSampled})
	return r.next.RoundTrip(req.WithContext(trace.ContextWithSpanContext(req.Context(), span)))
}

// TestOutbound_UsesTheGivenDialerAndPassesTheTrace: requests to a backend use the given
// dialer and carry the trace context of the client's request.
func TestOutbound_UsesTheGivenDialerAndPassesTheTrace(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	s := start(t, func(d *process.Dependencies, _ *aggregator.Options) {
		d.Backends.Trace = func(next http.RoundTripper) http.RoundTripper {
			return inTrace{tracing.WrapperFor(noop.NewTracerProvider())(next)}
		}
		d.Backends.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	})
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/trace", func(w http.ResponseWriter, req *http.Request) {
		parent := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(req.Header))
		_, _ = io.WriteString(w, trace.SpanContextFromContext(parent).TraceID().String())
	}))
	b.available(t, s)
	status, seen, _ := get(t, b.url(s, "/trace"))
	if status != http.StatusOK || seen != (trace.TraceID{1, 2, 3}).String() {
		t.Errorf("the backend sees trace %q; %d", seen, status)
	}
	if dials.Load() == 0 {
		t.Error("the given dialer made no connection to the backend")
	}
}
