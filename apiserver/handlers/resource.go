package handlers

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/version"

	"byre/apiserver/handlers/managedfields"
)

// A Resource serves one resource or subresource of one group version.
type Resource struct {
	gv          schema.GroupVersion
	path        string // "pods/status"
	resource    string // "pods"
	subresource string // "status", or empty

	storage    rest.Storage
	namespaced bool
	kind       schema.GroupVersionKind
	// docKind is the kind in the names of operations; for a subresource it is the
	// kind of the parent.
	docKind string

	types      Types
	serving    Serving
	patchTypes []string
	scope      *handlers.RequestScope
	fields     *managedfields.Manager
	// encoded answers reads from bytes, and written answers writes; nil where
	// objects are encoded to answer.
	encoded, written *encoded

	deprecated     bool
	removedRelease string
	warnings       []string

	actions []action
}

// VersionConfig is what the resources of a group version are made from.
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

// NewResource builds the resource of the storage that v.Storage has for path.
func NewResource(v VersionConfig, path string) (*Resource, error) {
	r := &Resource{
		gv:      v.GroupVersion,
		path:    path,
		storage: v.Storage[path],
		types:   v.Types,
		serving: v.Serving.withDefaults(),

		patchTypes: v.PatchTypes,
		deprecated: len(v.Warnings) > 0,
		warnings:   v.Warnings,
	}
	if r.patchTypes == nil {
		r.patchTypes = patchTypes()
	}
	if path != strings.ToLower(path) {
		return nil, fmt.Errorf("%s: resource names must be lower case, not %q", v.GroupVersion, path)
	}
	var sub bool
	r.resource, r.subresource, sub = strings.Cut(path, "/")
	if strings.Contains(r.subresource, "/") {
		return nil, fmt.Errorf("%s: %q has more parts than resource and subresource", v.GroupVersion, path)
	}
	// A subresource has the scope of its parent, and its operations are named after
	// the parent's kind.
	parent := v.Storage[r.resource]
	if sub && parent == nil {
		return nil, fmt.Errorf("%s: %q has no parent storage", v.GroupVersion, path)
	}
	scoper, ok := parent.(rest.Scoper)
	if !ok {
		return nil, fmt.Errorf("%s: %q must implement rest.Scoper", v.GroupVersion, r.resource)
	}
	r.namespaced = scoper.NamespaceScoped()

	var err error
	if r.kind, err = endpoints.GetResourceKind(r.gv, r.storage, r.types.Typer); err != nil {
		return nil, err
	}
	parentKind, err := endpoints.GetResourceKind(r.gv, parent, r.types.Typer)
	if err != nil {
		return nil, err
	}
	r.docKind = parentKind.Kind
	if err := r.findDeprecation(); err != nil {
		return nil, err
	}
	if r.scope, err = r.newScope(v.Adjust); err != nil {
		return nil, err
	}
	if e := newEncoded(r, parent); e != nil {
		if e.answersWrites() {
			r.written = e
		}
		if !sub {
			r.encoded = e
		}
	}
	r.actions = r.findActions()
	r.serving.EquivalentResources.RegisterKindFor(r.scope.Resource, r.subresource, r.kind)
	return r, nil
}

// findDeprecation sets the deprecation of this version of the resource, which the external
// type declares. Responses of a deprecated version have a warning.
func (r *Resource) findDeprecation() error {
	object, err := r.types.Creater.New(r.kind)
	if err != nil {
		return err
	}
	object.GetObjectKind().SetGroupVersionKind(r.kind)
	major, minor, err := deprecation.MajorMinor(version.Get())
	if err != nil {
		// A build without version information counts as version 0.0, for which
		// upstream reports every announced deprecation.
		major, minor = 0, 0
	}
	if deprecation.IsDeprecated(object, major, minor) {
		r.deprecated = true
		r.removedRelease = deprecation.RemovedRelease(object)
		r.warnings = []string{deprecation.WarningMessage(object)}
	}
	return nil
}

// routes returns the resource's routes in the order of its actions. Their paths are
// absolute.
func (r *Resource) routes() []Route {
	var routes []Route
	for _, a := range r.actions {
		for _, method := range a.methods {
			routes = append(routes, r.route(a, method))
		}
	}
	return routes
}

