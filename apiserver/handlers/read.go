package handlers

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/component-base/tracing"
	"k8s.io/klog/v2"

	"byre/apiserver/handlers/write"
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
	f := e.negotiate(req, "")
	if f != e.formats.json && f != (indented{e.formats.json}) {
		return false
	}
	request.TrackSerializeResponseObjectLatency(req.Context(), func() {
		out := newAnswerWriter(w, req, f.mediaType())
		defer out.release()
		out.status = status
		out.buf = f.appendObject(out.buf, stored)
		out.close()
	})
	return true
}

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

func (e *encoded) getEncoded(
	ctx context.Context, name string, options metav1.GetOptions, f format,
) (encoding.Encoded, error) {
	key, err := e.registry.KeyFunc(ctx, name)
	if err != nil {
		return encoding.Encoded{}, err
	}
	return e.store.GetEncoded(ctx, key, apistorage.GetOptions{ResourceVersion: options.ResourceVersion}, f.objects())
}

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

// listOptions reads the options of a request. It returns false for invalid options and for those that only upstream's
// handler serves.
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
func (e *encoded) selection(
	ctx context.Context, options *internalversion.ListOptions,
) (string, apistorage.ListOptions) {
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
		if namespace, ok := predicate.MatchesSingleNamespace(); ok &&
			len(validation.ValidateNamespaceName(namespace, false)) == 0 {
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

func (e *encoded) serveList(
	ctx context.Context, w http.ResponseWriter, req *http.Request, options *internalversion.ListOptions, f format,
) {
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

const (
	// writeSize is how many bytes are collected before they are written.
	writeSize = 32 * 1024
	// gzipThreshold is the size in bytes above which a response is compressed for a
	// client that accepts gzip; upstream's value.
	gzipThreshold = 128 * 1024
	// maxPooledBuffer is the capacity in bytes of the largest buffer that is kept for the
	// next response.
	maxPooledBuffer = 256 * 1024
)

// answerWriter writes a response piece by piece. The caller appends to buf. flush sends
// what there is if it is large enough, and close sends the rest. Nothing is sent before, not even
// the status, so that the caller can still answer with an error.
type answerWriter struct {
	w         http.ResponseWriter
	req       *http.Request
	mediaType string
	status    int // of the response
	buf       []byte

	// indenter, if not nil, indents what the caller has appended, into indented.
	indenter *indenter
	indented []byte

	threshold int       // the bytes that must be there before the first byte is sent
	out       io.Writer // nil until then
	gzip      *compressor
	err       error
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// getBuffer returns an empty buffer. The caller returns it with putBuffer, and does
// not use it afterwards.
func getBuffer() []byte { return (*buffers.Get().(*[]byte))[:0] }

func putBuffer(buf []byte) {
	if cap(buf) <= maxPooledBuffer {
		buffers.Put(&buf)
	}
}

func newAnswerWriter(w http.ResponseWriter, req *http.Request, mediaType string) *answerWriter {
	j := &answerWriter{w: w, req: req, mediaType: mediaType, status: http.StatusOK, buf: getBuffer(), threshold: writeSize}
	if responsewriters.ContentEncodingSupported(req, features.APIResponseCompression) == "gzip" {
		// Whether to compress depends on the size of the response.
		j.threshold = gzipThreshold
	}
	return j
}

// indent makes the writer indent all that the caller appends.
func (j *answerWriter) indent() { j.indenter, j.indented = new(indenter), getBuffer() }

// started reports whether anything has been sent.
func (j *answerWriter) started() bool { return j.out != nil }

// flush sends what there is if it is large enough.
func (j *answerWriter) flush() {
	if text := j.pending(); len(text) >= writeSize && (j.started() || len(text) > j.threshold) {
		j.send(text)
	}
}

// close sends the rest. It returns no error, because it fails only if the client has
// gone.
func (j *answerWriter) close() {
	j.send(j.pending())
	if j.gzip != nil && j.err == nil {
		j.err = j.gzip.finish()
	}
}

// pending returns what has not been sent, in the form in which it is sent.
func (j *answerWriter) pending() []byte {
	if j.indenter == nil {
		return j.buf
	}
	j.indented = j.indenter.append(j.indented, j.buf)
	j.buf = j.buf[:0]
	return j.indented
}

func (j *answerWriter) send(text []byte) {
	if !j.started() {
		j.start(len(text))
	}
	if j.err == nil {
		_, j.err = j.out.Write(text)
	}
	j.buf, j.indented = j.buf[:0], j.indented[:0]
}

// start sends the header of a response whose first piece has size bytes.
func (j *answerWriter) start(size int) {
	header := j.w.Header()
	j.out = j.w
	if j.threshold == gzipThreshold && size > gzipThreshold {
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
		j.gzip = getCompressor(j.w)
		j.out = j.gzip
	}
	header.Set("Content-Type", j.mediaType)
	j.w.WriteHeader(j.status)
}

// release returns the writer's buffers. The caller calls it last, also after an error.
func (j *answerWriter) release() {
	buf := j.buf
	j.buf = nil
	putBuffer(buf)
	if j.indenter != nil {
		putBuffer(j.indented)
		j.indenter, j.indented = nil, nil
	}
	if j.gzip != nil {
		putCompressor(j.gzip)
		j.gzip = nil
	}
}

// gzipLevel is the second fastest level.
//
// What upstream does: it compresses answers with compress/gzip at level 1, which is three
// quarters of the processor time of a list that is in memory.
//
// What is done instead: another implementation of gzip compresses them, at its level 2.
//
// What it relies on: its output is gzip. TestEncodedRead_EqualsUpstreams reads it with
// compress/gzip.
//
// What it earns: half of upstream's processor time for lists of Pods, and fewer bytes
// (BenchmarkGzip).
const gzipLevel = 2

// compressor is a gzip.Writer with a buffer for its output. The gzip.Writer writes 240
// bytes at a time, and net/http sends a frame for each 4 kB (BenchmarkFirstList).
type compressor struct {
	*gzip.Writer
	out *bufio.Writer
}

var compressors = sync.Pool{New: func() any {
	out := bufio.NewWriterSize(io.Discard, writeSize)
	w, err := gzip.NewWriterLevel(out, gzipLevel)
	if err != nil {
		panic(err) // the level is a constant
	}
	return &compressor{w, out}
}}

// getCompressor returns a compressor that writes to w. The caller returns it with
// putCompressor.
func getCompressor(w io.Writer) *compressor {
	c := compressors.Get().(*compressor)
	c.reset(w)
	return c
}

func putCompressor(c *compressor) {
	c.reset(io.Discard)
	compressors.Put(c)
}

func (c *compressor) reset(w io.Writer) {
	c.out.Reset(w)
	c.Reset(c.out)
}

func (c *compressor) finish() error {
	if err := c.Close(); err != nil {
		return err
	}
	return c.out.Flush()
}
