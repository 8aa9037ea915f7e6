package apiserver

import (
	"context"
	"fmt"
	"net"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/grpc"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/component-base/tracing"
	"k8s.io/klog/v2"

	"byre/apiserver/options"
)

// traceTimeout bounds how long a shutdown waits until the last spans are sent.
const traceTimeout = 5 * time.Second

// newTracer makes the provider that sends spans, which starts sending; it is nil
// without a configuration. dial, if not nil, connects to the collector.
func newTracer(ctx context.Context, file, serverID string, dial utilnet.DialFunc) (tracing.TracerProvider, error) {
	config, err := options.ReadTracing(file)
	if config == nil || err != nil {
		return nil, err
	}
	var exporter []otlptracegrpc.Option
	if dial != nil {
		exporter = append(exporter, otlptracegrpc.WithDialOption(grpc.WithContextDialer(
			func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) })))
	}
	provider, err := tracing.NewProvider(ctx, config, exporter, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", "apiserver"), // upstream's
		attribute.String("service.instance.id", serverID),
	)})
	if err != nil {
		return nil, fmt.Errorf("--tracing-config-file: %w", err)
	}
	return provider, nil
}

// closeTracer sends the spans that are left, for at most traceTimeout.
func closeTracer(tracer tracing.TracerProvider) {
	if tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceTimeout)
	defer cancel()
	if err := tracer.Shutdown(ctx); err != nil {
		klog.InfoS("The last spans could not be sent", "err", err)
	}
}
