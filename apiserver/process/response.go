package process

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"

	"k8s.io/klog/v2"
)

// response is the http.ResponseWriter of one request.
type response struct {
	*stream

	once sync.Once
	// started is closed when status and sent, a copy of header, are set.
	started chan struct{}
	status  int
	sent    http.Header
	header  http.Header
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return // informational responses are dropped
	}
	w.once.Do(func() {
		w.status = status
		w.sent = w.header.Clone()
		close(w.started)
	})
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.stream.Write(p)
}

// Flush implements http.Flusher. The client can read written bytes without a flush.
func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier, because upstream's wrappers require it of a
// ResponseWriter. It returns nil: handlers learn from the end of the request's context
// that the client is gone.
func (w *response) CloseNotify() <-chan bool { return nil }

// serve calls the handler, then ends the body: with io.EOF if the handler returned, with the
// context's cause if the request was cancelled before it returned, or with an error if it
// panicked. A handler that returns because its context has ended therefore never makes an
// incomplete body look complete.
func (w *response) serve(handler http.Handler, r *http.Request) {
	defer func() {
		switch reason := recover(); reason {
		case nil:
			w.WriteHeader(http.StatusOK)
			w.finish(context.Cause(r.Context()))
		case http.ErrAbortHandler:
			w.fail(http.ErrAbortHandler)
		default:
			klog.ErrorS(nil, "Panic in an in-process request", "path", r.URL.Path, "reason", reason, "stack", string(debug.Stack()))
			w.fail(fmt.Errorf("loopback: handler panicked: %v", reason))
		}
	}()
	handler.ServeHTTP(w, r)
}

func (w *response) fail(err error) {
	w.WriteHeader(http.StatusInternalServerError)
	w.finish(err)
}

// result returns the response for the client. The caller waits for started first.
func (w *response) result(r *http.Request) *http.Response {
	length := int64(-1)
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	return &http.Response{
		Status:        strconv.Itoa(w.status) + " " + http.StatusText(w.status),
		StatusCode:    w.status,
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        w.sent,
		Body:          w.stream,
		ContentLength: length,
		Request:       r,
	}
}
