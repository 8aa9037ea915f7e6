package loopback

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
)

// UserName is the user of loopback requests, as in kube-apiserver.
const UserName = user.APIServerUser

// loopbackKey is the key of a context value that only requests of a Transport have. A
// request from the network cannot have it.
type loopbackKey struct{}

// Authenticator authenticates loopback requests and no others. It must be the first
// authenticator.
func Authenticator() authenticator.Request {
	response := &authenticator.Response{User: &user.DefaultInfo{
		Name:   UserName,
		UID:    UserName,
		Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
	}}
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if r.Context().Value(loopbackKey{}) == nil {
			return nil, false, nil
		}
		return response, true, nil
	})
}

// SelfConfig returns the configuration of a webhook client whose Service is this server's
// own: its requests go through t, whatever address the client resolves.
// kube-apiserver gives such clients its loopback credentials.
func SelfConfig(t *Transport) *rest.Config {
	return &rest.Config{
		// Not the field Transport: the callers add TLS settings, which exclude it.
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return t },
		UserAgent:     "byre/loopback",
	}
}

// Config returns a client configuration over t. Responses are JSON, the encoding in which
// objects are stored: the server sends the stored bytes and only the client decodes.
func Config(t *Transport) *rest.Config {
	return &rest.Config{
		Host:      "https://loopback",
		Transport: t,
		// No client-side rate limit: the server's own filters limit requests.
		QPS: -1,
		ContentConfig: rest.ContentConfig{
			ContentType: "application/json",
		},
		UserAgent:          "byre/loopback",
		DisableCompression: true,
	}
}
