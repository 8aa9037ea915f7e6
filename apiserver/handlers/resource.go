package handlers

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/version"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/handlers/write"
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

// An action is a verb at a path, as in upstream's installer.go.
type action struct {
	// verb is one of the names request.Method…: an HTTP method, or a verb such as
	// LIST if the method has several.
	verb string
	// methods are the HTTP methods of the action: one, or all that a connect
	// accepts.
	methods []string
	// path is relative to the group version: "namespaces/{namespace}/pods/{name}".
	path string
	// allNamespaces says that the action of a namespaced resource spans all
	// namespaces.
	allNamespaces bool
}

// restOfPath is the path parameter that matches the rest of a path.
const restOfPath = "/{path:*}"

// withRest reports whether the path ends in restOfPath.
func (a action) withRest() bool { return strings.HasSuffix(a.path, restOfPath) }

// metricsScope returns the value of the label "scope" in upstream's metrics.
func (a action) metricsScope(namespaced bool) string {
	switch {
	case a.allNamespaces:
		return "cluster"
	case a.withRest(), a.verb == request.MethodPost, strings.Contains(a.path, "/{name}"):
		return "resource"
	case namespaced:
		return "namespace"
	default:
		return "cluster"
	}
}

// verbNames are the verbs in discovery and RBAC, by those of actions.
var verbNames = map[string]string{
	request.MethodDelete: "delete", request.MethodDeleteCollection: "deletecollection",
	request.MethodGet: "get", request.MethodList: "list",
	request.MethodWatch: "watch", request.MethodWatchList: "watch",
	request.MethodPost: "create", request.MethodPut: "update", request.MethodPatch: "patch",
}

