package apiserver

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/component-base/tracing"

	"byre/apiserver/delegation"
	"byre/apiserver/options"
	"byre/apiserver/process/loopback"
	"byre/apiserver/process/pki"
	"byre/apiserver/process/routing"
)

// newServiceResolver makes the resolver that finds the Services of webhooks. It reads
// them from the store.
func (s *Server) newServiceResolver() (webhook.ServiceResolver, error) {
	self, err := s.self()
	if err != nil {
		return nil, err
	}
	return routing.NewResolver(s.clients.reader, s.config.Options.Cluster.RouteToEndpoints, self), nil
}

// newWebhookAuthentication makes what chooses the credentials with which the server
// authenticates itself to a webhook.
func (s *Server) newWebhookAuthentication() webhook.AuthenticationInfoResolverWrapper {
	self := loopback.SelfConfig(s.transport)
	tracer := s.tracer
	if tracer == nil {
		tracer = tracing.NewNoopTracerProvider()
	} else {
		self.Wrap(tracing.WrapperFor(tracer))
	}
	return webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, s.egress.selector, self, tracer)
}

// self is the URL at which this server reaches its own listener.
func (s *Server) self() (*url.URL, error) { return url.Parse(s.config.Options.LocalURL(s.port)) }

// backends says how aggregated API servers are reached. files are the certificates and
// keys that the server issues itself; flags may name others.
func (s *Server) backends(files pki.Files) (delegation.Backends, error) {
	self, err := s.self()
	if err != nil {
		return delegation.Backends{}, err
	}
	o := s.config.Options.Cluster
	b := delegation.Backends{
		ProxyCert:        files.FrontProxyCert,
		ProxyKey:         files.FrontProxyKey,
		Dial:             s.egress.cluster,
		RouteToEndpoints: o.RouteToEndpoints,
		Self:             self,
		RejectRedirects:  o.RejectRedirects,
	}
	if o.ProxyCertFile != "" {
		b.ProxyCert, b.ProxyKey = o.ProxyCertFile, o.ProxyKeyFile
	}
	if s.tracer != nil {
		b.Trace = tracing.WrapperFor(s.tracer)
	}
	return b, nil
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
	selector, err := options.ReadEgressSelector(file)
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
