package endpoints

import (
	"net/http"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
	"k8s.io/apimachinery/pkg/runtime"
)

// mux finds the routes of a path in a chi mux.
//
// It asks chi for the pattern only and serves the request itself, unchanged:
// what the path's parameters are, handlers know from RequestInfo, and a request
// that carries no routing state can be passed on, or outlive its handler,
// without being misrouted.
type mux struct {
	chi      *chi.Mux
	paths    map[string]*methods // by chi's pattern
	errors   errorWriter
	contexts sync.Pool
}

// newMux makes a mux of routes.
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

// find returns what serves a path, or nil. The path is the decoded one: that is
// what RequestInfo, and with it authorization, was made from. Slashes at its end
// mean nothing.
func (m *mux) find(path string) *methods {
	route := m.contexts.Get().(*chi.Context)
	defer m.contexts.Put(route)
	route.Reset()
	// Every path takes every method here; which it allows, methods decides.
	return m.paths[m.chi.Find(route, http.MethodGet, strings.TrimRight(path, "/"))]
}

// ServeHTTP serves the routes; paths that have none are answered by a 404 Status.
func (m *mux) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if at := m.find(req.URL.Path); at != nil {
		at.ServeHTTP(w, req)
		return
	}
	m.errors.notFound(w, req)
}
