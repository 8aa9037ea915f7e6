package loopback

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// ErrClosed is the error of every request after Close.
var ErrClosed = errors.New("loopback: the server is stopping")

// errNotServing is the error of a request before Serve.
var errNotServing = errors.New("loopback: the server is not ready for its own requests yet")

// Transport is an http.RoundTripper to a handler in this process. The zero
// value is ready for Serve.
type Transport struct {
	mu      sync.Mutex
	handler http.Handler
	// stop ends every request under way; nil until Serve.
	stop     context.CancelFunc
	stopping context.Context
	closed   bool
	// requests counts handlers that have not returned. Invariant: it grows
	// only under mu while closed is false, so that Wait sees all of them.
	requests sync.WaitGroup
}

// Serve sets the handler. It is called once.
func (t *Transport) Serve(handler http.Handler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handler = handler
	t.stopping, t.stop = context.WithCancel(context.Background())
}

// Close ends the requests under way and refuses others.
func (t *Transport) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.stop != nil {
		t.stop()
	}
}

// Wait returns when the handler of every request has returned.
func (t *Transport) Wait() { t.requests.Wait() }

// startRequest counts a request in and returns what it runs on.
func (t *Transport) startRequest() (http.Handler, context.Context, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, nil, ErrClosed
	case t.handler == nil:
		return nil, nil, errNotServing
	}
	t.requests.Add(1)
	return t.handler, t.stopping, nil
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	handler, stopping, err := t.startRequest()
	if err != nil {
		closeBody(r)
		return nil, err
	}
	// Not a child of the caller's context: only its end is handed on.
	ctx, cancel := context.WithCancelCause(context.Background())
	body := newStream(cancel)
	unlink := []func() bool{
		context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) }),
		context.AfterFunc(stopping, func() { cancel(ErrClosed) }),
		context.AfterFunc(ctx, func() { body.abort(context.Cause(ctx)) }),
	}
	w := &response{stream: body, header: make(http.Header), started: make(chan struct{})}
	go func() {
		defer t.requests.Done()
		defer closeBody(r)
		w.serve(handler, serverRequest(ctx, r))
		for _, f := range unlink {
			f()
		}
		// As with a real server, the request's context ends with its handler;
		// what is left of the body can still be read.
		cancel(nil)
	}()
	select {
	case <-w.started:
	case <-ctx.Done():
		select {
		case <-w.started: // and over already
		default:
			// The handler goes on until it notices; its writes go nowhere.
			return nil, context.Cause(ctx)
		}
	}
	return w.result(r), nil
}

// serverRequest is the client's request as a server's handler gets it.
func serverRequest(ctx context.Context, r *http.Request) *http.Request {
	in := r.Clone(context.WithValue(ctx, loopbackKey{}, true))
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
		// A request body of a client in this process is memory: closing can't fail.
		_ = r.Body.Close()
	}
}
