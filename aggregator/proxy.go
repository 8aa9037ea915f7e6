package aggregator

import (
	"net/http"

	"k8s.io/apimachinery/pkg/util/proxy"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// component is what upstream's metrics call the part that a request ended in.
const component = "aggregator"

// failure is what a client is told of a backend that can't be asked.
type failure struct {
	message string
	code    int
}

// unavailable is all that is told of a backend: where it is and what is wrong
// with it is for the log and the APIService's condition.
var unavailable = &failure{"service unavailable", http.StatusServiceUnavailable}

// proxyTo sends a request on to the backend of a claim, in the name of its user.
func (s *Server) proxyTo(w http.ResponseWriter, req *http.Request, c *claim) {
	counted := &countedResponse{ResponseWriter: w}
	defer func() { s.meters.count(c.name, counted.code) }()
	w = responsewriter.WrapForHTTP1Or2(counted)
	handler, outgoing, done, failed := s.outgoing(w, req, c)
	if failed != nil {
		http.Error(w, failed.message, failed.code)
		if info, ok := request.RequestInfoFrom(req.Context()); ok {
			endpointmetrics.RecordRequestTermination(req, info, component, failed.code)
		}
		return
	}
	defer done()
	utilflowcontrol.RequestDelegated(req.Context())
	handler.ServeHTTP(w, outgoing)
}

// outgoing makes the request to the backend, and what carries it there. done
// must be called after it was answered.
func (s *Server) outgoing(w http.ResponseWriter, req *http.Request, c *claim) (handler http.Handler, outgoing *http.Request, done func(), failed *failure) {
	if !c.available {
		return nil, nil, nil, unavailable
	}
	connector := c.backend.current.Load()
	if connector.err != nil {
		return nil, nil, nil, &failure{connector.err.Error(), http.StatusInternalServerError}
	}
	user, ok := request.UserFrom(req.Context())
	if !ok {
		return nil, nil, nil, &failure{"missing user", http.StatusInternalServerError}
	}
	location, err := c.backend.location(req.URL.Path, req.URL.Query().Encode())
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Backend can't be found", "apiservice", c.name, "service", c.backend.place)
		return nil, nil, nil, unavailable
	}
	outgoing, done = apiserverproxy.NewRequestForProxy(location, req)
	uid := ""
	if utilfeature.DefaultFeatureGate.Enabled(features.RemoteRequestHeaderUID) {
		uid = user.GetUID()
	}
	upgrade := httpstream.IsUpgradeRequest(req)
	carrier := transport.NewAuthProxyRoundTripper(user.GetName(), uid, user.GetGroups(), user.GetExtra(), connector.transport)
	passing := proxy.NewUpgradeAwareHandler(location, carrier, true, upgrade, responder{w})
	passing.RejectForwardingRedirects = s.rejectRedirects
	if upgrade {
		// Upgrades go past the transport, and with it past its headers.
		transport.SetAuthProxyHeaders(outgoing, user.GetName(), uid, user.GetGroups(), user.GetExtra())
		passing.Location.Scheme = "http"
		passing.UpgradeTransport = connector.upgrade()
	}
	return passing, outgoing, done, nil
}

// responder tells the client what went wrong on the way.
type responder struct{ w http.ResponseWriter }

func (r responder) Error(_ http.ResponseWriter, req *http.Request, err error) {
	klog.FromContext(req.Context()).V(2).Info("Request could not be proxied", "path", req.URL.Path, "err", err)
	http.Error(r.w, err.Error(), http.StatusServiceUnavailable)
}

// countedResponse remembers the status of an answer. It stays 0 where the client
// was not answered, or the connection was taken over.
type countedResponse struct {
	http.ResponseWriter
	code int
}

// Unwrap is for responsewriter, which hands the wrapped one's other abilities on.
func (r *countedResponse) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *countedResponse) WriteHeader(code int) {
	if r.code == 0 && code >= http.StatusOK {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *countedResponse) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}
