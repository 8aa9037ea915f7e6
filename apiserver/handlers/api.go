package handlers

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/go-chi/chi/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
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

// A Route is one method at one path.
type Route struct {
	// Method is the HTTP method.
	Method string
	// Path is absolute and has its parameters in braces. "{path:*}" at the end
	// matches the rest of the path. The parameters are used for OpenAPI only:
	// handlers read them from RequestInfo.
	Path string
	// Handler serves the requests.
	Handler http.Handler
	// Consumes and Produces are the media types of requests and responses.
	Consumes, Produces []string

	// skipsNegotiation says that the handler itself checks method and media types.
	skipsNegotiation bool
	// describe builds the OpenAPI description in each call, because descriptions are large and
	// seldom used.
	describe func(*Route) (restful.Route, error)
}

// consumes reports whether the route accepts the content type. Without a content type, a
// method that needs no body is accepted, and the body of another method counts as an octet
// stream. These are the rules of go-restful, which kube-apiserver uses.
func (r *Route) consumes(contentType string) bool {
	if contentType == "" {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete, http.MethodTrace:
			return true
		}
		contentType = "application/octet-stream"
	}
	return anyMatches(contentType, r.Consumes, false)
}

// produces reports whether the route has a media type that the Accept header names.
func (r *Route) produces(accept string) bool {
	return accept == "" || anyMatches(accept, r.Produces, true)
}

// anyMatches reports whether one of the media types in a header, without its parameters, is
// among those offered.
func anyMatches(header string, offered []string, wildcard bool) bool {
	for part := range strings.SplitSeq(header, ",") {
		media, _, _ := strings.Cut(part, ";")
		media = strings.Trim(media, " ")
		if wildcard && media == "*/*" {
			return true
		}
		for _, o := range offered {
			if o == "*/*" || o == media {
				return true
			}
		}
	}
	return false
}

// methods serves the routes of one path, which differ in their methods.
type methods struct {
	routes []Route
	errors errorWriter
}

// ServeHTTP selects the route by method and then checks the request's content type and
// Accept header. It answers a mismatch with 405, 415 or 406, as go-restful does.
func (m *methods) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	i := slices.IndexFunc(m.routes, func(r Route) bool { return r.skipsNegotiation || r.Method == req.Method })
	if i < 0 {
		m.errors.write(w, req, http.StatusMethodNotAllowed, "405: Method Not Allowed")
		return
	}
	route := &m.routes[i]
	if route.skipsNegotiation {
		route.Handler.ServeHTTP(w, req)
		return
	}
	if !route.consumes(req.Header.Get("Content-Type")) {
		m.errors.write(w, req, http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
		return
	}
	if !route.produces(req.Header.Get("Accept")) {
		m.errors.write(w, req, http.StatusNotAcceptable,
			fmt.Sprintf("406: Not Acceptable\n\nAvailable representations: %s", strings.Join(route.Produces, ", ")))
		return
	}
	route.Handler.ServeHTTP(w, req)
}

// GetOnly returns a handler that serves document to GET and answers other methods with 405.
func GetOnly(document http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return &methods{
		routes: []Route{{Method: http.MethodGet, Handler: document, Consumes: anyMedia, Produces: anyMedia}},
		errors: errorWriter{serializer},
	}
}

// errorWriter writes the Status of a request that no route serves.
type errorWriter struct{ serializer runtime.NegotiatedSerializer }

func (f errorWriter) write(w http.ResponseWriter, req *http.Request, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
	responsewriters.ErrorNegotiated(err, f.serializer, schema.GroupVersion{}, w, req)
}

func (f errorWriter) notFound(w http.ResponseWriter, req *http.Request) {
	f.write(w, req, http.StatusNotFound, "404: Page Not Found")
}

// Group is an API group with its storages, types and codecs.
type Group struct {
	// Name is the group's name. It is empty for the core group, which is served
	// below /api; all other groups are served below /apis.
	Name string
	// Versions are the versions, the preferred one first. A version without storages
	// has no routes and is not in discovery.
	Versions []string
	// Storage maps a version and "resource" or "resource/subresource" to the
	// storage. Names are lower case.
	Storage map[string]map[string]rest.Storage
	// Scheme has every type that the storages use.
	Scheme *runtime.Scheme
	// Codecs are the encodings of request and response bodies.
	Codecs runtime.NegotiatedSerializer
	// ParameterCodec decodes query parameters into the options of get and connect.
	ParameterCodec runtime.ParameterCodec
}

