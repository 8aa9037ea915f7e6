package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
)

// traceTimeout bounds how long a stop waits until the last spans are sent.
const traceTimeout = 5 * time.Second

// readTracing reads --tracing-config-file; nil without one.
func readTracing(file string) (*tracingapi.TracingConfiguration, error) {
	if file == "" {
		return nil, nil
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIServerTracing) {
		return nil, errors.New("--tracing-config-file requires the feature gate APIServerTracing")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--tracing-config-file: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	config := &apiserverapi.TracingConfiguration{}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	if err := runtime.DecodeInto(codecs.UniversalDecoder(), data, config); err != nil {
		return nil, fmt.Errorf("--tracing-config-file: %w", err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return nil, fmt.Errorf("--tracing-config-file: %w", errs.ToAggregate())
	}
	return &config.TracingConfiguration, nil
}

// newTracer makes what spans are sent by, which begins at once; nil without a
// configuration. dial, if not nil, connects to the collector.
func newTracer(ctx context.Context, file, serverID string, dial utilnet.DialFunc) (tracing.TracerProvider, error) {
	config, err := readTracing(file)
	if config == nil || err != nil {
		return nil, err
	}
	var options []otlptracegrpc.Option
	if dial != nil {
		options = append(options, otlptracegrpc.WithDialOption(grpc.WithContextDialer(
			func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) })))
	}
	provider, err := tracing.NewProvider(ctx, config, options, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", "apiserver"), // upstream's
		attribute.String("service.instance.id", serverID),
	)})
	if err != nil {
		return nil, fmt.Errorf("--tracing-config-file: %w", err)
	}
	return provider, nil
}

// closeTracer sends the last spans.
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
