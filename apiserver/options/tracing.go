package options

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// ReadTracing reads --tracing-config-file. Without a file it returns nil.
func ReadTracing(file string) (*tracingapi.TracingConfiguration, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--tracing-config-file %s: %w", file, err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	config := &apiserverapi.TracingConfiguration{}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	if err := runtime.DecodeInto(codecs.UniversalDecoder(), data, config); err != nil {
		return nil, fmt.Errorf("--tracing-config-file %s: %w", file, err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return nil, fmt.Errorf("--tracing-config-file %s: %w", file, errs.ToAggregate())
	}
	return &config.TracingConfiguration, nil
}
