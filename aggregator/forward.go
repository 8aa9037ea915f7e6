package aggregator

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/streaming/pkg/httpstream"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/write"
	"byre/apiserver/process"
	"byre/apiserver/storage"
)

// writers forwards requests to the servers that write, in the name of their users, as to an aggregated API
// server: to the one that has renewed its identity Lease last, or to the next one if that can't be connected to.
//
// Invariant: a request is sent once. Another server is tried only before a connection is made; a request that
// breaks off afterwards has an unknown outcome, and its answer has no Retry-After. net/http repeats one of which
// HTTP/2 tells that no server has processed it, as with GOAWAY.
type writers struct {
	client
	config    process.Writers
	kube      kubernetes.Interface
	transport *transportConfig
	codecs    serializer.CodecFactory // of errors
	// logged bounds the log while no server that writes answers, and chosen how often another one is chosen.
	logged, chosen rate.Sometimes
}

// writersService is the Service whose name is in the certificates of all servers.
var writersService = apiregistrationv1.ServiceReference{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// forwardedHeader marks a request that a server has forwarded; upstream's peerproxy.PeerProxiedHeader. A
// server that only reads does not forward such a request again: the Lease of a server that wrote
// before may be left.
const forwardedHeader = "X-Kubernetes-Peer-Proxied"

// errNoWriter means that a request was not sent.
var errNoWriter = errors.New("this server only reads, and no server that writes can be reached")

// newWriters makes writers, whose transport is shared but for the connections.
func newWriters(d process.Dependencies, shared *transportConfig) *writers {
	w := &writers{config: *d.Writers, kube: d.Client, logged: rate.Sometimes{Interval: logInterval}, chosen: rate.Sometimes{Interval: time.Second}}
	w.codecs = handlers.NewCodecs(handlers.NewScheme(install.Install))
	own := *shared
	own.Dial, own.RejectRedirects = w.dial, false
	own.proxy = func(*http.Request) (*url.URL, error) { return nil, nil } // dial finds the server, whatever the URL is
	w.transport = &own
	w.Enqueue()
	return w
}

// Enqueue implements dynamiccertificates.Listener: the client certificate of this server has changed.
func (w *writers) Enqueue() {
	ca, err := os.ReadFile(w.config.CA)
	var t *backendTransport
	if err == nil {
		t, err = w.transport.newBackendTransport(&apiregistrationv1.APIService{
			Spec: apiregistrationv1.APIServiceSpec{Service: &writersService, CABundle: ca},
		})
	}
	if err == nil {
		t.proxy.Transport = forwarder{next: t.traced, keeps: true}
		t.proxy.ErrorHandler, t.proxy.ModifyResponse = w.writeError, w.receive
		noticeSilence(t.base)
	} else {
		klog.ErrorS(err, "The servers that write can't be connected to")
		err = fmt.Errorf("%w: %w", errNoWriter, err)
	}
	w.closeIdle(w.connected.Swap(&connected{t, err}))
}

// noticeSilence has a transport leave a server that was stopped or has lost power after three times writerTimeout: all
// requests share one connection. client-go takes 45 seconds. A server that is busy may answer pings late.
func noticeSilence(base http.RoundTripper) {
	switch base := base.(type) {
	case *http.Transport:
		base.HTTP2 = &http.HTTP2Config{SendPingTimeout: writerTimeout, PingTimeout: 2 * writerTimeout}
		base.TLSHandshakeTimeout = writerTimeout
	case utilnet.RoundTripperWrapper:
		noticeSilence(base.WrappedRoundTripper())
	}
}

// takes reports whether a request may change what is stored. Other paths than those of the API, and of byre's
// own requests, are about the server that is asked, such as /debug/flags/v.
func (*writers) takes(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	root, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	return root == "api" || root == "apis" || root == "byre"
}

// forward sends a request to a server that writes, and the answer to the client.
func (w *writers) forward(rw http.ResponseWriter, req *http.Request) {
	t, err := w.client.transport()
	if err != nil {
		w.chosen.Do(w.Enqueue) // the file of the CA may be whole by now
	}
	if req.Header.Get(forwardedHeader) != "" {
		err = errNoWriter
	}
	who, ok := request.UserFrom(req.Context())
	if err == nil && !ok {
		err = errNoUser
	}
	if err != nil {
		w.writeError(rw, req, err)
		return
	}
	ctx := req.Context()
	if name := write.RealUser(ctx); name != "" {
		extra := maps.Clone(who.GetExtra())
		if extra == nil {
			extra = map[string][]string{}
		}
		extra[storage.RealUserExtra] = []string{name}
		ctx = request.WithUser(ctx, &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: extra})
	}
	outgoing := req.Clone(ctx)
	outgoing.Host = writersService.Name + "." + writersService.Namespace + ".svc"
	outgoing.URL = &url.URL{Scheme: "https", Host: outgoing.Host, Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}
	outgoing.Header.Set(forwardedHeader, "true")
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		outgoing.Header.Del(name) // with it net/http sends a request again that may have taken effect
	}
	utilflowcontrol.RequestDelegated(ctx)
	if httpstream.IsUpgradeRequest(req) {
		proxyUpgrade(rw, outgoing, t)
		return
	}
	if req.ContentLength > 0 && req.ContentLength <= maxRepeatedBody {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			responsewriters.ErrorNegotiated(apierrors.NewBadRequest("the body could not be read: "+err.Error()), w.codecs, schema.GroupVersion{Version: "v1"}, rw, req)
			return
		}
		outgoing.Body = io.NopCloser(bytes.NewReader(body))
		outgoing.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	t.proxy.ServeHTTP(rw, outgoing)
}

