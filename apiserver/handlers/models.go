package handlers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/kube-openapi/pkg/util"

	"byre/apiserver/handlers/documents"
)

// ModelNames returns the canonical names of the Go types that the groups serve, in the form
// that documents.Models.Schemas takes.
func ModelNames(groups []Group) ([]string, error) {
	names := map[string]bool{}
	for i := range groups {
		for version, storages := range groups[i].Storage {
			gv := schema.GroupVersion{Group: groups[i].Name, Version: version}
			for _, storage := range storages {
				kind, err := endpoints.GetResourceKind(gv, storage, groups[i].Scheme)
				if err != nil {
					return nil, err
				}
				object, err := groups[i].Scheme.New(kind)
				if err != nil {
					return nil, err
				}
				names[util.GetCanonicalTypeName(object)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// Roots returns the routes with their OpenAPI descriptions, by OpenAPI v3 document.
func (a *API) Roots() []documents.Root {
	var roots []documents.Root
	for _, at := range a.openAPIRoots {
		root := documents.Root{
			Path:       at.path[1:],
			Operations: func() ([]restful.Route, error) { return describeRoutes(at.routes) },
		}
		for _, route := range at.routes {
			root.Routes = append(root.Routes, route.Method+" "+route.Path)
		}
		roots = append(roots, root)
	}
	return roots
}

func describeRoutes(routes []Route) ([]restful.Route, error) {
	all := make([]restful.Route, 0, len(routes))
	for i := range routes {
		op, err := routes[i].describe(&routes[i])
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", routes[i].Method, strings.Trim(routes[i].Path, "/"), err)
		}
		all = append(all, op)
	}
	return all, nil
}