// Verbs returns the handler of each verb of RequestInfo ("list", "create"). It is for
// servers that find a resource by RequestInfo instead of a route. The handlers then check
// no path, and negotiate all media types themselves.
func (r *Resource) Verbs() map[string]http.Handler {
	byVerb := map[string]http.Handler{}
	for _, a := range r.actions {
		for _, verb := range a.discoveryVerbs() {
			if byVerb[verb] == nil {
				byVerb[verb] = r.instrumentByRequest(a)
			}
		}
	}
	return byVerb
}

// instrumentByRequest is instrument for a handler without a path. As in upstream's handler of
// custom resources, the scope is that of the request: one handler answers lists of a namespace
// and of all.
func (r *Resource) instrumentByRequest(a action) http.Handler {
	handler := r.handler(a)
	byScope := map[string]http.HandlerFunc{}
	for _, scope := range []string{"resource", "namespace", "cluster"} {
		byScope[scope] = r.instrument(a.verb, scope, handler)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// Without RequestInfo, a server would not have found the resource.
		info, _ := request.RequestInfoFrom(req.Context())
		byScope[metrics.CleanScope(info)](w, req)
	})
}

// discover returns the entry of the resource in the unaggregated discovery document.
func (r *Resource) discover() (metav1.APIResource, error) {
	entry := metav1.APIResource{
		Name:       r.path,
		Namespaced: r.namespaced,
		Kind:       r.kind.Kind,
		Verbs:      r.discoveryVerbs(),
	}
	if named, ok := r.storage.(rest.KindProvider); ok {
		entry.Kind = named.Kind()
	}
	if named, ok := r.storage.(rest.GroupVersionKindProvider); ok {
		kind := named.GroupVersionKind(r.gv)
		entry.Group, entry.Version, entry.Kind = kind.Group, kind.Version, kind.Kind
	}
	if short, ok := r.storage.(rest.ShortNamesProvider); ok {
		entry.ShortNames = short.ShortNames()
	}
	if in, ok := r.storage.(rest.CategoriesProvider); ok {
		entry.Categories = in.Categories()
	}
	if r.subresource == "" {
		singular, ok := r.storage.(rest.SingularNameProvider)
		if !ok {
			return entry, fmt.Errorf("%s: %q must implement rest.SingularNameProvider", r.gv, r.path)
		}
		entry.SingularName = singular.GetSingularName()
	}
	stored, ok, err := r.storedKind()
	if err != nil {
		return entry, err
	}
	if ok {
		entry.StorageVersionHash = discovery.StorageVersionHash(stored.Group, stored.Version, stored.Kind)
	}
	return entry, nil
}

// storedKind returns the kind in which the storage stores its objects; false if it stores
// none.
func (r *Resource) storedKind() (schema.GroupVersionKind, bool, error) {
	provider, ok := r.storage.(rest.StorageVersionProvider)
	if !ok || provider.StorageVersion() == nil {
		return schema.GroupVersionKind{}, false, nil
	}
	object := r.storage.New()
	kinds, _, err := r.types.Typer.ObjectKinds(object)
	if err != nil {
		return schema.GroupVersionKind{}, false, err
	}
	kind, ok := provider.StorageVersion().KindForGroupVersionKinds(kinds)
	if !ok {
		return schema.GroupVersionKind{}, false, fmt.Errorf("%s: no storage version for %T", r.gv, object)
	}
	return kind, true, nil
}

func (r *Resource) discoveryVerbs() metav1.Verbs {
	verbs := metav1.Verbs{}
	for _, a := range r.actions {
		verbs = append(verbs, a.discoveryVerbs()...)
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}

func (r *Resource) route(a action, method string) Route {
	return Route{
		Method:   method,
		Path:     rootPath(r.gv) + "/" + a.path,
		Handler:  r.instrument(a.verb, a.metricsScope(r.namespaced), r.handler(a)),
		Consumes: r.consumes(a),
		Produces: r.produces(a),
		describe: func(route *Route) (restful.Route, error) { return r.describe(a, route) },
	}
}
