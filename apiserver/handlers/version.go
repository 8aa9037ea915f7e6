package handlers

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/handlers/openapi"
)

// VersionConfig holds what NewVersion builds a Version from.
type VersionConfig struct {
	GroupVersion schema.GroupVersion
	// Storage maps "resource" or "resource/subresource" to the storage.
	Storage map[string]rest.Storage
	Types   Types
	Serving Serving

	// PatchTypes are the accepted media types of patches; nil means all.
	PatchTypes []string
	// Warnings, if not empty, mark the version as deprecated. Every response has
	// them in its Warning headers.
	Warnings []string

	// Adjust, if not nil, is called with the request scope of each resource and may
	// change it. Custom resources set their field manager, serializers and table
	// columns.
	Adjust func(path string, scope *handlers.RequestScope) error
}

// A Version serves one group version. It is immutable and safe for concurrent use.
type Version struct {
	gv        schema.GroupVersion
	resources []*Resource
	routes    []Route
	discovery []metav1.APIResource
	mux       *mux
}

// NewVersion builds the resources and routes of a group version.
func NewVersion(c VersionConfig) (*Version, error) {
	v := &Version{gv: c.GroupVersion}
	c.Serving = c.Serving.withDefaults()
	for _, path := range slices.Sorted(maps.Keys(c.Storage)) {
		resource, err := NewResource(c, path)
		if err != nil {
			return nil, err
		}
		entry, err := resource.Discover()
		if err != nil {
			return nil, err
		}
		v.resources = append(v.resources, resource)
		v.discovery = append(v.discovery, entry)
		v.routes = append(v.routes, resource.Routes()...)
	}
	v.mux = newMux(v.routes, c.Types.Serializer)
	return v, nil
}

// GroupVersion is the group version that is served.
func (v *Version) GroupVersion() schema.GroupVersion { return v.gv }

// Resource returns the resource at "resource" or "resource/subresource", or nil.
func (v *Version) Resource(path string) *Resource {
	for _, r := range v.resources {
		if r.path == path {
			return r
		}
	}
	return nil
}

// Resources returns the entries of the resources in discovery. The caller must not modify
// the slice.
func (v *Version) Resources() []metav1.APIResource { return v.discovery }

// Routes returns all routes. The caller must not modify the slice.
func (v *Version) Routes() []Route { return v.routes }

// ServeHTTP serves the paths of the version. It answers any other path with a 404 Status.
func (v *Version) ServeHTTP(w http.ResponseWriter, req *http.Request) { v.mux.ServeHTTP(w, req) }

// Operations returns the OpenAPI descriptions of the routes. It builds them in each call.
func (v *Version) Operations() ([]openapi.Operation, error) {
	return describeRoutes(v.routes)
}

func describeRoutes(routes []Route) ([]openapi.Operation, error) {
	all := make([]openapi.Operation, 0, len(routes))
	for i := range routes {
		op, err := routes[i].Operation()
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", routes[i].Method, strings.Trim(routes[i].Path, "/"), err)
		}
		all = append(all, op)
	}
	return all, nil
}
