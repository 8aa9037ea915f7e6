package handlers

import (
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"

	"byre/apiserver/handlers/write"
)

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
		deleter := r.storage.(rest.CollectionDeleter)
		return func(w http.ResponseWriter, req *http.Request) {
			handlers.DeleteCollection(deleter, true, r.scope, admit)(w, req)
		}
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