// Serving is what all resources of a server share.
type Serving struct {
	// Admission is called for every write and connect; nil admits everything.
	Admission admission.Interface
	// Authorizer answers the checks that depend on a request's body or its effect. If
	// it is nil, an update that would create an object fails.
	Authorizer authorizer.Authorizer
	// TypeConverter has the schemas by which managed fields are computed. The first
	// write uses it first, so it may be built only then.
	TypeConverter upstream.TypeConverter
	// FieldSets caches the managed fields of created objects, for all resources. If it
	// is nil, they are computed for every object.
	FieldSets *managedfields.FieldSets
	// ParsedSets caches the parsed managed fields of updated objects, for all
	// resources. If it is nil, upstream computes the managed fields of updates.
	ParsedSets *managedfields.ParsedSets
	// EquivalentResources learns every resource and its kind. Admission reads it to
	// match a resource by its other versions. If it is nil, a new one is made.
	EquivalentResources runtime.EquivalentResourceRegistry

	// MinRequestTimeout bounds a watch without timeoutSeconds from below: such a watch
	// stays open for one to two times as long. Zero means 30 minutes, kube-apiserver's
	// default.
	MinRequestTimeout time.Duration

	// decodeReads passes all reads on to upstream's handlers, so that tests can
	// compare.
	decodeReads bool
}

const (
	defaultMinRequestTimeout = 30 * time.Minute
	// maxRequestBodyBytes bounds the body of a write.
	maxRequestBodyBytes = 3 * 1024 * 1024
)

func (s Serving) withDefaults() Serving {
	if s.MinRequestTimeout == 0 {
		s.MinRequestTimeout = defaultMinRequestTimeout
	}
	if s.EquivalentResources == nil {
		s.EquivalentResources = runtime.NewEquivalentResourceRegistry()
	}
	return s
}

// Config is what New needs to serve a set of groups.
type Config struct {
	Groups  []Group
	Serving Serving

	// Discovery is the registry to which New adds the groups. The API answers /api,
	// /apis and the documents below from it, also for groups that other servers add
	// later.
	Discovery *documents.Discovery

	// NotFound is the delegate: it serves the paths that belong to none of the groups.
	NotFound http.Handler
}

// Types says how the objects of a group version are made, converted and
// encoded.
type Types struct {
	Serializer      runtime.NegotiatedSerializer
	ParameterCodec  runtime.ParameterCodec
	Creater         runtime.ObjectCreater
	Convertor       runtime.ObjectConvertor
	UnsafeConvertor runtime.ObjectConvertor
	Defaulter       runtime.ObjectDefaulter
	Typer           runtime.ObjectTyper
}

func (g *Group) types() Types {
	return Types{
		Serializer:      g.Codecs,
		ParameterCodec:  g.ParameterCodec,
		Creater:         g.Scheme,
		Convertor:       g.Scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(g.Scheme),
		Defaulter:       g.Scheme,
		Typer:           g.Scheme,
	}
}

// rootPath is the path below which a group version is served, without a slash at its
// end.
func rootPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// NewScheme returns a scheme with the types that install adds and with the types that every
// API uses: options, watch events, Status and the discovery types.
func NewScheme(install func(*runtime.Scheme)) *runtime.Scheme {
	scheme := runtime.NewScheme()
	install(scheme)
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned,
		&metav1.Status{},
		&metav1.WatchEvent{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return scheme
}

// NewCodecs returns the codec factory of a scheme, with the encodings of streams and the one that a
// feature gate enables, as upstream's NewDefaultAPIGroupInfo does for each group.
func NewCodecs(scheme *runtime.Scheme) serializer.CodecFactory {
	options := []serializer.CodecFactoryOptionsMutator{
		serializer.WithStreamingCollectionEncodingToJSON(),
		serializer.WithStreamingCollectionEncodingToProtobuf(),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		options = append(options, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return serializer.NewCodecFactory(scheme, options...)
}

// NewTextGroup returns a group of one version, whose types have no protobuf: it is served as JSON and YAML.
func NewTextGroup(gv schema.GroupVersion, scheme *runtime.Scheme, storages map[string]rest.Storage) Group {
	return Group{
		Name:           gv.Group,
		Versions:       []string{gv.Version},
		Storage:        map[string]map[string]rest.Storage{gv.Version: storages},
		Scheme:         scheme,
		Codecs:         textCodecs{serializer.NewCodecFactory(scheme)},
		ParameterCodec: runtime.NewParameterCodec(scheme),
	}
}

// textCodecs are the JSON and YAML of a codec factory.
type textCodecs struct{ serializer.CodecFactory }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c textCodecs) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(c.CodecFactory.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeYAML
	})
}
