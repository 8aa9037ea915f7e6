package handlers_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/access/filters"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// FuzzPath: the route that serves a path serves the resource that RequestInfo, and with it
// authorization, derives from the path.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"/api/v1/pods", "/api/v1/namespaces/ns/pods/name/log", "/api/v1/namespaces/ns/pods/name/proxy/a/../b", "/api/v1/namespaces/ns", "/api/v1/namespaces/ns/status",
		"/api/v1/namespaces/ns/finalize/x", "/api/v1/watch/namespaces/ns/secrets/name", "/api/v1/watch/namespaces/ns", "/api/v1/proxy/namespaces/ns/pods/name",
		"/apis/apps/v1/namespaces/ns/deployments/name/scale", "/apis/apps/v1/deployments/", "/api/v1//secrets", "/api//v1/secrets", "//api/v1/secrets", "/api/v1/secrets//",
		"/api/v1/namespaces//secrets", "/api/v1/namespaces/ns//secrets", "/api/v1/nodes/n/proxy/", "/api/v1/namespaces/../secrets", "/api/v1/namespaces/ns/secrets/a%2fb",
		"/API/v1/secrets", "/api/v1/namespaces/pods", "/api/v1/watch/watch/secrets", "/api/v1/namespaces/namespaces/namespaces", "/apis/apps/v1", "/api", "/", "",
	} {
		f.Add(path)
	}
	driver := storetest.NewModel()
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	api, err := handlers.New(handlers.Config{
		Groups:    newGroups(f, store, feed, nil),
		Serving:   handlers.Serving{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()},
		Discovery: documents.NewDiscovery("192.0.2.7:6443"),
	})
	if err != nil {
		f.Fatal(err)
	}
	resolver := filters.NewRequestInfoResolver()
	f.Fuzz(func(t *testing.T, path string) {
		pattern := api.Pattern(path)
		if pattern == "" {
			return
		}
		info, err := resolver.NewRequestInfo(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}})
		if err != nil {
			t.Fatal(err)
		}
		if want := meant(pattern, path); want != nil && (!info.IsResourceRequest || info.APIGroup != want.APIGroup || info.APIVersion != want.APIVersion ||
			info.Namespace != want.Namespace || info.Resource != want.Resource || info.Subresource != want.Subresource || info.Name != want.Name) {
			t.Errorf("%q is served by %s, and authorized as %+v", path, pattern, info)
		}
	})
}

// meant returns the resource that a route's pattern derives from a path; nil for a route of
// no resource.
func meant(pattern, path string) *request.RequestInfo {
	is, names := strings.Split(path, "/")[1:], strings.Split(pattern, "/")[1:]
	if len(names) < 2 {
		return nil
	}
	info := &request.RequestInfo{APIVersion: names[1]}
	depth := 2
	if names[0] == "apis" {
		if len(names) < 3 {
			return nil
		}
		info.APIGroup, info.APIVersion, depth = names[1], names[2], 3
	}
	is, names = is[depth:], names[depth:]
	if len(names) > 0 && names[0] == "watch" {
		is, names = is[1:], names[1:]
	}
	if len(names) == 0 {
		return nil
	}
	if len(names) > 1 && names[0] == "namespaces" {
		info.Namespace = is[1]
		if names[1] == "{namespace}" {
			is, names = is[2:], names[2:]
		}
	}
	info.Resource = names[0]
	if len(names) > 1 {
		info.Name = is[1]
	}
	if len(names) > 2 {
		info.Subresource = names[2]
	}
	return info
}
