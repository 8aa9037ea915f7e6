package delegation

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/process/health"
)

// Server is a server of the chain other than the built-in API.
type Server interface {
	// ServeHTTP serves the server's own requests and passes all others on to its
	// delegate.
	http.Handler
	// Run runs the goroutines of the server. It returns nil after ctx has ended; before
	// that it returns only with an error.
	Run(ctx context.Context) error
	// Checks are the checks of /readyz that pass once the server has started.
	Checks() []health.Checker
	// Stores reports whether the server keeps the objects of a resource in the store.
	Stores(schema.GroupResource) bool
}

// NewServer makes a Server that passes requests that are not its own on to delegate. It
// starts nothing.
type NewServer func(d Dependencies, delegate http.Handler) (Server, error)
