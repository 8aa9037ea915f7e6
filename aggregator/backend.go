package aggregator

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/x509metrics"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"

	"byre/apiserver/routing"
)

// place is where APIServices are answered, and by whom: those that have it in
// common are one backend.
type place struct {
	namespace, name string
	port            int32
	insecure        bool
	caBundle        string
}

func placeOf(service *apiregistrationv1.APIService) place {
	at := service.Spec.Service
	p := place{
		namespace: at.Namespace,
		name:      at.Name,
		port:      443,
		insecure:  service.Spec.InsecureSkipTLSVerify,
		caBundle:  string(service.Spec.CABundle),
	}
	if at.Port != nil {
		p.port = *at.Port
	}
	return p
}

// String names the Service, for logs.
func (p place) String() string { return fmt.Sprintf("%s/%s:%d", p.namespace, p.name, p.port) }

// sameService says whether another place is of the same Service.
func (p place) sameService(other place) bool {
	return p.namespace == other.namespace && p.name == other.name && p.port == other.port
}

// certificate is what this server shows to backends, as PEM; empty for nothing.
type certificate func() (cert, key []byte)

// outbound is how this server connects to backends.
type outbound struct {
	identity certificate
	// dial makes connections; nil means directly.
	dial utilnet.DialFunc
	// trace, if not nil, adds spans to requests and their trace context.
	trace transport.WrapperFunc
}

// backend is another API server.
type backend struct {
	place
	resolver *routing.Resolver
	meters   *meters
	// current is replaced when this server has got another certificate.
	current atomic.Pointer[connector]

	// stop ends run; due has room for one.
	stop context.CancelFunc
	due  chan struct{}
	// asked is closed by askedOnce, when it was asked what it serves.
	asked     chan struct{}
	askedOnce func()

	mu sync.Mutex
	// known is what the backend says of its group versions; tag is of the document
	// that says so, "" for none.
	known     described
	tag       string
	documents documents
}

func newBackend(at place, r *routing.Resolver, m *meters) *backend {
	asked := make(chan struct{})
	return &backend{
		place:     at,
		resolver:  r,
		meters:    m,
		due:       make(chan struct{}, 1),
		asked:     asked,
		askedOnce: sync.OnceFunc(func() { close(asked) }),
	}
}

// connector is how to connect to a backend. It is one transport for all requests
// and does not change.
type connector struct {
	transport http.RoundTripper
	// base is transport without tracing, which hides what is below it.
	base http.RoundTripper
	// upgrader dials for requests that take the connection over.
	upgrader http.RoundTripper
	// err is why there is no transport.
	err error
}

// renew makes the backend connect with the certificate of now. What is under way
// goes on by the one before.
func (b *backend) renew(out outbound, service *apiregistrationv1.APIService) {
	cert, key := out.identity()
	var dial *transport.DialHolder
	if out.dial != nil {
		dial = &transport.DialHolder{Dial: out.dial}
	}
	config := remote.BuildTransportConfig(dial, cert, key, service)
	config.Wrap(x509metrics.NewDeprecatedCertificateRoundTripperWrapperConstructor(b.meters.missingSAN, b.meters.insecureSHA1))
	c := &connector{}
	if c.base, c.err = transport.New(config); c.err == nil {
		c.transport = c.base
		if out.trace != nil {
			c.transport = out.trace(c.base)
		}
		tlsConfig, err := utilnet.TLSClientConfig(c.base)
		c.err = err
		c.upgrader = &http.Transport{DialContext: upgradeDialer(tlsConfig, out.dial)}
	}
	if old := b.current.Swap(c); old != nil {
		old.close()
	}
}

// close gives up connections that are not in use.
func (c *connector) close() {
	if c.base != nil {
		utilnet.CloseIdleConnectionsFor(c.base)
	}
}

// location is where a path and query of the backend are now.
func (b *backend) location(path, query string) (*url.URL, error) {
	at, err := b.resolver.ResolveEndpoint(b.namespace, b.name, b.port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: at.Host, Path: path, RawQuery: query}, nil
}

// upgrade is the transport by which upstream's proxy dials for a request that
// takes the connection over. It is told that the scheme is http, so that the
// dialer here can see the answer's head in plain text.
func (c *connector) upgrade() proxy.UpgradeRequestRoundTripper {
	return proxy.NewUpgradeRequestRoundTripper(c.upgrader, proxy.MirrorRequest)
}
