package handlers

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	"golang.org/x/text/cases"
	"golang.org/x/text/language"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/util"

	"byre/apiserver/handlers/documents"
)

const prettyDescription = "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."

// optionsVersion is the group version of the options types (ListOptions, DeleteOptions)
// that describe the query parameters of every group.
var optionsVersion = schema.GroupVersion{Version: "v1"}

// describe returns the OpenAPI description of an action. Names and texts are upstream's,
// because generated clients use the names.
func (r *Resource) describe(a action, route *Route) (restful.Route, error) {
	d := operationBuilder{r: r, a: a, op: restful.Route{
		Method:   route.Method,
		Path:     route.Path,
		Consumes: route.Consumes,
		Produces: route.Produces,
		Metadata: map[string]any{
			endpoints.RouteMetaGVK: metav1.GroupVersionKind{
				Group: r.kind.Group, Version: r.kind.Version, Kind: r.kind.Kind,
			},
			endpoints.RouteMetaAction: strings.ToLower(a.verb),
		},
	}}
	d.build()
	d.pathParams()
	return d.op, d.err
}

// operationBuilder builds the OpenAPI description of one action. err is the first error.
type operationBuilder struct {
	r   *Resource
	a   action
	op  restful.Route
	err error
}

func (d *operationBuilder) build() {
	kind := d.r.docKind
	specified, one := "the specified "+kind, strings.TrimPrefix(endpoints.GetArticleForNoun(kind, " "), " ")+kind
	if d.a.verb == request.MethodConnect {
		d.connect(kind)
		return
	}
	d.param(restful.QueryParameter("pretty", prettyDescription))
	switch d.a.verb {
	case request.MethodGet:
		d.named("read", "")
		d.doc("read", specified)
		d.getOptions()
		d.answers(d.produced(), http.StatusOK)
	case request.MethodList:
		verb := "list"
		if _, watches := d.r.storage.(rest.Watcher); watches {
			verb = "list or watch"
		}
		d.named("list", "")
		d.doc(verb, "objects of kind "+kind)
		d.options("ListOptions")
		d.answers(d.list(), http.StatusOK)
	case request.MethodPut:
		d.named("replace", "")
		d.doc("replace", specified)
		d.takes(d.object(d.r.kind), true)
		d.options("UpdateOptions")
		d.answers(d.produced(), http.StatusOK, http.StatusCreated)
	case request.MethodPatch:
		d.named("patch", "")
		d.doc("partially update", specified)
		d.takes(metav1.Patch{}, true)
		d.options("PatchOptions")
		d.answers(d.produced(), http.StatusOK, http.StatusCreated)
	case request.MethodPost:
		d.named("create", "")
		d.doc("create", one)
		d.takes(d.object(d.r.kind), true)
		d.options("CreateOptions")
		d.answers(d.produced(), http.StatusOK, http.StatusCreated, http.StatusAccepted)
	case request.MethodDelete:
		d.named("delete", "")
		d.doc("delete", one)
		d.takes(d.object(optionsVersion.WithKind("DeleteOptions")), false)
		d.options("DeleteOptions")
		d.answers(d.deleted(), http.StatusOK, http.StatusAccepted)
	case request.MethodDeleteCollection:
		d.named("deletecollection", "")
		d.doc("delete collection of", kind)
		d.takes(d.object(optionsVersion.WithKind("DeleteOptions")), false)
		d.options("DeleteOptions")
		d.options("ListOptions", "watch", "allowWatchBookmarks")
		d.answers(d.object(optionsVersion.WithKind("Status")), http.StatusOK)
	case request.MethodWatch:
		d.named("watch", "")
		d.doc("watch changes to", "an object of kind "+kind)
		d.op.Doc += ". deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter."
		d.options("ListOptions")
		d.answers(d.object(d.r.gv.WithKind("WatchEvent")), http.StatusOK)
	case request.MethodWatchList:
		d.named("watch", "List")
		d.doc("watch individual changes to a list of", kind)
		d.op.Doc += ". deprecated: use the 'watch' parameter with a list operation instead."
		d.options("ListOptions")
		d.answers(d.object(d.r.gv.WithKind("WatchEvent")), http.StatusOK)
	}
}

func (d *operationBuilder) connect(kind string) {
	method := d.op.Method
	d.named("connect"+title(strings.ToLower(method)), "")
	d.doc("connect "+method+" requests to", kind)
	if options, _, _ := d.r.storage.(rest.Connecter).NewConnectOptions(); options != nil {
		d.internalOptions(options)
	}
	d.op.WriteSample = "string"
	if storage, ok := d.r.storage.(rest.StorageMetadata); ok {
		if sample := storage.ProducesObject(method); sample != nil {
			d.op.WriteSample = sample
		}
	}
}

// named sets the operation's name, such as "listNamespacedPod", "readNamespacedPodLog",
// "listPodForAllNamespaces" or "watchNodeList".
func (d *operationBuilder) named(verb, list string) {
	name := verb
	if d.r.namespaced && !d.a.allNamespaces {
		name += "Namespaced"
	}
	name += d.r.docKind + title(d.r.subresource) + list
	if d.a.withRest() {
		name += "WithPath"
	}
	if d.a.allNamespaces {
		name += "ForAllNamespaces"
	}
	d.op.Operation = name
}