// maxRepeatedBody is the size in bytes of the largest body that is held, so that net/http can send it again; the largest
// that upstream's servers take.
const maxRepeatedBody = 3 << 20

// logInterval is the shortest time between two lines of the log about requests that could not be forwarded.
const logInterval = 10 * time.Second

// writeError tells a client why its request could not be forwarded.
func (w *writers) writeError(rw http.ResponseWriter, req *http.Request, err error) {
	// These are before a request is sent. The error of an upgrade has lost what it wraps; net/http does not export its own.
	text := err.Error()
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		w.chosen.Do(w.Enqueue) // the CA may have been replaced
		err = fmt.Errorf("%w: %w", errNoWriter, err)
	} else if text == "net/http: TLS handshake timeout" || strings.HasPrefix(text, "error dialing backend: ") {
		err = fmt.Errorf("%w: %w", errNoWriter, err)
	}
	status := apierrors.NewTimeoutError("the server that writes broke off: the request took effect once or not at all", 0)
	if errors.Is(err, errNoWriter) {
		status = apierrors.NewServiceUnavailable(errNoWriter.Error())
		status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	}
	if req.Context().Err() == nil {
		w.logged.Do(func() {
			klog.ErrorS(err, "A request could not be forwarded to a server that writes", "method", req.Method, "path", req.URL.Path)
		})
	}
	responsewriters.ErrorNegotiated(status, w.codecs, schema.GroupVersion{Version: "v1"}, rw, req)
}

// receive prepares an answer for the client. A server that refuses requests for now, as one that has lost the
// database does, is left: the next request goes to the one that has renewed its Lease last by then.
func (w *writers) receive(response *http.Response) error {
	if response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "" {
		w.chosen.Do(w.Enqueue)
	}
	return dropOwnHeaders(response)
}

// dropOwnHeaders removes from an answer the headers that this server has set already.
func dropOwnHeaders(response *http.Response) error {
	for _, name := range append(slices.Clone(corsHeaders),
		auditinternal.HeaderAuditID, "Cache-Control", "Strict-Transport-Security", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
	) {
		response.Header.Del(name)
	}
	return nil
}

const (
	// writerTimeout bounds the dialing of one server, and its part of the handshake;
	// listTimeout bounds the reading of the Leases.
	writerTimeout = 3 * time.Second
	listTimeout   = 5 * time.Second
)

// dial connects to a server that writes, whatever the address is.
func (w *writers) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	// The context has values of the request that needs the connection.
	listing, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	leases, err := w.kube.CoordinationV1().Leases(metav1.NamespaceSystem).List(listing, metav1.ListOptions{
		LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver", ResourceVersion: "0",
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoWriter, err)
	}
	addresses := addressesOf(leases.Items, w.config.Self)
	errs := []error{fmt.Errorf("%d of %d identity Leases have the address of another server", len(addresses), len(leases.Items))}
	for _, address := range addresses {
		dialer := &net.Dialer{Timeout: writerTimeout, KeepAlive: keepAlive}
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w: %w", errNoWriter, errors.Join(errs...))
}

// addressesOf returns where the servers with the identity Leases are reached, without self, and the one first
// that has renewed its Lease last: a server that was killed leaves its Lease.
func addressesOf(leases []coordinationv1.Lease, self string) (addresses []string) {
	renewed := func(l *coordinationv1.Lease) time.Time {
		if l.Spec.RenewTime == nil {
			return time.Time{}
		}
		return l.Spec.RenewTime.Time
	}
	slices.SortFunc(leases, func(a, b coordinationv1.Lease) int { return renewed(&b).Compare(renewed(&a)) })
	for _, lease := range leases {
		if address := lease.Annotations[corev1.AnnotationPeerAdvertiseAddress]; address != "" && lease.Name != self {
			addresses = append(addresses, address)
		}
	}
	return addresses
}
