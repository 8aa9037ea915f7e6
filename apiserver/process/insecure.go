package process

import (
	"net"
	"net/http"
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

// WithLocalOrigin refuses requests that a browser sends for a page that is not of this
// port. Such a page can let its own host name resolve to this machine (DNS rebinding);
// the Host header has that name then. It can also open a WebSocket, or send requests
// without being able to read the responses, which is enough to do harm; the Origin header
// has the page's host and port then. What serves pages on another port of this machine
// may be a program of another user. A browser sends a page's GET without Origin, and says
// by Sec-Fetch-Site that it is of another origin.
func WithLocalOrigin(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.Host) {
			http.Error(w, "403: this port answers to localhost and loopback addresses only, not to the Host of this request", http.StatusForbidden)
			return
		}
		for _, origin := range r.Header.Values("Origin") {
			if !strings.EqualFold(origin, "http://"+r.Host) {
				http.Error(w, "403: this port does not answer pages of other origins", http.StatusForbidden)
				return
			}
		}
		for _, site := range r.Header.Values("Sec-Fetch-Site") { // none is the user's own, as an address that is typed
			if site != "same-origin" && site != "none" {
				http.Error(w, "403: this port does not answer pages of other sites", http.StatusForbidden)
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
