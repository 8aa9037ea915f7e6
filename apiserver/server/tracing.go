package server

import (
	"fmt"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// checkTracing checks --tracing-config-file.
func checkTracing(file string) error {
	if file == "" {
		return nil
	}
	config, err := genericoptions.ReadTracingConfiguration(file)
	if err == nil {
		err = tracingapi.ValidateTracingConfiguration(config, utilfeature.DefaultFeatureGate, nil).ToAggregate()
	}
	if err != nil {
		return fmt.Errorf("--tracing-config-file %s: %w", file, err)
	}
	return nil
}
