package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// ErrLoopbackClosed is the error of a request after Close.
var ErrLoopbackClosed = errors.New("loopback: the server is stopping")

// errNotServing is the error of a request before Serve.
var errNotServing = errors.New("loopback: the server is not ready for its own requests yet")

// LoopbackTransport is an http.RoundTripper to a handler in this process. The zero value is ready
// to use; requests before Serve fail.
type LoopbackTransport struct {
	mu      sync.Mutex
	handler http.Handler
	// stop ends stopping, and so every request in flight; nil before Serve.
	stop     context.CancelFunc
	stopping context.Context
	closed   bool
	// requests counts the handlers that have not returned. Invariant: it is
	// incremented only while mu is held and closed is false, so that Wait after
	// Close waits for all of them.
	requests sync.WaitGroup
}

// Serve sets the handler. The caller calls it once.
func (t *LoopbackTransport) Serve(handler http.Handler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handler = handler
	t.stopping, t.stop = context.WithCancel(context.Background())
}

// Close ends the requests in flight. Later requests fail with ErrClosed.
func (t *LoopbackTransport) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.stop != nil {
		t.stop()
	}
}

// Wait returns when the handlers of all requests have returned.
func (t *LoopbackTransport) Wait() { t.requests.Wait() }

// startRequest counts a new request and returns the handler, and the context that ends at
// Close.
func (t *LoopbackTransport) startRequest() (http.Handler, context.Context, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, nil, ErrLoopbackClosed
	case t.handler == nil:
		return nil, nil, errNotServing
	}
	t.requests.Add(1)
	return t.handler, t.stopping, nil
}

// RoundTrip implements http.RoundTripper. The request is the server's own.
func (t *LoopbackTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.roundTrip(r, self)
}

// userTransport is a Transport whose requests are those of one user.
type userTransport struct {
	*LoopbackTransport
	who user.Info
}

// RoundTrip implements http.RoundTripper.
func (t userTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.roundTrip(r, t.who)
}

func (t *LoopbackTransport) roundTrip(r *http.Request, who user.Info) (*http.Response, error) {
	handler, stopping, err := t.startRequest()
	if err != nil {
		closeBody(r)
		return nil, err
	}
	// Not a child of the request's context: only its end is passed on, not its values.
	ctx, cancel := context.WithCancelCause(context.Background())
	body := newStream(cancel)
	unlink := []func() bool{
		context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) }),
		context.AfterFunc(stopping, func() { cancel(ErrLoopbackClosed) }),
		context.AfterFunc(ctx, func() { body.abort(context.Cause(ctx)) }),
	}
	w := &response{stream: body, header: make(http.Header), started: make(chan struct{})}
	go func() {
		defer t.requests.Done()
		defer closeBody(r)
		w.serve(handler, serverRequest(context.WithValue(ctx, userKey{}, who), r))
		for _, f := range unlink {
			f()
		}
		// As in net/http, the request's context ends with its handler. The client
		// can still read the rest of the body.
		cancel(nil)
	}()
	select {
	case <-w.started:
	case <-ctx.Done():
		select {
		case <-w.started: // the handler has already returned
		default:
			// The handler runs until it notices; its writes fail.
			return nil, context.Cause(ctx)
		}
	}
	return w.result(r), nil
}

// serverRequest converts the client's request to the form that a server's handler gets.
func serverRequest(ctx context.Context, r *http.Request) *http.Request {
	in := r.Clone(ctx)
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	in.RequestURI = r.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	in.Host = r.URL.Host
	if in.Body == nil {
		in.Body = http.NoBody
	}
	return in
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		// The bodies of clients in this process are in memory: Close cannot fail.
		_ = r.Body.Close()
	}
}

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
			klog.ErrorS(nil, "Panic in an in-process request", "path", r.URL.Path, "reason", reason, "stack",
				string(debug.Stack()))
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

// MaxBufferedBytes is the number of unread bytes of a response at which Write blocks.
const MaxBufferedBytes = 256 << 10

// errBodyClosed is the error of Write after the client has closed the body.
var errBodyClosed = errors.New("loopback: the client closed the response body")

