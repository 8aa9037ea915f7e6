package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/access/admission"
	"byre/apiserver/access/auth"
	"byre/apiserver/access/filters"
	"byre/apiserver/controllers"
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
// requests of transport pass them too. wrap puts
// the features' handlers before the filters of a listener.
func newHTTPServers(
	ctx context.Context, o Completed, n network, files pki.Files, transport *process.LoopbackTransport, a *access,
	signals *process.Signals, handler http.Handler, wrap func(http.Handler) (http.Handler, error),
) (*httpServers, error) {
	// Loopback requests pass the same filters, but a shutdown neither counts nor
	// refuses them: the controllers stop after the clients of the listeners.
	never := make(chan struct{})
	transport.Serve(filters.Chain(a.filterConfig(o, n.tracer, filters.Lifecycle{
		MuxAndDiscoveryComplete: signals.MuxAndDiscoveryComplete.Signaled(),
		NotAcceptingNewRequest:  never,
		NonLongRunningRequests:  new(waitgroup.SafeWaitGroup),
		WatchRequests:           new(waitgroup.SafeWaitGroup),
	}))(handler))

	h := &httpServers{generic: o.Generic, requests: new(waitgroup.SafeWaitGroup),
		watches: new(waitgroup.RateLimitedSafeWaitGroup)}
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
	secure, err := wrap(filters.Chain(config)(handler))
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
		insecure, err := wrap(filters.Chain(config)(handler))
		if err != nil {
			return nil, err
		}
		if h.plain, err = process.NewHTTPServer(process.ServingOptions{DisableHTTP2: true}, process.WithLocalOrigin(insecure),
			nil); err != nil {
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
func newServingCertificates(
	o Completed, files pki.Files, clientCAs dynamiccertificates.CAContentProvider,
) (*tls.Config, *process.Certificates, error) {
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

// access decides which requests are served: authentication, authorization, audit, admission, and
// priority and fairness.
type access struct {
	auth      *auth.Auth
	audit     *admission.Audit
	admission *admission.Admission
	flow      *filters.FlowControl // nil without priority and fairness
}

// newFlowControl makes priority and fairness. An object of the expensive resources takes many seats to create.
func newFlowControl(
	o Completed, s *storageBackend, c clients, expensive []schema.GroupResource,
) *filters.FlowControl {
	if !o.Features.EnablePriorityAndFairness {
		return nil
	}
	return filters.NewFlowControl(o.Generic.MaxRequestsInFlight+o.Generic.MaxMutatingRequestsInFlight, c.informers,
		c.kube, s.getter.Stats, expensive)
}

// newAccess makes its parts but for priority and fairness. ctx ends the goroutines that their constructors start.
func newAccess(ctx context.Context, o Completed, n network, s *storageBackend, c clients) (*access, error) {
	authenticated, err := auth.New(ctx, auth.Config{
		Options:         o.Auth,
		ServerID:        n.id,
		Client:          c.kube,
		Reader:          c.reader,
		Informers:       c.informers,
		RBAC:            auth.NewRBAC(s.getter.Lookup, s.Feed),
		ExternalAddress: n.address,
		Dial:            n.egress.controlPlane,
		EgressSelector:  n.egress.selector,
	})
	if err != nil {
		return nil, err
	}
	audited, err := admission.NewAudit(o.Audit, n.egress.selector)
	if err != nil {
		return nil, err
	}
	plugins := o.Admission
	if s.fork != nil {
		plugins = withoutWebhooks(*plugins)
	}
	admitted, err := admission.New(ctx, admission.Config{
		Options:                           plugins,
		ServerID:                          n.id,
		Client:                            c.kube,
		Reader:                            c.reader,
		DynamicClient:                     c.dynamic,
		Informers:                         c.informers,
		Authorizer:                        authenticated.Authorizer,
		FeatureGate:                       utilfeature.DefaultFeatureGate,
		APIResourceConfigSource:           o.APIResources,
		EffectiveVersion:                  effectiveVersion(),
		ServiceResolver:                   c.resolver,
		AuthenticationInfoResolverWrapper: c.webhooks,
	})
	if err != nil {
		return nil, err
	}
	return &access{auth: authenticated, audit: audited, admission: admitted}, nil
}

// filterConfig configures the filters of requests of a lifecycle.
func (a *access) filterConfig(o Completed, tracer tracing.TracerProvider, l filters.Lifecycle) filters.Config {
	config := filters.Config{
		Options:       o.Generic,
		Serializer:    legacyscheme.Codecs,
		Authenticator: process.LoopbackAuthenticator(),
		APIAudiences:  a.auth.APIAudiences,
		RequestHeader: a.auth.RequestHeader,
		Authorizer:    a.auth.Authorizer,
		AuditBackend:  a.audit.Backend,
		AuditPolicy:   a.audit.Policy,
		FlowControl:   a.flow,
		FeatureGate:   utilfeature.DefaultFeatureGate,
		HTTP2:         !o.Serving.DisableHTTP2,
		Tracer:        tracer,
		Lifecycle:     l,
	}
	if a.auth.Authenticator != nil {
		config.Authenticator = union.New(process.LoopbackAuthenticator(), a.auth.Authenticator)
	}
	return config
}

// network is how the server is reached, and how it connects to others.
type network struct {
	// id names this server among the servers of a cluster.
	id       string
	listener net.Listener
	insecure net.Listener // nil without --insecure-port
	port     string       // the port that listener is bound to
	// address is the host and port at which clients find this server; self is the URL at
	// which it reaches its own listener.
	address string
	self    *url.URL
	egress  egress
	tracer  tracing.TracerProvider // nil without --tracing-config-file
}

// newNetwork binds the ports. A port in use is found at once, before the slow parts of a start, and
// early clients wait in the listener's queue instead of being refused.
// The caller closes what the network has, also after an error.
func newNetwork(ctx context.Context, o Completed) (n network, err error) {
	if n.egress, err = newEgress(o.Cluster.EgressSelectorFile); err != nil {
		return n, err
	}
	if n.listener, err = process.Listen(ctx, o.Serving); err != nil {
		return n, err
	}
	if n.insecure, err = process.ListenInsecure(ctx, o.Serving); err != nil {
		return n, err
	}
	if _, n.port, err = net.SplitHostPort(n.listener.Addr().String()); err != nil {
		return n, err
	}
	n.address = o.ExternalAddress(n.port)
	if n.self, err = url.Parse(o.LocalURL(n.port)); err != nil {
		return n, err
	}
	if n.id, err = newID(n.port); err != nil {
		return n, err
	}
	n.tracer, err = newTracer(o.TracingFile, n.id, n.egress.selector)
	return n, err
}

// newID makes the name of this server. Where servers have identity Leases, it derives from the
// host name and the port; otherwise it is random.
func newID(port string) (string, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) {
		return "byre-" + uuid.NewString(), nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("server identity: %w", err)
	}
	return controllers.ServerID(hostname, port)
}

// egress holds the dial functions of connections that the server makes. A nil dial
// function connects directly.
type egress struct {
	selector *egressselector.EgressSelector // nil without --egress-selector-config-file
	// controlPlane dials issuers, webhooks by URL and trace collectors; cluster dials
	// nodes, Pods and Services.
	controlPlane, cluster utilnet.DialFunc
}

// newEgress reads --egress-selector-config-file.
func newEgress(file string) (egress, error) {
	selector, err := ReadEgressSelector(file)
	if selector == nil || err != nil {
		return egress{}, err
	}
	e := egress{selector: selector}
	if e.controlPlane, err = selector.Lookup(egressselector.ControlPlane.AsNetworkContext()); err != nil {
		return egress{}, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if e.cluster, err = selector.Lookup(egressselector.Cluster.AsNetworkContext()); err != nil {
		return egress{}, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	return e, nil
}

// newProxyTransport makes the transport of the proxy subresources of Pods, Services and
// nodes. It does not verify certificates, because it connects to IP addresses; see
// kube-apiserver's CreateProxyTransport.
func newProxyTransport(dial utilnet.DialFunc) *http.Transport {
	return utilnet.SetTransportDefaults(&http.Transport{
		DialContext:     dial,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	})
}
