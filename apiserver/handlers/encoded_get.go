package handlers

import (
	"context"
	"net/http"
	"time"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/component-base/tracing"

	"byre/apiserver/handlers/write"
	"byre/apiserver/storage/encoding"
)

// slowRead is how long a read may take before its trace is logged; upstream's value.
const slowRead = 500 * time.Millisecond

// get returns a handler that answers from bytes, and passes requests that it cannot
// answer on to other.
func (e *encoded) get(other http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		options, ok := e.getOptions(req)
		f := e.negotiate(req, partialObjectMetadata)
		if !ok || f == nil {
			other(w, req)
			return
		}
		namespace, name, err := e.resource.scope.Namer.Name(req)
		if err != nil {
			other(w, req)
			return
		}
		ctx, span := tracing.Start(request.WithNamespace(req.Context(), namespace), "Get", write.TraceFields(req)...)
		defer span.End(slowRead)
		object, err := e.getEncoded(ctx, name, options, f)
		if err != nil {
			e.fail(w, req, storeerr.InterpretGetError(err, e.groupResource(req), name))
			return
		}
		request.TrackSerializeResponseObjectLatency(ctx, func() {
			out := newAnswerWriter(w, req, f.mediaType())
			defer out.release()
			out.buf = f.appendObject(out.buf, object)
			out.close()
		})
	}
}

// getOptions reads the options of a request. It returns false for options that only
// upstream's handler serves.
func (e *encoded) getOptions(req *http.Request) (metav1.GetOptions, bool) {
	options := metav1.GetOptions{}
	if req.URL.RawQuery == "" {
		return options, true
	}
	query := req.URL.Query()
	if query.Has("export") {
		return options, false
	}
	err := metainternalversionscheme.ParameterCodec.DecodeParameters(query, e.resource.scope.MetaGroupVersion, &options)
	return options, err == nil
}

func (e *encoded) getEncoded(ctx context.Context, name string, options metav1.GetOptions, f format) (encoding.Encoded, error) {
	key, err := e.registry.KeyFunc(ctx, name)
	if err != nil {
		return encoding.Encoded{}, err
	}
	return e.store.GetEncoded(ctx, key, apistorage.GetOptions{ResourceVersion: options.ResourceVersion}, f.objects())
}
