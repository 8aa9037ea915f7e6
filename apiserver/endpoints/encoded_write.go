package endpoints

import (
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"

	"byre/apiserver/storage"
)

// writeHandler returns a handler of writes, which upstream makes for each request. What
// it answers with was encoded to be stored; where that is what the client is to get, it
// is not encoded again.
func (r *Resource) writeHandler(upstream func(*handlers.RequestScope) http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if r.written == nil || !r.written.negotiated(req) {
			upstream(r.scope)(w, req)
			return
		}
		ctx, kept := storage.WithKept(req.Context())
		scope := *r.scope
		scope.Serializer = keptSerializer{scope.Serializer, kept}
		upstream(&scope)(w, req.WithContext(ctx))
	}
}

// keptSerializer makes encoders that know what the request has had kept.
type keptSerializer struct {
	runtime.NegotiatedSerializer
	kept *storage.Kept
}

func (s keptSerializer) EncoderForVersion(encoder runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	return keptEncoder{s.NegotiatedSerializer.EncoderForVersion(encoder, version), s.kept}
}

type keptEncoder struct {
	runtime.Encoder
	kept *storage.Kept
}

func (e keptEncoder) Encode(obj runtime.Object, w io.Writer) error {
	object, ok := e.kept.Of(obj)
	if !ok {
		return e.Encoder.Encode(obj, w)
	}
	buf := append(object.AppendJSON(takeBuffer(), true), '\n')
	defer giveBuffer(buf)
	_, err := w.Write(buf)
	return err
}
