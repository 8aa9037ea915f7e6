package endpoints

import (
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/discovery"
	"byre/apiserver/openapi"
)

// An API serves the groups it was made for. It is immutable and safe for
// concurrent use.
type API struct {
	versions  []*Version
	roots     map[string]bool // "/api", "/apis/apps": below, a 404 is ours to give
	routes    []Route
	mux       *mux
	discovery *discovery.Registry
	next      http.Handler
}

// New builds the routes of all groups and enters the groups in discovery.
func New(c Config) (*API, error) {
	if c.Discovery == nil {
		return nil, fmt.Errorf("endpoints: no discovery registry given")
	}
	if len(c.Groups) == 0 {
		return nil, fmt.Errorf("endpoints: no groups given")
	}
	a := &API{roots: map[string]bool{}, discovery: c.Discovery, next: c.NotFound}
	if a.next == nil {
		a.next = http.HandlerFunc(http.NotFound)
	}
	serving := c.Serving.withDefaults()
	for i := range c.Groups {
		if err := a.addGroup(&c.Groups[i], serving); err != nil {
			return nil, err
		}
	}
	a.addRoute(discoveryRoute("/apis", c.Discovery.Groups()))
	a.mux = newMux(a.routes, c.Groups[0].Codecs)
	return a, nil
}

func (a *API) addGroup(group *Group, serving Serving) error {
	served := 0
	for i, name := range group.Versions {
		storage := group.Storage[name]
		if len(storage) == 0 {
			continue
		}
		version, err := NewVersion(VersionConfig{
			GroupVersion: schema.GroupVersion{Group: group.Name, Version: name},
			Storage:      storage,
			Types:        group.types(),
			Serving:      serving,
		})
		if err != nil {
			return err
		}
		served++
		a.versions = append(a.versions, version)
		a.routes = append(a.routes, version.Routes()...)
		err = a.discovery.Add(discovery.Version{
			GroupVersion:  version.GroupVersion(),
			Resources:     version.Resources(),
			GroupPriority: group.Priority,
			// Versions keep the order in which the group lists them.
			Priority: len(group.Versions) - i,
		})
		if err != nil {
			return err
		}
		a.addRoute(discoveryRoute(root(version.gv), a.discovery.Version(version.gv)))
	}
	if served == 0 {
		return nil
	}
	if group.Name == "" {
		a.roots["/api"] = true
		a.addRoute(discoveryRoute("/api", a.discovery.Legacy()))
		return nil
	}
	at := "/apis/" + group.Name
	a.roots[at] = true
	a.addRoute(discoveryRoute(at, a.discovery.Group(group.Name)))
	return nil
}

func (a *API) addRoute(r Route) { a.routes = append(a.routes, r) }

// discoveryRoute is the route of a discovery document.
func discoveryRoute(path string, document discovery.Document) Route {
	op := document.Operation(path)
	return Route{
		Method:   op.Method,
		Path:     path,
		Handler:  document,
		Consumes: op.Consumes,
		Produces: op.Produces,
		describe: func(*Route) (openapi.Operation, error) { return op, nil },
	}
}

// ServeHTTP serves the API. What lies below the root of a group served here is
// answered here, if by a 404 Status; documents of groups that were entered in
// discovery by others come next; all else goes on to the NotFound handler.
func (a *API) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	if at := a.mux.find(path); at != nil {
		at.ServeHTTP(w, req)
		return
	}
	if document, ok := a.discovery.Lookup(path); ok {
		document.ServeHTTP(w, req)
		return
	}
	if a.claims(path) {
		a.mux.failures.notFound(w, req)
		return
	}
	a.next.ServeHTTP(w, req)
}

// claims says whether the path lies below the root of a group served here.
func (a *API) claims(path string) bool {
	parts := strings.SplitN(path, "/", 4)
	if len(parts) < 2 || parts[0] != "" {
		return false
	}
	if parts[1] == "api" {
		return a.roots["/api"]
	}
	return len(parts) > 2 && parts[1] == "apis" && a.roots["/apis/"+parts[2]]
}

// Versions returns the group versions served. The caller must not change the
// slice.
func (a *API) Versions() []*Version { return a.versions }