// stream is a response body with one writer, the handler, and one reader, the client.
type stream struct {
	mu sync.Mutex
	// changed is signalled when buffered, writeErr or abortErr changes.
	changed  *sync.Cond
	buffered []byte
	// writeErr is set when the handler has ended: io.EOF or the error.
	writeErr error
	// abortErr is set when the client does not read any more.
	abortErr error
	cancel   context.CancelCauseFunc
}

func newStream(cancel context.CancelCauseFunc) *stream {
	s := &stream{cancel: cancel}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Write appends p to the buffer. It blocks while MaxBufferedBytes or more are unread.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.buffered) >= MaxBufferedBytes && s.abortErr == nil {
		s.changed.Wait()
	}
	if s.abortErr != nil {
		return 0, s.abortErr
	}
	s.buffered = append(s.buffered, p...)
	s.changed.Broadcast()
	return len(p), nil
}

// Read implements io.Reader for the client.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.buffered) == 0 && s.writeErr == nil && s.abortErr == nil {
		s.changed.Wait()
	}
	switch {
	case s.abortErr != nil:
		return 0, s.abortErr
	case len(s.buffered) == 0:
		return 0, s.writeErr
	}
	n := copy(p, s.buffered)
	s.buffered = s.buffered[n:]
	if len(s.buffered) == 0 {
		// Release the memory: a watch lives long and is idle most of the time.
		s.buffered = nil
	}
	s.changed.Broadcast()
	return n, nil
}

// Close implements io.Closer for the client. It ends the handler's context.
func (s *stream) Close() error {
	s.abort(errBodyClosed)
	s.cancel(errBodyClosed)
	return nil
}

// finish ends the body with err, or with io.EOF if err is nil.
func (s *stream) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	s.writeErr = err
	s.changed.Broadcast()
}

// abort makes Read and Write fail with err.
func (s *stream) abort(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abortErr == nil {
		s.abortErr = err
	}
	s.changed.Broadcast()
}

// LoopbackUserName is the user of the server's own requests, as in kube-apiserver.
const LoopbackUserName = user.APIServerUser

// self is the server itself. It is in system:masters, as in kube-apiserver: it creates the
// roles that authorize everybody else.
var self user.Info = &user.DefaultInfo{
	Name:   LoopbackUserName,
	UID:    LoopbackUserName,
	Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
}

// userKey is the key of the context value that names the user of a loopback request. A
// request from the network cannot have it.
type userKey struct{}

// LoopbackAuthenticator authenticates loopback requests and no others. It must be the first
// authenticator.
func LoopbackAuthenticator() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		who, ok := r.Context().Value(userKey{}).(user.Info)
		if !ok {
			return nil, false, nil
		}
		return &authenticator.Response{User: who}, true, nil
	})
}

// SelfConfig returns the configuration of a webhook client whose Service is this server's
// own: its requests go through t, whatever address the client resolves.
// kube-apiserver gives such clients its loopback credentials.
func SelfConfig(t *LoopbackTransport) *rest.Config {
	return &rest.Config{
		// Not the field Transport: the callers add TLS settings, which exclude it.
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return t },
		UserAgent:     "byre/loopback",
	}
}

// LoopbackAs returns a copy of a configuration that Config has made. The requests of its clients are
// those of the user who.
func LoopbackAs(config *rest.Config, t *LoopbackTransport, who user.Info) *rest.Config {
	config = rest.CopyConfig(config)
	config.Transport = userTransport{t, who}
	return config
}

// LoopbackConfig returns a client configuration over t, for the server itself. Responses are JSON, the
// encoding in which objects are stored: the server sends the stored bytes and only the client
// decodes.
func LoopbackConfig(t *LoopbackTransport) *rest.Config {
	return &rest.Config{
		Host:      "https://loopback",
		Transport: t,
		// No client-side rate limit: the server's own filters limit requests.
		QPS: -1,
		ContentConfig: rest.ContentConfig{
			ContentType: "application/json",
		},
		UserAgent:          "byre/loopback",
		DisableCompression: true,
	}
}

// StripManagedFields is an informer transform that removes the managed fields. No reader of
// an informer's cache in this process uses them, and they are often more than half of an
// object.
func StripManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
