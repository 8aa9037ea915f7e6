package serving

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// unsecuredName is the user of requests over the insecure port, as in kube-apiserver
// while it had one.
const unsecuredName = "system:unsecured"

// NewInsecureAuthenticator authenticates every request as an administrator.
func NewInsecureAuthenticator() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		audiences, _ := authenticator.AudiencesFrom(r.Context())
		return &authenticator.Response{
			User:      &user.DefaultInfo{Name: unsecuredName, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
			Audiences: audiences,
		}, true, nil
	})
}

// WithLocalOrigin refuses requests that a browser sends for a page of another host. Such a
// page can have a name of its own resolve to this machine (DNS rebinding): then the Host
// header names it. Or it can send requests here without reading the answers, which is
// enough to do harm: then the Origin header names it.
func WithLocalOrigin(handler http.Handler) http.Handler {
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

// isLocal reports whether a host, with or without a port, can only be this machine.
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
