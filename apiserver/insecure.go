package apiserver

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"byre/apiserver/filters"
)

// unsecuredName is who comes over the insecure port, as in kube-apiserver while
// it had one.
const unsecuredName = "system:unsecured"

// listenInsecure binds --insecure-port; nil where it is off.
func (o *ServingOptions) listenInsecure(ctx context.Context) (net.Listener, error) {
	if o.InsecurePort == 0 {
		return nil, nil
	}
	return bind(ctx, net.ListenConfig{KeepAlive: keepAlivePeriod}, o.InsecureBindAddress, o.InsecurePort, "--insecure-bind-address", "--insecure-port")
}

// buildInsecure makes the server of --insecure-port: the filters of every other
// request before the chain, but an administrator for everybody.
func (s *Server) buildInsecure(chain http.Handler, life filters.Lifecycle) error {
	if s.insecure == nil {
		return nil
	}
	config := s.filterConfig(life)
	config.Authenticator = unsecured()
	config.HTTP2 = false
	plain := ServingOptions{DisableHTTP2: true}
	var err error
	if s.plain, err = plain.httpServer(onlyLocal(filters.Chain(config)(chain)), nil); err != nil {
		return err
	}
	s.plain.BaseContext = s.http.BaseContext
	return nil
}

// serveInsecure answers until the server is shut down.
func (s *Server) serveInsecure(context.Context) error {
	klog.Warningf("Serving without TLS and without credentials on %s: whoever reaches this port is an administrator", s.insecure.Addr())
	return served(s.plain.Serve(s.insecure))
}

// unsecured takes everybody for an administrator.
func unsecured() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		audiences, _ := authenticator.AudiencesFrom(r.Context())
		return &authenticator.Response{
			User:      &user.DefaultInfo{Name: unsecuredName, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
			Audiences: audiences,
		}, true, nil
	})
}

// onlyLocal refuses what a browser sends for a page of somewhere else. Such a
// page can have a name of its own resolve to this machine (DNS rebinding), which
// the Host header tells; or send requests here without reading the answers, which
// for some is enough, and then the Origin header names it.
func onlyLocal(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.Host) {
			http.Error(w, "403: this port answers to localhost and loopback addresses only, not to the Host of this request", http.StatusForbidden)
			return
		}
		for _, origin := range r.Header.Values("Origin") {
			if from, err := url.Parse(origin); err != nil || !isLocal(from.Host) {
				http.Error(w, "403: this port does not answer pages of other hosts", http.StatusForbidden)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// isLocal says whether a host, with or without a port, can only be this machine.
func isLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
