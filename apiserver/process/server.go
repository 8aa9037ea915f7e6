package process

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ChainServer is a server of the chain other than the built-in API.
type ChainServer interface {
	// ServeHTTP serves the server's own requests and passes all others on to its
	// delegate.
	http.Handler
	// Run runs the goroutines of the server. It returns nil after ctx has ended; before
	// that it returns only with an error.
	Run(ctx context.Context) error
	// Checks are the checks of /readyz that pass once the server has started.
	Checks() []HealthChecker
	// Stores reports whether the server keeps the objects of a resource in the store.
	Stores(schema.GroupResource) bool
}

// NewChainServer makes a Server that passes requests that are not its own on to delegate. It
// starts nothing.
type NewChainServer func(d Dependencies, delegate http.Handler) (ChainServer, error)
