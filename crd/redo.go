package crd

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"byre/crd/instances"
)

// Requests for instances are executed again when the definition has changed meanwhile.
//
// A write takes effect only if the definition is, in the transaction of the write, the one by
// which this server has decoded, pruned and validated it (sqlstore.Write.Requires). Otherwise
// it fails. A request may also fail before, because of a schema that is not the current one
// any more: another replica may have changed it a moment ago. So when a write fails, the server
// waits until its view of the definitions has everything that is committed. If the definition
// has changed, the client gets no answer, and the server executes the request again. An attempt
// that is answered with a 4xx wrote nothing, or a part of a collection was deleted.

// So does a write that changes nothing, and a read of an instance that was written with another encoding, if the definition
// is not the stored one any more (storage.Config.IsReplaced). Otherwise a replica would show an instance without the
// fields that its own schema lacks.

// maxAttempts bounds how often a request is executed. The client gets the answer to the last
// attempt, which asks it to try again.
const maxAttempts = 5

// view is a definition with the handlers of one of its versions, as they were at the beginning
// of a request. The zero value serves nothing.
type view struct {
	definition *instances.Definition
	version    *instances.Version
}

// equals reports whether both views decode, validate and store alike.
func (v view) equals(other view) bool {
	return v.version == other.version &&
		(v.version == nil || instances.Generation(v.definition.CRD) == instances.Generation(other.definition.CRD))
}

// view returns the current view of the resource and version of a request.
func (s *Server) view(req *http.Request, info *request.RequestInfo) (v view, err error) {
	v.definition, v.version, err = s.resolver.version(req.Context(), info.Resource+"."+info.APIGroup, info.APIVersion)
	return v, err
}

// hasChanged reports whether the view of a request is older than what is committed. If the
// database does not tell, the answer stays what it is.
func (s *Server) hasChanged(v view, req *http.Request, info *request.RequestInfo) bool {
	if _, err := s.resolver.store.Sync(req.Context()); err != nil {
		return false
	}
	now, err := s.view(req, info)
	return err == nil && !v.equals(now)
}

// attempt is the answer to one execution of a request. It passes a failure on to the client only
// if the definition has not changed.
type attempt struct {
	http.ResponseWriter
	hasChanged func() bool
	// isRead is true for a get and a list. They fail because of a definition by 429 only.
	isRead bool
	// isApply is true for a server-side apply. Of a field that the schema lacks it answers 500,
	// and so does a write that was done and can't be converted for its answer: only an apply
	// may be done twice.
	isApply bool
	// warnings are those of this execution, under mu. The recorder of the request's context, which repeats none, gets them
	// with the answer.
	mu       sync.Mutex
	warnings [][2]string
	outer    context.Context
	// answered is true after WriteHeader, and withheld if the client did not get the answer.
	answered, withheld bool
}

// AddWarning implements warning.Recorder.
func (a *attempt) AddWarning(agent, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings = append(a.warnings, [2]string{agent, text})
}

// WriteHeader implements http.ResponseWriter.
func (a *attempt) WriteHeader(code int) {
	isFailure := code/100 == 4 || a.isApply && code == http.StatusInternalServerError
	if a.isRead {
		isFailure = code == http.StatusTooManyRequests
	}
	a.answered = true
	if a.withheld = isFailure && a.hasChanged(); !a.withheld {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, w := range a.warnings {
			warning.AddWarning(a.outer, w[0], w[1])
		}
		a.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (a *attempt) Write(p []byte) (int, error) {
	if !a.answered {
		a.WriteHeader(http.StatusOK)
	}
	if a.withheld {
		return len(p), nil
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *attempt) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// serveRepeatedly executes a request until its answer is certain. It returns false, and writes nothing,
// if no definition serves the request.
func (s *Server) serveRepeatedly(w http.ResponseWriter, req *http.Request, info *request.RequestInfo) bool {
	body := &repeatableBody{body: req.Body}
	before := w.Header().Clone()
	for n := 1; ; n++ {
		v, err := s.view(req, info)
		a := &attempt{
			ResponseWriter: w,
			outer:          req.Context(),
			hasChanged:     func() bool { return n < maxAttempts && s.hasChanged(v, req, info) },
			isRead:         info.Verb == "get" || info.Verb == "list",
			isApply:        strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch"),
		}
		req := req.WithContext(warning.WithWarningRecorder(req.Context(), a))
		req.Body = body.rewind()
		if served := s.serveView(a, req, info, v, err); !a.withheld {
			return served
		}
		// What is in the audit log and in the headers is not of the next attempt.
		if ac := audit.AuditContextFrom(req.Context()); ac != nil {
			ac.SetEventResponseStatus(nil)
		}
		clear(w.Header())
		maps.Copy(w.Header(), before)
	}
}

// repeatableBody is the body of a request that is read once for each attempt.
type repeatableBody struct {
	body io.Reader
	read bytes.Buffer
}

// rewind returns the body from its beginning. The HTTP server closes the request's own body.
func (r *repeatableBody) rewind() io.ReadCloser {
	return io.NopCloser(io.MultiReader(bytes.NewReader(r.read.Bytes()), io.TeeReader(r.body, &r.read)))
}
