package serving

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// unsecuredName is the user of requests over the insecure port; kube-apiserver's, when
// it had such a port.
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

// WithLocalOrigin refuses requests that a browser sends for a page of another host.
// Such a page can let its own host name resolve to this machine (DNS rebinding); the
// Host header has that name then. It can also send requests to this machine without
// being able to read the responses, which is enough to do harm; the Origin header has
// the page's host then. A browser sends a page's GET without Origin, and says by
// Sec-Fetch-Site that it is of another site.
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
		if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			http.Error(w, "403: this port does not answer pages of other sites", http.StatusForbidden)
			return
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