// discoveryVerbs returns the verbs of the action in discovery and RBAC. For a connect these
// are the verbs of its HTTP methods.
func (a action) discoveryVerbs() (verbs []string) {
	names := []string{a.verb}
	if a.verb == request.MethodConnect {
		names = a.methods
	}
	for _, name := range names {
		if verb := verbNames[name]; verb != "" {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

// findActions returns the actions of the resource, which follow from the interfaces that
// its storage implements. The order is that of upstream's installer.
func (r *Resource) findActions() []action {
	collection, item := r.resource, r.resource+"/{name}"
	if r.namespaced {
		collection = "namespaces/{namespace}/" + collection
		item = "namespaces/{namespace}/" + item
	}
	if r.subresource != "" {
		// A subresource has a single path.
		item += "/" + r.subresource
		collection = item
	}
	all := append(r.collectionActions(collection), r.itemActions(item)...)
	if r.namespaced && r.subresource == "" {
		for _, a := range r.collectionActions(r.resource) {
			if a.verb == request.MethodList || a.verb == request.MethodWatchList {
				a.allNamespaces = true
				all = append(all, a)
			}
		}
	}
	return all
}

// actions are those of a resource.
type actions []action

// add adds an action if the storage supports it.
func (all *actions) add(supported bool, verb, method, path string) {
	if supported {
		*all = append(*all, action{verb: verb, methods: []string{method}, path: path})
	}
}

func (r *Resource) collectionActions(path string) (all actions) {
	_, lists := r.storage.(rest.Lister)
	_, watches := r.storage.(rest.Watcher)
	_, creates := r.storage.(rest.Creater)
	_, createsNamed := r.storage.(rest.NamedCreater)
	_, deletes := r.storage.(rest.CollectionDeleter)

	all.add(lists, request.MethodList, http.MethodGet, path)
	all.add(creates || createsNamed, request.MethodPost, http.MethodPost, path)
	all.add(deletes, request.MethodDeleteCollection, http.MethodDelete, path)
	// The watch/ prefix is deprecated since Kubernetes 1.11 and still served.
	all.add(lists && watches, request.MethodWatchList, http.MethodGet, "watch/"+path)
	return all
}

func (r *Resource) itemActions(path string) (all actions) {
	_, gets := r.storage.(rest.Getter)
	withOptions, getsWithOptions := r.storage.(rest.GetterWithOptions)
	_, updates := r.storage.(rest.Updater)
	_, patches := r.storage.(rest.Patcher)
	_, deletes := r.storage.(rest.GracefulDeleter)
	_, watches := r.storage.(rest.Watcher)
	connecter, connects := r.storage.(rest.Connecter)

	all.add(gets || getsWithOptions, request.MethodGet, http.MethodGet, path)
	if getsWithOptions {
		_, subpath, _ := withOptions.NewGetOptions()
		all.add(subpath, request.MethodGet, http.MethodGet, path+restOfPath)
	}
	all.add(updates, request.MethodPut, http.MethodPut, path)
	all.add(patches, request.MethodPatch, http.MethodPatch, path)
	all.add(deletes, request.MethodDelete, http.MethodDelete, path)
	all.add(watches, request.MethodWatch, http.MethodGet, "watch/"+path)
	if connects {
		_, subpath, _ := connecter.NewConnectOptions()
		all = append(all, action{verb: request.MethodConnect, methods: connecter.ConnectMethods(), path: path})
		if subpath {
			all = append(all, action{verb: request.MethodConnect, methods: connecter.ConnectMethods(), path: path + restOfPath})
		}
	}
	return all
}

// handler returns the handler of an action.
func (r *Resource) handler(a action) http.HandlerFunc {
	admit := r.serving.Admission
	switch a.verb {
	case request.MethodGet:
		return r.getHandler()
	case request.MethodList:
		return r.listHandler(false)
	case request.MethodWatch, request.MethodWatchList:
		return r.listHandler(true)
	case request.MethodPost:
		return r.writes().Create(r.storage)
	case request.MethodPut:
		return r.writes().Update(r.storage.(rest.Updater))
	case request.MethodPatch:
		return r.writes().Patch(r.storage.(rest.Patcher))
	case request.MethodDelete:
		return r.writes().Delete(r.storage.(rest.GracefulDeleter))
	case request.MethodDeleteCollection:
		return r.writes().DeleteCollection(r.storage.(rest.CollectionDeleter))
	case request.MethodConnect:
		connecter := r.storage.(rest.Connecter)
		return func(w http.ResponseWriter, req *http.Request) {
			handlers.ConnectResource(connecter, r.scope, admit, r.path, r.subresource != "")(w, req)
		}
	default:
		panic("endpoints: no handler for verb " + a.verb)
	}
}

// writes returns the handlers of the resource's writes.
func (r *Resource) writes() *write.Handlers {
	h := &write.Handlers{Scope: r.scope, Admission: r.serving.Admission, Fields: r.fields, PatchTypes: r.patchTypes}
	if r.written != nil {
		h.AnswerStored = r.written.answerStored
	}
	return h
}

func (r *Resource) getHandler() http.HandlerFunc {
	if getter, ok := r.storage.(rest.GetterWithOptions); ok {
		return handlers.GetResourceWithOptions(getter, r.scope, r.subresource != "")
	}
	handler := handlers.GetResource(r.storage.(rest.Getter), r.scope)
	if r.encoded != nil {
		return r.encoded.get(handler)
	}
	return handler
}

func (r *Resource) listHandler(forceWatch bool) http.HandlerFunc {
	lister, _ := r.storage.(rest.Lister)
	watcher, _ := r.storage.(rest.Watcher)
	handler := handlers.ListResource(lister, watcher, r.scope, forceWatch, r.serving.MinRequestTimeout)
	if r.encoded != nil && watcher != nil {
		return r.encoded.list(handler, forceWatch)
	}
	return handler
}

// instrument counts the requests of a verb and warns of a deprecated version. scope is the
// value of the label "scope" in upstream's metrics.
func (r *Resource) instrument(verb, scope string, handler http.HandlerFunc) http.HandlerFunc {
	if named, ok := r.storage.(endpoints.StorageMetricsOverride); ok && verb == request.MethodGet {
		verb = named.OverrideMetricsVerb(verb)
	}
	handler = metrics.InstrumentHandlerFunc(verb, r.gv.Group, r.gv.Version, r.resource, r.subresource,
		scope, metrics.APIServerComponent, r.deprecated, r.removedRelease, handler)
	if len(r.warnings) == 0 {
		return handler
	}
	return func(w http.ResponseWriter, req *http.Request) {
		for _, text := range r.warnings {
			warning.AddWarning(req.Context(), "", text)
		}
		handler(w, req)
	}
}

// patchTypes returns the media types of patches that kube-apiserver accepts.
func patchTypes() []string {
	supported := []string{
		string(types.JSONPatchType),
		string(types.MergePatchType),
		string(types.StrategicMergePatchType),
		string(types.ApplyYAMLPatchType),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		supported = append(supported, string(types.ApplyCBORPatchType))
	}
	return supported
}

var anyMedia = []string{"*/*"}

// consumes returns the media types of an action's requests. For actions other than a patch
// upstream's handler checks the media type, and has a default.
func (r *Resource) consumes(a action) []string {
	if a.verb == request.MethodPatch {
		return r.patchTypes
	}
	return anyMedia
}

// produces returns the media types of an action's responses.
func (r *Resource) produces(a action) []string {
	media, stream := negotiation.MediaTypesForSerializer(r.types.Serializer)
	all := append(media[:len(media):len(media)], stream...)
	var own []string
	if s, ok := r.storage.(rest.StorageMetadata); ok {
		own = s.ProducesMIMETypes(a.verb)
	}
	switch a.verb {
	case request.MethodConnect:
		return anyMedia
	case request.MethodWatch, request.MethodWatchList:
		return all
	case request.MethodList:
		return append(own[:len(own):len(own)], all...)
	default:
		return append(own[:len(own):len(own)], media...)
	}
}

// newScope builds the request scope, with which upstream's handlers serve the resource.
// adjust, if not nil, may change any field.
func (r *Resource) newScope(adjust func(string, *handlers.RequestScope) error) (*handlers.RequestScope, error) {
	tables, isTableConvertor := r.storage.(rest.TableConvertor)
	if _, lists := r.storage.(rest.Lister); lists && !isTableConvertor {
		return nil, fmt.Errorf("%s: %q lists and so must implement rest.TableConvertor", r.gv, r.path)
	}
	acceptor, _ := r.storage.(rest.GroupVersionAcceptor)
	scope := &handlers.RequestScope{
		Namer: handlers.ContextBasedNaming{
			Namer:         runtime.Namer(meta.NewAccessor()),
			ClusterScoped: !r.namespaced,
		},
		Serializer:      r.types.Serializer,
		ParameterCodec:  r.types.ParameterCodec,
		Creater:         r.types.Creater,
		Convertor:       r.types.Convertor,
		Defaulter:       r.types.Defaulter,
		Typer:           r.types.Typer,
		UnsafeConvertor: r.types.UnsafeConvertor,
		Authorizer:      r.serving.Authorizer,

		EquivalentResourceMapper: r.serving.EquivalentResources,
		TableConvertor:           tables,

		Resource:    r.gv.WithResource(r.resource),
		Subresource: r.subresource,
		Kind:        r.kind,

		AcceptsGroupVersionDelegate: acceptor,

		// The group is that of the kind. A subresource may have a kind of another
		// group (Scale, Eviction).
		HubGroupVersion:  schema.GroupVersion{Group: r.kind.Group, Version: runtime.APIVersionInternal},
		MetaGroupVersion: metav1.SchemeGroupVersion,

		MaxRequestBodyBytes: maxRequestBodyBytes,
	}
	if adjust != nil {
		if err := adjust(r.path, scope); err != nil {
			return nil, err
		}
	}
	fields := managedfields.Config{Kind: r.kind, Subresource: r.subresource, Creater: r.types.Creater}
	if scope.FieldManager == nil && r.serving.TypeConverter != nil {
		if err := r.setFieldManager(scope, &fields); err != nil {
			return nil, err
		}
	}
	fields.Upstream = scope.FieldManager
	r.fields = managedfields.New(fields)
	return scope, nil
}

// setFieldManager sets the scope's field manager to upstream's, and configures what computes
// managed fields in its place.
func (r *Resource) setFieldManager(scope *handlers.RequestScope, fields *managedfields.Config) error {
	reset, err := r.resetFields()
	if err != nil {
		return err
	}
	scope.FieldManager, err = upstream.NewDefaultFieldManager(
		r.serving.TypeConverter, r.types.UnsafeConvertor, r.types.Defaulter, r.types.Creater,
		r.kind, scope.HubGroupVersion, r.subresource, reset)
	if err != nil {
		return fmt.Errorf("%s: field manager of %q: %w", r.gv, r.path, err)
	}
	fields.Types, fields.Converter = r.serving.TypeConverter, r.types.UnsafeConvertor
	fields.Ignored = reset[fieldpath.APIVersion(r.kind.GroupVersion().String())]
	if r.subresource == "" {
		fields.FieldSets = r.serving.FieldSets
	}
	if r.kind.Kind == r.docKind {
		fields.ParsedSets = r.serving.ParsedSets
	}
	return nil
}

// resetFields returns the fields that the storage's strategy resets in a write, such as the
// status in a write of the main resource. The field manager ignores them, so that nobody
// becomes the owner of a field by a write that did not change it.
func (r *Resource) resetFields() (map[fieldpath.APIVersion]fieldpath.Filter, error) {
	bySet, isSet := r.storage.(rest.ResetFieldsStrategy)
	byFilter, isFilter := r.storage.(rest.ResetFieldsFilterStrategy)
	switch {
	case isSet && isFilter:
		return nil, fmt.Errorf("%s: %q must not name its reset fields both by set and by filter", r.gv, r.path)
	case isSet:
		return fieldpath.NewExcludeFilterSetMap(bySet.GetResetFields()), nil
	case isFilter:
		return byFilter.GetResetFieldsFilter(), nil
	default:
		return nil, nil
	}
}

// registryProvider is a storage that holds its registry in a field which is not embedded.
type registryProvider interface {
	Registry() *genericregistry.Store
}

// registryOf returns the registry whose reads give the same result as those of a storage;
// nil if there is none. It is the storage itself, or embedded in it, directly or in an
// embedded rest.StandardStorage, or the one that a registryProvider returns.
//
// The function relies on a property of upstream's storages: one that embeds a registry does
// not change what the registry reads, unless by the registry's Decorator, which encoded calls.
// TestRegistry_ReadsAreNotOverridden fails for another, and lists the storages that are read
// otherwise.
func registryOf(s rest.Storage) *genericregistry.Store {
	if provider, ok := s.(registryProvider); ok {
		return provider.Registry()
	}
	value := reflect.ValueOf(s)
	for value.Kind() == reflect.Struct || value.Kind() == reflect.Pointer && !value.IsNil() {
		if registry, ok := value.Interface().(*genericregistry.Store); ok {
			return registry
		}
		if value = reflect.Indirect(value); value.Kind() != reflect.Struct {
			return nil
		}
		value = embeddedGetter(value)
	}
	return nil
}

// embeddedGetter returns the exported embedded field of object that implements rest.Getter;
// the zero Value if there is none.
func embeddedGetter(object reflect.Value) reflect.Value {
	for i := range object.NumField() {
		field := object.Type().Field(i)
		if !field.Anonymous || !field.IsExported() {
			continue
		}
		value := object.Field(i)
		if value.Kind() == reflect.Interface {
			value = value.Elem()
		}
		if value.Kind() != reflect.Pointer {
			continue
		}
		if _, ok := value.Interface().(rest.Getter); ok {
			return value
		}
	}
	return reflect.Value{}
}
