package loopback

import (
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
	// started is closed when status and sent are set.
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
		return // informational; nobody here waits for it
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

// Flush implements http.Flusher: what is written can be read already.
func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier, which upstream's wrappers take as
// the mark of a real server's ResponseWriter. The end of the request's context
// is what tells a handler that the client has gone.
func (w *response) CloseNotify() <-chan bool { return nil }

// serve runs the handler and ends the body as the handler ended.
func (w *response) serve(handler http.Handler, r *http.Request) {
	defer func() {
		switch reason := recover(); reason {
		case nil:
			w.WriteHeader(http.StatusOK)
			w.finish(nil)
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

// result is the client's view; started must be closed.
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
