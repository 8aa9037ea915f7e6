package aggregator

import (
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

// route is a group version that a backend serves, by an APIService. It is immutable.
type route struct {
	service   *apiregistrationv1.APIService
	name      string // of service
	gv        schema.GroupVersion
	available bool
	backend   *backend
}

func newRoute(service *apiregistrationv1.APIService, b *backend) *route {
	return &route{
		service:   service,
		name:      service.Name,
		gv:        schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version},
		available: helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available),
		backend:   b,
	}
}

// legacy is the name of the APIService of the core group, /api.
const legacy = "v1."

// root is the path that is routed, with all paths below it.
func (r *route) root() string {
	if r.name == legacy {
		return "/api"
	}
	return "/apis/" + r.gv.Group + "/" + r.gv.Version
}

// routes has the routes by root. Every set replaces all of them at once, so that a request
// never sees a mix of two sets. The zero value is empty.
type routes struct {
	byRoot atomic.Pointer[map[string]*route]
}

func (r *routes) set(byRoot map[string]*route) { r.byRoot.Store(&byRoot) }

func (r *routes) empty() bool {
	byRoot := r.byRoot.Load()
	return byRoot == nil || len(*byRoot) == 0
}

// find returns the route of a path, or nil.
func (r *routes) find(path string) *route {
	if r.empty() {
		return nil // the common case
	}
	return (*r.byRoot.Load())[rootOf(path)]
}

// rootOf returns the part of a path that could be a route's root.
func rootOf(path string) string {
	if path == "/api" || strings.HasPrefix(path, "/api/") {
		return "/api"
	}
	parts := strings.SplitN(path, "/", 5) // "", "apis", the group, the version and the rest
	if len(parts) < 5 {
		return path
	}
	return path[:len(path)-len(parts[4])-1]
}
