package aggregator

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/x509metrics"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/streaming/pkg/httpstream"

	"byre/apiserver/process"
)

// component is the name of the aggregator in upstream's metrics.
const component = "aggregator"

// failure is what a client is told when its request is not sent to a backend.
type failure struct {
	message string
	code    int
}

// unavailable does not tell clients where a backend is or what is wrong with it: the log
// and the APIService's condition do.
var unavailable = &failure{"service unavailable", http.StatusServiceUnavailable}

// proxyRequest sends a request to the backend of a route in the name of its user, and
// the answer to the client.
func proxyRequest(w http.ResponseWriter, req *http.Request, r *route, m *aggregatorMetrics) {
	// Its status stays 0 where the client is not answered, or the connection is taken over.
	recorded := &endpointmetrics.ResponseWriterDelegator{ResponseWriter: w}
	defer func() { m.countRequest(r.name, recorded.Status()) }()
	w = responsewriter.WrapForHTTP1Or2(recorded)
	t, outgoing, done, failed := newBackendRequest(req, r)
	if failed != nil {
		http.Error(w, failed.message, failed.code)
		if info, ok := request.RequestInfoFrom(req.Context()); ok {
			endpointmetrics.RecordRequestTermination(req, info, component, failed.code)
		}
		return
	}
	defer done()
	utilflowcontrol.RequestDelegated(req.Context())
	if httpstream.IsUpgradeRequest(req) {
		proxyUpgrade(w, outgoing, t)
		return
	}
	t.proxy.ServeHTTP(w, outgoing)
}

// newBackendRequest makes the request to the backend. done must be called after it was
// answered.
func newBackendRequest(
	req *http.Request, r *route,
) (t *backendTransport, outgoing *http.Request, done context.CancelFunc, failed *failure) {
	if !r.available {
		return nil, nil, nil, unavailable
	}
	t, err := r.backend.transport()
	if err != nil {
		return nil, nil, nil, &failure{err.Error(), http.StatusInternalServerError}
	}
	if _, ok := request.UserFrom(req.Context()); !ok {
		return nil, nil, nil, &failure{errNoUser.Error(), http.StatusInternalServerError}
	}
	query := req.URL.RawQuery
	if query != "" {
		query = req.URL.Query().Encode() // without what cannot be parsed
	}
	location, err := r.backend.locate(req.URL.Path, query)
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Backend can't be found", "apiservice", r.name, "service", r.backend.key)
		return nil, nil, nil, unavailable
	}
	if info, ok := request.RequestInfoFrom(req.Context()); !ok || !info.IsResourceRequest ||
		httpstream.IsUpgradeRequest(req) {
		outgoing, done = apiserverproxy.NewRequestForProxy(location, req) // bounds the time of discovery requests
		return t, outgoing, done, nil
	}
	// This is NewRequestForProxy without copying the headers: the ReverseProxy does.
	outgoing = req.WithContext(req.Context())
	outgoing.URL, outgoing.Host = location, location.Host
	return t, outgoing, func() {}, nil
}

// proxyUpgrade forwards a request that takes over the connection. It sets the user's
// identity and handles errors itself: upgrades do not pass through the ReverseProxy.
func proxyUpgrade(w http.ResponseWriter, outgoing *http.Request, t *backendTransport) {
	if err := setIdentity(outgoing); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	handler := proxy.NewUpgradeAwareHandler(outgoing.URL, t.traced, true, true, errorResponder{w, t.proxy.ErrorHandler})
	// The scheme is http so that upstream's handler does not speak TLS: the dialer does,
	// and bounds the answer's header.
	handler.Location.Scheme = "http"
	handler.UpgradeTransport = proxy.NewUpgradeRequestRoundTripper(t.upgrader, proxy.MirrorRequest)
	handler.ServeHTTP(w, outgoing)
}

// errorResponder is a proxy.ErrorResponder. It does not write to the ResponseWriter that
// it is given, which may be hijacked.
type errorResponder struct {
	w     http.ResponseWriter
	write func(http.ResponseWriter, *http.Request, error)
}

func (r errorResponder) Error(_ http.ResponseWriter, req *http.Request, err error) {
	r.write(r.w, req, err)
}

// transportConfig is what the transports of all backends have in common.
type transportConfig struct {
	process.Backends
	// certificate returns the client certificate of this server and its key as PEM;
	// empty for none.
	certificate func() (cert, key []byte)
	metrics     *aggregatorMetrics
	buffers     *bufferPool
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
	config.Wrap(x509metrics.NewDeprecatedCertificateRoundTripperWrapperConstructor(c.metrics.missingSAN,
		c.metrics.insecureSHA1))
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
		Transport:     forwarder{next},
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
type forwarder struct{ next http.RoundTripper }

func (f forwarder) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := setIdentity(req); err != nil {
		return nil, err
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

const (
	// maxHeaderBytes bounds the header of an answer; as in net/http.
	maxHeaderBytes = 10 << 20
	// The rest is as in client-go.
	dialTimeout      = 30 * time.Second
	keepAlive        = 30 * time.Second
	handshakeTimeout = 10 * time.Second
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// upgradeDialer dials TLS connections that are closed when their context ends before the header of
// the first answer does, which has a bounded size. Upstream's proxy does neither. dial is nil
// for net.Dialer.
func upgradeDialer(config *tls.Config, dial dialer) dialer {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(conn, config)
		handshake, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := secure.HandshakeContext(handshake); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		upgraded := &upgradedConn{Conn: secure, left: maxHeaderBytes}
		upgraded.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
		return upgraded, nil
	}
}

// upgradedConn is a connection whose first answer has a header of bounded size.
type upgradedConn struct {
	net.Conn
	// left is how many more bytes the header may have; negative after its end.
	left int
	tail []byte      // the last bytes of the header so far
	stop func() bool // stops watching the context
}

var (
	errHeaderTooLong = fmt.Errorf("the backend's response headers exceed %d bytes", maxHeaderBytes)
	endOfHeader      = []byte("\r\n\r\n")
)

func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left < 0 || n == 0 {
		return n, err
	}
	seen := append(c.tail, p[:n]...)
	if bytes.Contains(seen, endOfHeader) {
		c.stop()
		c.left, c.tail = -1, nil
		return n, err
	}
	c.tail = bytes.Clone(seen[max(0, len(seen)-len(endOfHeader)+1):])
	if c.left -= n; c.left < 0 {
		return 0, errHeaderTooLong
	}
	return n, err
}

func (c *upgradedConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
