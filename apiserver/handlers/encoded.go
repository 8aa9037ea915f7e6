package handlers

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

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
)

// encoded answers the reads and the writes of a resource with bytes of its store. It
// answers only requests that it can serve completely: it passes other reads on to
// upstream's handlers, also those with errors in their parameters, so that one place
// words the errors, and leaves the answer to other writes to the package write.
type encoded struct {
	resource *Resource
	registry *genericregistry.Store
	store    *storage.Store
	listKind string
	// unstructured is true where objects have no Go type. The metadata of their lists
	// always has the member continue, even if it is empty.
	unstructured bool
	formats      formats
}

// newEncoded finds the store of a resource, or that of the main resource for a
// subresource of the same kind. It returns nil for a storage that wraps its registry in
// another way than by embedding it.
func newEncoded(r *Resource, main rest.Storage) *encoded {
	if r.serving.decodeReads || r.kind.Kind != r.docKind {
		return nil
	}
	registry := registryOf(main)
	if registry == nil {
		return nil
	}
	store, ok := registry.Storage.Storage.(*storage.Store)
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

// answersWrites reports whether a write may be answered with the stored bytes. This is
// not so where the registry decorates objects, or where the storage version is another
// one.
func (e *encoded) answersWrites() bool {
	return e.registry.Decorator == nil && e.registry.AfterCreate == nil && e.registry.AfterUpdate == nil &&
		e.store.StorageVersion() == e.resource.kind.GroupVersion()
}

// auditsResponses reports whether the object of the response goes into the audit log.
func auditsResponses(req *http.Request) bool {
	log := audit.AuditContextFrom(req.Context())
	return log != nil && !log.GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// groupResource is the resource that errors name.
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

// answerStored answers a write with what was stored. It returns false for a request that asks for
// another form.
func (e *encoded) answerStored(w http.ResponseWriter, req *http.Request, status int, stored encoding.Encoded) bool {
	if e.negotiate(req, "") != e.formats.json {
		return false
	}
	request.TrackSerializeResponseObjectLatency(req.Context(), func() {
		out := newAnswerWriter(w, req, e.formats.json.mediaType())
		defer out.release()
		out.status = status
		out.buf = append(stored.AppendJSON(out.buf, true), '\n')
		out.close()
	})
	return true
}