// doc sets the operation's text: what it does to an object, or to a subresource of it.
func (d *operationBuilder) doc(does, object string) {
	if d.r.subresource != "" {
		object = d.r.subresource + " of " + object
	}
	d.op.Doc = does + " " + object
}

func (d *operationBuilder) takes(body any, required bool) {
	d.op.ReadSample = body
	d.param(restful.BodyParameter("body", "").Required(required))
}

func (d *operationBuilder) answers(body any, codes ...int) {
	d.op.WriteSample, d.op.ResponseErrors = body, map[int]restful.ResponseError{}
	for _, code := range codes {
		d.op.ResponseErrors[code] = restful.ResponseError{Code: code, Message: http.StatusText(code), Model: body}
	}
}

func (d *operationBuilder) pathParams() {
	if strings.Contains(d.a.path, "{namespace}") {
		d.param(restful.PathParameter("namespace", "object name and auth scope, such as for teams and projects"))
	}
	if strings.Contains(d.a.path, "{name}") {
		d.param(restful.PathParameter("name", "name of the "+d.r.kind.Kind))
	}
	if d.a.withRest() {
		d.param(restful.PathParameter("path", "path to the resource"))
	}
}

// produced returns a value of the type of the response to a read or a write: the resource's
// kind, unless the storage declares another one.
func (d *operationBuilder) produced() any {
	if storage, ok := d.r.storage.(rest.StorageMetadata); ok {
		if sample := storage.ProducesObject(d.a.verb); sample != nil {
			return sample
		}
	}
	return d.object(d.r.kind)
}

func (d *operationBuilder) deleted() any {
	if storage, ok := d.r.storage.(rest.MayReturnFullObjectDeleter); ok && storage.DeleteReturnsDeletedObject() {
		return d.produced()
	}
	return d.object(optionsVersion.WithKind("Status"))
}

func (d *operationBuilder) list() any {
	kinds, _, err := d.r.types.Typer.ObjectKinds(d.r.storage.(rest.Lister).NewList())
	if err != nil {
		d.fail(err)
		return nil
	}
	return d.object(d.r.gv.WithKind(kinds[0].Kind))
}

// object returns an empty value of a kind.
func (d *operationBuilder) object(kind schema.GroupVersionKind) any {
	object, err := d.r.types.Creater.New(kind)
	if err != nil {
		d.fail(err)
		return nil
	}
	return reflect.Indirect(reflect.ValueOf(object)).Interface()
}

func (d *operationBuilder) getOptions() {
	storage, ok := d.r.storage.(rest.GetterWithOptions)
	if !ok {
		return
	}
	options, _, _ := storage.NewGetOptions()
	d.internalOptions(options)
}

// internalOptions adds the query parameters of options, an internal type. The external type
// is that of the resource's group version or, if there is none, of optionsVersion.
func (d *operationBuilder) internalOptions(options runtime.Object) {
	kinds, _, err := d.r.types.Typer.ObjectKinds(options)
	if err != nil {
		d.fail(err)
		return
	}
	versioned, err := d.r.types.Creater.New(d.r.gv.WithKind(kinds[0].Kind))
	if err != nil {
		versioned, err = d.r.types.Creater.New(optionsVersion.WithKind(kinds[0].Kind))
	}
	if err != nil {
		d.fail(err)
		return
	}
	d.param(queryParams(versioned)...)
}

func (d *operationBuilder) options(kind string, except ...string) {
	options, err := d.r.types.Creater.New(optionsVersion.WithKind(kind))
	if err != nil {
		d.fail(err)
		return
	}
	d.param(queryParams(options, except...)...)
}

func (d *operationBuilder) param(params ...*restful.Parameter) {
	d.op.ParameterDocs = append(d.op.ParameterDocs, params...)
}

func (d *operationBuilder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func title(s string) string { return cases.Title(language.English).String(s) }

// queryParams returns the query parameters of an options type: one for each field that has
// a JSON name and is neither a struct nor an interface.
func queryParams(options runtime.Object, except ...string) []*restful.Parameter {
	var docs map[string]string
	if documented, ok := options.(interface{ SwaggerDoc() map[string]string }); ok {
		docs = documented.SwaggerDoc()
	}
	var params []*restful.Parameter
	for _, field := range reflect.VisibleFields(reflect.TypeOf(options).Elem()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if len(field.Index) > 1 || name == "" || slices.Contains(except, name) || !isParam(field.Type) {
			continue
		}
		params = append(params, restful.QueryParameter(name, docs[name]).DataType(jsonType(field.Type)))
	}
	return params
}

func isParam(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() != reflect.Interface && t.Kind() != reflect.Struct
}

// jsonType returns the JSON type of a parameter of Go type t. For a slice it is the type of
// an element, because a client gives several values by repeating the parameter.
func jsonType(t reflect.Type) string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Float32, reflect.Float64:
		return "number"
	default:
		return "string"
	}
}

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
