package endpoints

import (
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"

	"byre/apiserver/objectstore"
)

// writeHandler returns a handler of writes. It calls upstream to make a handler for
// each request. Where the client asks for the encoding that is stored, the response
// consists of the bytes that were stored (see objectstore.WriteResult).
func (r *Resource) writeHandler(upstream func(*handlers.RequestScope) http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if r.written == nil || r.serving.without.writeResult || r.written.negotiate(req, "") != r.written.formats.json {
			upstream(r.scope)(w, req)
			return
		}
		ctx, result := objectstore.WithWriteResult(req.Context())
		scope := *r.scope
		scope.Serializer = writtenSerializer{scope.Serializer, result}
		upstream(&scope)(w, req.WithContext(ctx))
	}
}

// writtenSerializer makes encoders that answer with the bytes that the request has
// stored.
type writtenSerializer struct {
	runtime.NegotiatedSerializer
	result *objectstore.WriteResult
}

func (s writtenSerializer) EncoderForVersion(encoder runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	return writtenEncoder{s.NegotiatedSerializer.EncoderForVersion(encoder, version), s.result}
}

// writtenEncoder encodes the object that the request has stored by copying its stored
// bytes.
type writtenEncoder struct {
	runtime.Encoder
	result *objectstore.WriteResult
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
