package handlers

import (
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"

	"byre/apiserver/storage"
)

// writeHandler returns a handler of writes. It calls upstream to make a handler for
// each request. Where the client asks for the encoding that is stored, the response
// consists of the bytes that were stored (see storage.WriteResult).
func (r *Resource) writeHandler(upstream func(*handlers.RequestScope) http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		req = req.WithContext(storage.WithWriter(req.Context(), writerOf(req)))
		if r.written == nil || r.serving.without.writeResult || r.written.negotiate(req, "") != r.written.formats.json {
			upstream(r.scope)(w, req)
			return
		}
		ctx, result := storage.WithWriteResult(req.Context())
		scope := *r.scope
		scope.Serializer = writtenSerializer{scope.Serializer, result}
		upstream(&scope)(w, req.WithContext(ctx))
	}
}

// writerOf returns what the store records of a create, an update or a patch. The field manager
// is that of the managed fields, as upstream's handlers.managerOrUserAgent finds it.
func writerOf(req *http.Request) storage.Writer {
	var w storage.Writer
	if strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch") {
		w.Verb = "apply" // for routing, an apply is a patch
	}
	if req.URL.RawQuery != "" {
		w.Manager = req.URL.Query().Get("fieldManager")
	}
	if w.Manager == "" {
		w.Manager = managerOfAgent(req.UserAgent())
	}
	return w
}

// writtenSerializer makes encoders that answer with the bytes that the request has
// stored.
type writtenSerializer struct {
	runtime.NegotiatedSerializer
	result *storage.WriteResult
}

func (s writtenSerializer) EncoderForVersion(encoder runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	return writtenEncoder{s.NegotiatedSerializer.EncoderForVersion(encoder, version), s.result}
}

// writtenEncoder encodes the object that the request has stored by copying its stored
// bytes.
type writtenEncoder struct {
	runtime.Encoder
	result *storage.WriteResult
}

func (e writtenEncoder) Encode(obj runtime.Object, w io.Writer) error {
	object, ok := e.result.Of(obj)
	if !ok {
		return e.Encoder.Encode(obj, w)
	}
	buf := append(object.AppendJSON(getBuffer(), true), '\n')
	defer putBuffer(buf)
	_, err := w.Write(buf)
	return err
}
