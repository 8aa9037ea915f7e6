package endpoints

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/objectstore"
)

// encoded answers reads of a resource, and writes, from the bytes that its store
// keeps. It only ever answers what would succeed; anything else, errors in the request
// included, is left to upstream's handlers, so that there is one place that
// words them.
type encoded struct {
	resource *Resource
	registry *genericregistry.Store
	store    *objectstore.Store
	listKind string
	// unstructured is set where objects have no Go type. Their lists always say
	// where to continue, even if that is nowhere.
	unstructured bool
	formats      formats
}

// newEncoded finds the store behind a resource, or behind the main one of a
// subresource that is of the same kind. It returns nil for a storage that wraps the
// registry other than by embedding it.
func newEncoded(r *Resource, main rest.Storage) *encoded {
	if r.serving.decodeReads || r.kind.Kind != r.docKind {
		return nil
	}
	registry := registryOf(main)
	if registry == nil {
		return nil
	}
	store, ok := registry.Storage.Storage.(*objectstore.Store)
	if !ok {
		return nil
	}
	list := registry.NewListFunc()
	kinds, _, err := r.types.Typer.ObjectKinds(list)
	if err != nil || len(kinds) == 0 {
		return nil
	}
	_, unstructured := list.(runtime.Unstructured)
	e := &encoded{resource: r, registry: registry, store: store, listKind: kinds[0].Kind, unstructured: unstructured}
	e.formats = e.newFormats()
	return e
}

// answersWrites reports whether a write is answered with what is stored: not where the
// registry decorates objects or the version is another.
func (e *encoded) answersWrites() bool {
	return e.registry.Decorator == nil && e.registry.AfterCreate == nil && e.registry.AfterUpdate == nil &&
		e.store.StorageVersion() == e.resource.kind.GroupVersion()
}

// auditsResponses reports whether what the request is answered with goes into the
// audit log, as an object.
func auditsResponses(req *http.Request) bool {
	log := audit.AuditContextFrom(req.Context())
	return log != nil && !log.GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// groupResource is what errors name the resource by.
func (e *encoded) groupResource(req *http.Request) schema.GroupResource {
	if info, ok := request.RequestInfoFrom(req.Context()); ok {
		return schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	}
	return e.registry.DefaultQualifiedResource
}

func (e *encoded) fail(w http.ResponseWriter, req *http.Request, err error) {
	scope := e.resource.scope
	responsewriters.ErrorNegotiated(err, scope.Serializer, scope.Kind.GroupVersion(), w, req)
}
