package handlers

import (
	"net/http"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
	"k8s.io/apimachinery/pkg/runtime"
)

// mux finds the routes of a path in a chi mux.
//
// Invariant: the request that a handler gets has no chi state. mux uses chi only to find
// the pattern of a path; handlers read the path's parameters from RequestInfo. chi reuses a
// RouteContext that it finds in a request's context, so a request made with the context of
// another one would otherwise be misrouted.
type mux struct {
	chi      *chi.Mux
	paths    map[string]*methods // by chi's pattern
	errors   errorWriter
	contexts sync.Pool
}

// newMux returns a mux of the given routes.
func newMux(routes []Route, serializer runtime.NegotiatedSerializer) *mux {
	m := &mux{
		chi:      chi.NewMux(),
		paths:    map[string]*methods{},
		errors:   errorWriter{serializer},
		contexts: sync.Pool{New: func() any { return chi.NewRouteContext() }},
	}
	for _, route := range routes {
		pattern := route.Path
		if at, ok := strings.CutSuffix(pattern, restOfPath); ok {
			pattern = at + "/*"
		}
		at := m.paths[pattern]
		if at == nil {
			at = &methods{errors: m.errors}
			m.paths[pattern] = at
			m.chi.Handle(pattern, at)
		}
		at.routes = append(at.routes, route)
	}
	return m
}

// find returns the routes of a path, or nil. path is the decoded path, from which
// RequestInfo is made and which is therefore the authorized one. Trailing slashes are
// ignored.
func (m *mux) find(path string) *methods {
	route := m.contexts.Get().(*chi.Context)
	defer m.contexts.Put(route)
	route.Reset()
	// All patterns are registered for all methods; methods selects the route.
	return m.paths[m.chi.Find(route, http.MethodGet, strings.TrimRight(path, "/"))]
}
