package handlers

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/component-base/tracing"
	"k8s.io/klog/v2"

	"byre/apiserver/handlers/write"
	"byre/apiserver/storage"
)

// list returns a handler that answers lists and watches from bytes, and passes requests
// that it cannot answer on to other.
func (e *encoded) list(other http.HandlerFunc, forceWatch bool) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		namespace, err := e.resource.scope.Namer.Namespace(req)
		if err != nil {
			other(w, req)
			return
		}
		options, ok := e.listOptions(req)
		switch {
		case !ok:
			other(w, req)
		case !options.Watch && !forceWatch:
			ctx, span := tracing.Start(request.WithNamespace(req.Context(), namespace), "List", write.TraceFields(req)...)
			defer span.End(slowRead)
			if f := e.negotiate(req, partialObjectMetadata+"List"); f != nil {
				e.serveList(ctx, w, req, options, f)
				return
			}
			other(w, req)
		default:
			f := e.negotiate(req, partialObjectMetadata)
			if f == nil || !e.streams(req, f) || !canStream(w, req) {
				other(w, req)
				return
			}
			e.serveWatch(request.WithNamespace(req.Context(), namespace), w, req, options, f)
		}
	}
}

// listOptions reads the options of a request. It returns false for invalid options and for those that only upstream's handler serves.
func (e *encoded) listOptions(req *http.Request) (*internalversion.ListOptions, bool) {
	options, err := write.DecodeListOptions(e.resource.scope, req)
	if err != nil || options.ShardSelector != "" {
		return nil, false
	}
	// A watch of one object names it either in the path, on the deprecated routes, or
	// in a field selector.
	if _, name, err := e.resource.scope.Namer.Name(req); err == nil {
		if options.FieldSelector == nil || options.FieldSelector.Empty() {
			options.FieldSelector = fields.OneTermEqualSelector("metadata.name", name)
		} else if selected, ok := options.FieldSelector.RequiresExactMatch("metadata.name"); !ok || selected != name {
			return options, false
		}
	}
	return options, true
}

// selection translates the options of a request to a key and the options of the store,
// as the registry does.
func (e *encoded) selection(ctx context.Context, options *internalversion.ListOptions) (string, apistorage.ListOptions) {
	label, field := labels.Everything(), fields.Everything()
	if options.LabelSelector != nil {
		label = options.LabelSelector
	}
	if options.FieldSelector != nil {
		field = options.FieldSelector
	}
	predicate := e.registry.PredicateFunc(label, field)
	selection := apistorage.ListOptions{
		ResourceVersion: options.ResourceVersion,
		Recursive:       true,
	}
	if request.NamespaceValue(ctx) == "" {
		if namespace, ok := predicate.MatchesSingleNamespace(); ok && len(validation.ValidateNamespaceName(namespace, false)) == 0 {
			ctx = request.WithNamespace(ctx, namespace)
		}
	}
	key := e.registry.KeyRootFunc(ctx)
	if name, ok := predicate.MatchesSingle(); ok {
		if single, err := e.registry.KeyFunc(ctx, name); err == nil {
			key, selection.Recursive = single, false
		}
	}
	selection.Predicate = predicate
	return key, selection
}

func (e *encoded) serveList(ctx context.Context, w http.ResponseWriter, req *http.Request, options *internalversion.ListOptions, f format) {
	key, selection := e.selection(ctx, options)
	selection.ResourceVersionMatch = options.ResourceVersionMatch
	selection.Predicate.Limit = options.Limit
	selection.Predicate.Continue = options.Continue
	list, err := e.store.ListEncoded(ctx, key, selection, f.objects())
	if err != nil {
		e.fail(w, req, storeerr.InterpretListError(err, e.groupResource(req)))
		return
	}
	request.TrackSerializeResponseObjectLatency(ctx, func() {
		e.writeList(ctx, newAnswerWriter(w, req, f.mediaType()), f, list)
	})
}

// writeList writes the list while it is read. If reading fails before anything was
// sent, the client gets the error. If it fails later, the connection is aborted,
// because nothing else tells the client that the list is incomplete.
func (e *encoded) writeList(ctx context.Context, out *answerWriter, f format, list *storage.EncodedList) {
	defer out.release()
	err := f.writeList(ctx, out, list)
	switch {
	case err == nil:
	case !out.started():
		out.buf = out.buf[:0]
		e.fail(out.w, out.req, storeerr.InterpretListError(err, e.groupResource(out.req)))
	default:
		klog.FromContext(ctx).Error(err, "List breaks off", "resource", e.resource.gv.WithResource(e.resource.resource))
		panic(http.ErrAbortHandler)
	}
}
