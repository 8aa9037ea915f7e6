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

// discoveryVerbs returns the verbs of the action in discovery and RBAC. For a connect these
// are the verbs of its HTTP methods.
func (a action) discoveryVerbs() []string {
	names := []string{a.verb}
	if a.verb == request.MethodConnect {
		names = a.methods
	}
	var verbs []string
	for _, name := range names {
		switch name {
		case request.MethodDelete:
			verbs = append(verbs, "delete")
		case request.MethodDeleteCollection:
			verbs = append(verbs, "deletecollection")
		case request.MethodGet:
			verbs = append(verbs, "get")
		case request.MethodList:
			verbs = append(verbs, "list")
		case request.MethodPatch:
			verbs = append(verbs, "patch")
		case request.MethodPost:
			verbs = append(verbs, "create")
		case request.MethodPut:
			verbs = append(verbs, "update")
		case request.MethodWatch, request.MethodWatchList:
			verbs = append(verbs, "watch")
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
	actions := r.collectionActions(collection, false)
	actions = append(actions, r.itemActions(item)...)
	if r.namespaced && r.subresource == "" {
		for _, a := range r.collectionActions(r.resource, true) {
			if a.verb == request.MethodList || a.verb == request.MethodWatchList {
				actions = append(actions, a)
			}
		}
	}
	return actions
}

func (r *Resource) collectionActions(path string, allNamespaces bool) []action {
	var actions []action
	add := func(supported bool, verb, method, path string) {
		if supported {
			actions = append(actions, action{verb, []string{method}, path, allNamespaces})
		}
	}
	_, lists := r.storage.(rest.Lister)
	_, watches := r.storage.(rest.Watcher)
	_, creates := r.storage.(rest.Creater)
	_, createsNamed := r.storage.(rest.NamedCreater)
	_, deletes := r.storage.(rest.CollectionDeleter)

	add(lists, request.MethodList, http.MethodGet, path)
	add(creates || createsNamed, request.MethodPost, http.MethodPost, path)
	add(deletes, request.MethodDeleteCollection, http.MethodDelete, path)
	// The watch/ prefix is deprecated since Kubernetes 1.11 and still served.
	add(lists && watches, request.MethodWatchList, http.MethodGet, "watch/"+path)
	return actions
}

func (r *Resource) itemActions(path string) []action {
	var actions []action
	add := func(supported bool, verb, method, path string) {
		if supported {
			actions = append(actions, action{verb, []string{method}, path, false})
		}
	}
	_, gets := r.storage.(rest.Getter)
	withOptions, getsWithOptions := r.storage.(rest.GetterWithOptions)
	_, updates := r.storage.(rest.Updater)
	_, patches := r.storage.(rest.Patcher)
	_, deletes := r.storage.(rest.GracefulDeleter)
	_, watches := r.storage.(rest.Watcher)
	connecter, connects := r.storage.(rest.Connecter)

	add(gets || getsWithOptions, request.MethodGet, http.MethodGet, path)
	if getsWithOptions {
		_, subpath, _ := withOptions.NewGetOptions()
		add(subpath, request.MethodGet, http.MethodGet, path+restOfPath)
	}
	add(updates, request.MethodPut, http.MethodPut, path)
	add(patches, request.MethodPatch, http.MethodPatch, path)
	add(deletes, request.MethodDelete, http.MethodDelete, path)
	add(watches, request.MethodWatch, http.MethodGet, "watch/"+path)
	if connects {
		_, subpath, _ := connecter.NewConnectOptions()
		actions = append(actions, action{request.MethodConnect, connecter.ConnectMethods(), path, false})
		if subpath {
			actions = append(actions, action{request.MethodConnect, connecter.ConnectMethods(), path + restOfPath, false})
		}
	}
	return actions
}
