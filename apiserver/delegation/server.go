package delegation

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/health"
)

// Server is a server of the chain other than the built-in API.
type Server interface {
	// ServeHTTP answers what is the server's own and passes on the rest.
	http.Handler
	// Run does what the server does besides answering requests. It returns nil after
	// ctx has ended, and before that only with an error.
	Run(ctx context.Context) error
	// Checks are the parts of the server's start, for /readyz.
	Checks() []health.Checker
	// Stores reports whether the server keeps the objects of a resource in the store.
	Stores(schema.GroupResource) bool
}

// NewServer makes a Server that passes what is not its own on to delegate. It starts
// nothing.
type NewServer func(d Dependencies, delegate http.Handler) (Server, error)
