package handlers

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

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
