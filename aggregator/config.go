package aggregator

import (
	"errors"
	"fmt"

	"byre/apiserver/delegation"
)

// Options is what New needs besides the dependencies of every server. All of it is
// optional.
type Options struct {
	// CustomSynced is closed when all custom resources that there were at the
	// start are in Discovery; nil if there is nothing to wait for.
	CustomSynced <-chan struct{}
	// Metrics takes the package's metrics; nil for none.
	Metrics Registry
}

func validate(d delegation.Dependencies) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	switch {
	case d.Client == nil, d.Informers == nil:
		return errors.New("aggregator: Client and Informers are required")
	case d.Backends.ProxyCert == "", d.Backends.ProxyKey == "":
		return errors.New("aggregator: Backends.ProxyCert and ProxyKey are required")
	default:
		return nil
	}
}
