package process

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
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
