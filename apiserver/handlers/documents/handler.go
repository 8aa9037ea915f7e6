package documents

import (
	"net/http"

	"github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// A Handler serves one discovery document, made from the registry's content at the time
// of the request.
type DiscoveryHandler interface {
	http.Handler
	// Operation describes the route of the document at path, for OpenAPI.
	Operation(path string) restful.Route
}

type discoveryHandler struct {
	http.Handler
	// operation is the description, without its path.
	operation restful.Route
}

func (d discoveryHandler) Operation(path string) restful.Route {
	d.operation.Path = path + "/"
	return d.operation
}

// handler returns the handler of a document. name and doc describe it, and response has its type.
func (r *Discovery) handler(document http.Handler, name, doc string, response any) DiscoveryHandler {
	// Documents are served in every encoding of objects, but not as a stream.
	media, _ := negotiation.MediaTypesForSerializer(r.codecs)
	return discoveryHandler{document, restful.Route{
		Method: http.MethodGet, Operation: name, Doc: doc, Consumes: media, Produces: media, WriteSample: response,
	}}
}

// GroupsHandler serves the document at /apis.
func (r *Discovery) GroupsHandler() DiscoveryHandler {
	list := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.write(w, req, &metav1.APIGroupList{Groups: r.groupList()})
	})
	return r.handler(aggregated.WrapAggregatedDiscoveryToHandler(list, r.aggregatedGroups, nil),
		"getAPIVersions", "get available API versions", metav1.APIGroupList{})
}

// LegacyHandler serves the document at /api.
func (r *Discovery) LegacyHandler() DiscoveryHandler {
	versions := upstream.NewLegacyRootAPIHandler(r.addresses, r.codecs, "/api")
	return r.handler(aggregated.WrapAggregatedDiscoveryToHandler(versions, r.aggregatedLegacy, nil),
		"getAPIVersions", "get available API versions", metav1.APIVersions{})
}

// GroupHandler serves the document at /apis/<group>. It answers 404 if the registry has no
// version of the group.
func (r *Discovery) GroupHandler(name string) DiscoveryHandler {
	document := func(w http.ResponseWriter, req *http.Request) {
		group, ok := r.group(name)
		if !ok {
			http.NotFound(w, req)
			return
		}
		r.write(w, req, &group)
	}
	return r.handler(http.HandlerFunc(document), "getAPIGroup", "get information of a group", metav1.APIGroup{})
}

// VersionHandler serves the document at /apis/<group>/<version> or /api/<version>. It
// answers 404 if the registry has no resources of the group version.
func (r *Discovery) VersionHandler(gv schema.GroupVersion) DiscoveryHandler {
	document := func(w http.ResponseWriter, req *http.Request) {
		r.mu.RLock()
		v, ok := r.preferredVersion(gv, DiscoveryVersion.hasDocument)
		r.mu.RUnlock()
		if !ok {
			http.NotFound(w, req)
			return
		}
		resources := upstream.APIResourceListerFunc(func() []metav1.APIResource { return v.Resources })
		upstream.NewAPIVersionHandler(r.codecs, gv, resources).ServeHTTP(w, req)
	}
	return r.handler(http.HandlerFunc(document), "getAPIResources", "get available resources", metav1.APIResourceList{})
}

func (r *Discovery) write(w http.ResponseWriter, req *http.Request, object runtime.Object) {
	responsewriters.WriteObjectNegotiated(r.codecs, negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{Version: "v1"}, w, req, http.StatusOK, object, false)
}

// apiGroup returns the entry of a group with its versions, the preferred version first.
func apiGroup(versions []*apiregistrationv1.APIService) metav1.APIGroup {
	group := metav1.APIGroup{Name: versions[0].Spec.Group}
	for _, v := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: v.Spec.Group + "/" + v.Spec.Version,
			Version:      v.Spec.Version,
		})
	}
	group.PreferredVersion = group.Versions[0]
	return group
}
