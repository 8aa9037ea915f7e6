package aggregator

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/util/proxy"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
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
func newBackendRequest(req *http.Request, r *route) (t *backendTransport, outgoing *http.Request, done context.CancelFunc, failed *failure) {
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
	if info, ok := request.RequestInfoFrom(req.Context()); !ok || !info.IsResourceRequest || httpstream.IsUpgradeRequest(req) {
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
