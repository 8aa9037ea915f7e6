package aggregator

import (
	"errors"
	"fmt"

	"byre/apiserver/process"
)

// Options are the dependencies of New beside those of every server. All are optional.
type Options struct {
	// CustomSynced is closed, by the server of custom resources, when Discovery lists
	// all custom resources that existed at the start; nil if there is no such server.
	CustomSynced <-chan struct{}
	// Metrics is where New registers the package's metrics; nil for nowhere.
	Metrics Registry
}

func validate(d process.Dependencies) error {
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
