package server

import (
	"fmt"

	"k8s.io/apiserver/pkg/server/egressselector"
)

// ReadEgressSelector reads --egress-selector-config-file. Without a file it returns
// nil.
func ReadEgressSelector(file string) (*egressselector.EgressSelector, error) {
	if file == "" {
		return nil, nil
	}
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file %s: %w", file, err)
	}
	if errs := egressselector.ValidateEgressSelectorConfiguration(config); len(errs) > 0 {
		return nil, fmt.Errorf("--egress-selector-config-file %s: %w", file, errs.ToAggregate())
	}
	for _, selection := range config.EgressSelections {
		// Upstream's validation accepts this, but its constructor dereferences the nil
		// pointer.
		if t := selection.Connection.Transport; t != nil && t.TCP != nil && t.TCP.TLSConfig == nil {
			return nil, fmt.Errorf("--egress-selector-config-file %s: %s: a proxy by TCP needs a tlsConfig; without TLS use uds", file, selection.Name)
		}
	}
	selector, err := egressselector.NewEgressSelector(config)
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file %s: %w", file, err)
	}
	return selector, nil
}
