package handlers

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/storage/encoding"
)

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
