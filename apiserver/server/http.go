package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"

	"byre/apiserver/access/filters"
	"byre/apiserver/console"

	"byre/apiserver/process"

	"byre/apiserver/process/pki"
)

const (
	// closeTimeout bounds how long a shutdown waits for connections whose requests have
	// ended. Upstream waits 2 s with --shutdown-send-retry-after; a client on a slow
	// line may need longer to receive an answer that the server has sent.
	closeTimeout = 5 * time.Second
	// minWatchesPerSecond is the lowest rate at which draining ends watches, per
	// second; upstream's value.
	minWatchesPerSecond = 200
)

// httpServers serve the connections that the listeners accept.
type httpServers struct {
	generic *genericoptions.ServerRunOptions
	certs   *process.Certificates
	tls     *http.Server
	plain   *http.Server // nil without --insecure-port
	// requests counts the requests over a listener that are not long-running; watches
	// counts the watches.
	requests *waitgroup.SafeWaitGroup
	watches  *waitgroup.RateLimitedSafeWaitGroup
	// endRequests cancels the contexts of all requests that came over a listener.
	endRequests context.CancelFunc
	// closing counts the goroutines that wait for requests and connections. A shutdown waits for
	// them for a bounded time.
	closing sync.WaitGroup
}

// newHTTPServers makes the servers, whose requests pass the filters and then the chain. It lets the
// requests of transport pass them too.
func newHTTPServers(ctx context.Context, o Completed, n network, files pki.Files, transport *process.LoopbackTransport, a *access, signals *process.Signals, handler http.Handler) (*httpServers, error) {
	// Loopback requests pass the same filters, but a shutdown neither counts nor
	// refuses them: the controllers stop after the clients of the listeners.
	never := make(chan struct{})
	transport.Serve(filters.Chain(a.filterConfig(o, n.tracer, filters.Lifecycle{
		MuxAndDiscoveryComplete: signals.MuxAndDiscoveryComplete.Signaled(),
		NotAcceptingNewRequest:  never,
		NonLongRunningRequests:  new(waitgroup.SafeWaitGroup),
		WatchRequests:           new(waitgroup.SafeWaitGroup),
	}))(handler))

	h := &httpServers{generic: o.Generic, requests: new(waitgroup.SafeWaitGroup), watches: new(waitgroup.RateLimitedSafeWaitGroup)}
	tlsConfig, certs, err := newServingCertificates(o, files, a.auth.ClientCAs())
	if err != nil {
		return nil, err
	}
	h.certs = certs
	config := a.filterConfig(o, n.tracer, filters.Lifecycle{
		MuxAndDiscoveryComplete: signals.MuxAndDiscoveryComplete.Signaled(),
		NotAcceptingNewRequest:  signals.NotAcceptingNewRequest.Signaled(),
		NonLongRunningRequests:  h.requests,
		WatchRequests:           h.watches,
	})
	secure, err := h.withConsole(o, filters.Chain(config)(handler))
	if err != nil {
		return nil, err
	}
	if h.tls, err = process.NewHTTPServer(o.Serving, secure, tlsConfig); err != nil {
		return nil, err
	}
	if n.insecure != nil {
		// Requests to --insecure-port pass the same filters, but every one is an administrator's.
		config.Authenticator = process.NewInsecureAuthenticator()
		config.HTTP2 = false
		insecure, err := h.withConsole(o, filters.Chain(config)(handler))
		if err != nil {
			return nil, err
		}
		if h.plain, err = process.NewHTTPServer(process.ServingOptions{DisableHTTP2: true}, process.WithLocalOrigin(insecure), nil); err != nil {
			return nil, err
		}
	}
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	h.endRequests = endRequests
	for _, server := range h.servers() {
		server.BaseContext = func(net.Listener) context.Context { return requests }
	}
	return h, nil
}

// newServingCertificates makes the TLS configuration of the secure port, and what keeps its certificates
// current: those that flags name, or else those that the server issues itself.
func newServingCertificates(o Completed, files pki.Files, clientCAs dynamiccertificates.CAContentProvider) (*tls.Config, *process.Certificates, error) {
	config, err := process.NewTLSConfig(o.Serving)
	if err != nil {
		return nil, nil, err
	}
	certFile, keyFile := files.ServingCert, files.ServingKey
	if o.Serving.CertFile != "" {
		certFile, keyFile = o.Serving.CertFile, o.Serving.KeyFile
	}
	certs, err := process.NewCertificates(config, certFile, keyFile, clientCAs, o.Serving.SNICertKeys)
	return config, certs, err
}

// servers returns the servers that there are.
func (h *httpServers) servers() []*http.Server {
	if h.plain == nil {
		return []*http.Server{h.tls}
	}
	return []*http.Server{h.tls, h.plain}
}

// withConsole puts the console before a server's filters, if it is on.
func (h *httpServers) withConsole(o Completed, handler http.Handler) (http.Handler, error) {
	if !o.Console {
		return handler, nil
	}
	return console.New(console.Config{
		Server: handler,
		HasName: func(host string) bool {
			return strings.EqualFold(host, o.Generic.ExternalHost) || h.certs.HasName(host)
		},
		Now: time.Now, Timeout: o.Generic.RequestTimeout,
	})
}

// drainRequests waits until the requests that are not long-running have ended. While it
// waits, filters.Chain refuses new ones on connections that are still open.
func (h *httpServers) drainRequests() {
	drained := make(chan struct{})
	h.closing.Go(func() {
		defer close(drained)
		h.requests.Wait()
	})
	select {
	case <-drained:
	case <-time.After(h.generic.RequestTimeout + closeTimeout):
		klog.InfoS("Requests run for longer than their timeout; their connections will be closed")
	}
}

// drainWatches ends the watches, spread over the grace period so that their clients do
// not all reconnect to the other replicas at once. Without a grace period
// closeConnections ends them.
func (h *httpServers) drainWatches() {
	grace := h.generic.ShutdownWatchTerminationGracePeriod
	if grace <= 0 {
		return
	}
	before, after, err := h.watches.Wait(func(count int) (waitgroup.RateLimiter, context.Context, context.CancelFunc) {
		perSecond := max(float64(count)/grace.Seconds(), minWatchesPerSecond)
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		return rate.NewLimiter(rate.Limit(perSecond), 1), ctx, cancel
	})
	klog.V(1).InfoS("Watches have ended", "before", before, "after", after, "err", err)
}

// closeListeners closes the listeners and sends GOAWAY to HTTP/2 clients. It does not
// wait for the connections; closing counts the goroutines that do.
func (h *httpServers) closeListeners() {
	timeout := closeTimeout
	if !h.generic.ShutdownSendRetryAfter { // with it everything has been drained
		timeout += max(h.generic.RequestTimeout, h.generic.ShutdownWatchTerminationGracePeriod)
	}
	for _, server := range h.servers() {
		h.closing.Go(func() { closeServer(timeout, server) })
	}
}

// closeConnections ends the requests that are still served, such as watches without a
// grace period and streams to containers, and waits until the connections are closed.
func (h *httpServers) closeConnections() {
	h.endRequests()
	h.closing.Wait()
}

// closeServer waits until connections are idle, and after timeout closes those that are
// not.
func closeServer(timeout time.Duration, server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		klog.V(2).InfoS("Connections were closed before they were idle", "err", err)
		_ = server.Close() // what it can't close is closed with the process
	}
}

// closeListener closes a listener that no server serves; nil means that there is none.
func closeListener(listener net.Listener) error {
	if listener == nil {
		return nil
	}
	return listener.Close()
}
