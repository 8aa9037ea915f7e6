package handlers

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/handlers/documents"
)

// An API serves a set of groups. It does not change, and is safe for concurrent use.
type API struct {
	resources []*Resource
	// openAPIRoots has all routes, grouped by the OpenAPI v3 document that describes
	// them.
	openAPIRoots []openAPIRoot
	// groupPaths has the paths of the groups ("/api", "/apis/apps"). A path below
	// one of them that has no route is answered with 404.
	groupPaths map[string]bool
	mux        *mux
	discovery  *documents.Discovery
	delegate   http.Handler
}

type openAPIRoot struct {
	path   string
	routes []Route
}

// New builds the routes of all groups and adds the groups to discovery.
func New(c Config) (*API, error) {
	a := &API{groupPaths: map[string]bool{}, discovery: c.Discovery, delegate: c.NotFound}
	if a.delegate == nil {
		a.delegate = http.HandlerFunc(http.NotFound)
	}
	serving := c.Serving.withDefaults()
	for i := range c.Groups {
		if err := a.addGroup(&c.Groups[i], serving); err != nil {
			return nil, err
		}
	}
	a.add("/apis", discoveryRoute("/apis", c.Discovery.GroupsHandler()))
	var routes []Route
	for _, at := range a.openAPIRoots {
		routes = append(routes, at.routes...)
	}
	a.mux = newMux(routes, c.Groups[0].Codecs)
	return a, nil
}

func (a *API) addGroup(group *Group, serving Serving) error {
	served := false
	for _, name := range group.Versions {
		if len(group.Storage[name]) == 0 {
			continue
		}
		served = true
		if err := a.addVersion(VersionConfig{
			GroupVersion: schema.GroupVersion{Group: group.Name, Version: name},
			Storage:      group.Storage[name],
			Types:        group.types(),
			Serving:      serving,
		}); err != nil {
			return err
		}
	}
	switch {
	case !served:
	case group.Name == "":
		a.groupPaths["/api"] = true
		a.add("/api", discoveryRoute("/api", a.discovery.LegacyHandler()))
	default:
		at := "/apis/" + group.Name
		a.groupPaths[at] = true
		a.add(at, discoveryRoute(at, a.discovery.GroupHandler(group.Name)))
	}
	return nil
}

func (a *API) addVersion(c VersionConfig) error {
	at := rootPath(c.GroupVersion)
	routes := []Route{discoveryRoute(at, a.discovery.VersionHandler(c.GroupVersion))}
	var entries []metav1.APIResource
	for _, path := range slices.Sorted(maps.Keys(c.Storage)) {
		resource, err := NewResource(c, path)
		if err != nil {
			return err
		}
		entry, err := resource.discover()
		if err != nil {
			return err
		}
		a.resources = append(a.resources, resource)
		entries = append(entries, entry)
		routes = append(routes, resource.routes()...)
	}
	a.add(at, routes...)
	return a.discovery.Add(documents.DiscoveryVersion{GroupVersion: c.GroupVersion, Resources: entries})
}

func (a *API) add(path string, routes ...Route) {
	a.openAPIRoots = append(a.openAPIRoots, openAPIRoot{path, routes})
}

// discoveryRoute returns the route of a discovery document.
func discoveryRoute(path string, document documents.DiscoveryHandler) Route {
	op := document.Operation(path)
	// In kube-apiserver, kube-aggregator serves /apis and /apis/<group>, and does not
	// check the method.
	lists := strings.HasPrefix(path, "/apis") && strings.Count(path, "/") < 3
	return Route{
		skipsNegotiation: lists,
		Method:           op.Method,
		Path:             path,
		Handler:          document,
		Consumes:         op.Consumes,
		Produces:         op.Produces,
		describe:         func(*Route) (restful.Route, error) { return op, nil },
	}
}

// ServeHTTP serves the routes of the groups. A path below one of these groups that has
// no route is answered with a 404 Status, even if another server of the chain has more
// versions of the group; kube-apiserver does the same. The discovery documents of the
// groups of other servers are served too. All other requests go to Config.NotFound, the
// delegate.
func (a *API) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	if at := a.mux.find(path); at != nil {
		at.ServeHTTP(w, req)
		return
	}
	if a.isInServedGroup(path) {
		a.mux.errors.notFound(w, req)
		return
	}
	if document, ok := a.discovery.Lookup(path); ok {
		at := methods{routes: []Route{discoveryRoute(path, document)}, errors: a.mux.errors}
		at.ServeHTTP(w, req)
		return
	}
	a.delegate.ServeHTTP(w, req)
}

// isInServedGroup reports whether the path lies below the path of one of the groups.
func (a *API) isInServedGroup(path string) bool {
	parts := strings.SplitN(path, "/", 4)
	if len(parts) < 2 || parts[0] != "" {
		return false
	}
	if parts[1] == "api" {
		return a.groupPaths["/api"]
	}
	return len(parts) > 2 && parts[1] == "apis" && a.groupPaths["/apis/"+parts[2]]
}
