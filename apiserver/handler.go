package apiserver

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/authentication/request/union"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/access/filters"
	"byre/apiserver/console"
	"byre/apiserver/process/loopback"
	"byre/apiserver/process/pki"
	"byre/apiserver/process/serving"
)

// buildHTTP makes the HTTP servers, whose requests pass the filters and then the chain.
func (s *Server) buildHTTP(ctx context.Context, chain http.Handler, files pki.Files) error {
	o := s.config.Options.Serving
	// Loopback requests pass the same filters, but a shutdown neither counts nor
	// refuses them: the controllers stop after the clients of the listeners.
	never := make(chan struct{})
	s.transport.Serve(filters.Chain(s.filterConfig(filters.Lifecycle{
		MuxAndDiscoveryComplete: s.signals.MuxAndDiscoveryComplete.Signaled(),
		NotAcceptingNewRequest:  never,
		NonLongRunningRequests:  new(waitgroup.SafeWaitGroup),
		WatchRequests:           new(waitgroup.SafeWaitGroup),
	}))(chain))

	tlsConfig, err := serving.NewTLSConfig(o)
	if err != nil {
		return err
	}
	certFile, keyFile := files.ServingCert, files.ServingKey
	if o.CertFile != "" {
		certFile, keyFile = o.CertFile, o.KeyFile
	}
	if s.certs, err = serving.NewCertificates(tlsConfig, certFile, keyFile, s.auth.ClientCAs(), o.SNICertKeys); err != nil {
		return err
	}
	life := filters.Lifecycle{
		MuxAndDiscoveryComplete: s.signals.MuxAndDiscoveryComplete.Signaled(),
		NotAcceptingNewRequest:  s.signals.NotAcceptingNewRequest.Signaled(),
		NonLongRunningRequests:  s.requests,
		WatchRequests:           s.watches,
	}
	handler, err := s.withConsole(filters.Chain(s.filterConfig(life))(chain))
	if err != nil {
		return err
	}
	if s.http, err = serving.NewHTTPServer(o, handler, tlsConfig); err != nil {
		return err
	}
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	s.endRequests = endRequests
	s.http.BaseContext = func(net.Listener) context.Context { return requests }
	if s.insecure == nil {
		return nil
	}
	s.plain, err = s.newInsecureServer(chain, life)
	return err
}

// newInsecureServer makes the server of --insecure-port. Its requests pass the same
// filters as all others, but every request is an administrator's.
func (s *Server) newInsecureServer(chain http.Handler, life filters.Lifecycle) (*http.Server, error) {
	config := s.filterConfig(life)
	config.Authenticator = serving.NewInsecureAuthenticator()
	config.HTTP2 = false
	handler, err := s.withConsole(filters.Chain(config)(chain))
	if err != nil {
		return nil, err
	}
	plain, err := serving.NewHTTPServer(serving.Options{DisableHTTP2: true}, serving.WithLocalOrigin(handler), nil)
	if err != nil {
		return nil, err
	}
	plain.BaseContext = s.http.BaseContext
	return plain, nil
}

// withConsole puts the console before a server's filters, if it is on.
func (s *Server) withConsole(handler http.Handler) (http.Handler, error) {
	if !s.config.Options.Console {
		return handler, nil
	}
	external := s.config.Options.Serving.ExternalHostname
	return console.New(console.Config{
		Server:  handler,
		HasName: func(host string) bool { return strings.EqualFold(host, external) || s.certs.HasName(host) },
		Now:     time.Now,
	})
}

func (s *Server) filterConfig(l filters.Lifecycle) filters.Config {
	o := s.config.Options
	config := filters.Config{
		Options:       o.Filters,
		Serializer:    legacyscheme.Codecs,
		Authenticator: loopback.Authenticator(),
		APIAudiences:  s.auth.APIAudiences,
		RequestHeader: s.auth.RequestHeader,
		Authorizer:    s.auth.Authorizer,
		AuditBackend:  s.audit.Backend,
		AuditPolicy:   s.audit.Policy,
		FlowControl:   s.flow,
		FeatureGate:   utilfeature.DefaultFeatureGate,
		HTTP2:         !o.Serving.DisableHTTP2,
		Lifecycle:     l,
	}
	if s.tracer != nil {
		config.Tracer = s.tracer
	}
	if s.auth.Authenticator != nil {
		config.Authenticator = union.New(loopback.Authenticator(), s.auth.Authenticator)
	}
	return config
}
