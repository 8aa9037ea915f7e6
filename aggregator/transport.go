package aggregator

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/x509metrics"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"

	"byre/apiserver/process"
)

// transportConfig is what the transports of all backends have in common.
type transportConfig struct {
	process.Backends
	// certificate returns the client certificate of this server and its key as PEM;
	// empty for none.
	certificate func() (cert, key []byte)
	// proxy returns the proxy of a request; nil for what the environment says.
	proxy   func(*http.Request) (*url.URL, error)
	metrics *aggregatorMetrics
	buffers *bufferPool
}

// backendTransport connects to one backend with one client certificate. It is immutable.
type backendTransport struct {
	// base makes the requests, traced does so with tracing.
	base, traced http.RoundTripper
	// upgrader dials for requests that take over the connection.
	upgrader http.RoundTripper
	// proxy forwards all other requests.
	proxy *httputil.ReverseProxy
}

// dialHolder is Dial as client-go takes it.
func (c *transportConfig) dialHolder() *transport.DialHolder {
	if c.Dial == nil {
		return nil
	}
	return &transport.DialHolder{Dial: c.Dial}
}

// newBackendTransport makes a transport with the current client certificate for the
// Service and CA bundle of an APIService.
func (c *transportConfig) newBackendTransport(service *apiregistrationv1.APIService) (*backendTransport, error) {
	cert, key := c.certificate()
	config := remote.BuildTransportConfig(c.dialHolder(), cert, key, service)
	config.Proxy = c.proxy
	config.Wrap(x509metrics.NewDeprecatedCertificateRoundTripperWrapperConstructor(c.metrics.missingSAN, c.metrics.insecureSHA1))
	base, err := transport.New(config)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := utilnet.TLSClientConfig(base)
	if err != nil {
		return nil, err
	}
	t := &backendTransport{
		base:     base,
		traced:   base,
		upgrader: &http.Transport{DialContext: upgradeDialer(tlsConfig, c.Dial)},
	}
	if c.Trace != nil {
		t.traced = c.Trace(base)
	}
	t.proxy = c.newReverseProxy(t.traced)
	return t, nil
}

// closeIdle closes the connections that no request uses.
func (t *backendTransport) closeIdle() { utilnet.CloseIdleConnectionsFor(t.base) }

// flushInterval is how long the proxy buffers a body of known length; upstream's value
// (defaultFlushInterval). It flushes every write of any other body at once.
const flushInterval = 200 * time.Millisecond

// newReverseProxy makes the proxy of all requests that do not take over the connection.
//
// Upstream makes a proxy.UpgradeAwareHandler and in it a httputil.ReverseProxy for every
// request, which copies the headers four times and allocates 32 KiB for the body. This is
// one ReverseProxy for all requests to a backend, which clients and backends cannot tell
// from upstream's: it sets the same headers, and changes answers by the same
// proxy.Transport. BenchmarkProxy measures what it costs.
func (c *transportConfig) newReverseProxy(next http.RoundTripper) *httputil.ReverseProxy {
	p := &httputil.ReverseProxy{
		// The request has the backend's URL already. With Rewrite in place of Director the
		// ReverseProxy would drop the client's Forwarded and X-Forwarded-For headers,
		// which kube-apiserver forwards.
		Director:      func(*http.Request) {},
		Transport:     forwarder{next: next},
		FlushInterval: flushInterval,
		BufferPool:    c.buffers,
		ErrorLog:      log.New(proxyLog{}, "", log.LstdFlags),
		ErrorHandler:  writeProxyError,
	}
	if c.RejectRedirects {
		p.ModifyResponse = rejectRedirect
	}
	return p
}

// forwarder sets the audit ID and the user's identity in a request to a backend, and
// removes the CORS headers from the answer. It changes the requests that it is given: they
// are the ReverseProxy's own copies.
//
// Invariant: the identity headers that a backend gets are those that this server has set.
// forwarder sets them after the ReverseProxy has removed the headers that the client's
// Connection header names. Otherwise a client could have its identity removed.
type forwarder struct {
	next http.RoundTripper
	// keeps has it return answers and errors as they are: those of a server of this cluster.
	keeps bool
}

func (f forwarder) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := setIdentity(req); err != nil {
		return nil, err
	}
	if f.keeps {
		return f.next.RoundTrip(req)
	}
	rewriting := proxy.Transport{Scheme: req.URL.Scheme, Host: req.URL.Host, RoundTripper: f.next}
	response, err := rewriting.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	for _, name := range corsHeaders {
		response.Header.Del(name)
	}
	return response, nil
}

var errNoUser = errors.New("missing user")

// corsHeaders are the headers that upstream's proxy removes from answers (removeCORSHeaders
// of k8s.io/apimachinery/pkg/util/proxy): the CORS configuration of this server applies, not
// the backend's.
var corsHeaders = []string{
	"Access-Control-Allow-Credentials",
	"Access-Control-Allow-Headers",
	"Access-Control-Allow-Methods",
	"Access-Control-Allow-Origin",
}

// setIdentity replaces the audit ID of a request, and what it says of its user.
func setIdentity(req *http.Request) error {
	u, ok := request.UserFrom(req.Context())
	if !ok {
		return errNoUser
	}
	if id, ok := audit.AuditIDFrom(req.Context()); ok {
		req.Header.Set(auditinternal.HeaderAuditID, string(id))
	}
	uid := ""
	if utilfeature.DefaultFeatureGate.Enabled(features.RemoteRequestHeaderUID) {
		uid = u.GetUID()
	}
	transport.SetAuthProxyHeaders(req, u.GetName(), uid, u.GetGroups(), u.GetExtra())
	return nil
}

// rejectRedirect replaces a redirect by 502, as upstream's UpgradeAwareHandler does.
func rejectRedirect(response *http.Response) error {
	if code := response.StatusCode; code < 300 || code > 399 || response.Header.Get("Location") == "" {
		return nil
	}
	_ = response.Body.Close() // the answer is not used
	const message = "the backend attempted to redirect this request, which is not permitted"
	*response = http.Response{
		StatusCode:    http.StatusBadGateway,
		Status:        fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode)),
		Body:          io.NopCloser(strings.NewReader(message)),
		ContentLength: int64(len(message)),
	}
	return nil
}

// writeProxyError tells a client why its request could not be forwarded.
func writeProxyError(w http.ResponseWriter, req *http.Request, err error) {
	klog.FromContext(req.Context()).V(2).Info("Request could not be proxied", "path", req.URL.Path, "err", err)
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

// proxyLog is where ReverseProxy logs. As noSuppressPanicError of
// k8s.io/apimachinery/pkg/util/proxy does, it drops the message about a suppressed panic,
// which looks fatal and only says that a body broke off.
type proxyLog struct{}

func (proxyLog) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "suppressing panic") {
		return len(p), nil
	}
	return os.Stderr.Write(p)
}

// copyBufferSize is the size of the buffers that bodies are copied with, in bytes; that
// of ReverseProxy.
const copyBufferSize = 32 << 10

// bufferPool implements httputil.BufferPool. The zero value is ready for use.
type bufferPool struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *bufferPool) Get() []byte {
	if buffer, ok := b.pool.Get().(*[copyBufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, copyBufferSize)
}

// Put implements httputil.BufferPool.
func (b *bufferPool) Put(buffer []byte) { b.pool.Put((*[copyBufferSize]byte)(buffer)) }
