package loopback

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
)

// UserName is the identity of in-process requests.
const UserName = user.APIServerUser

// loopbackKey marks the context of a request that came through a Transport. A
// request from the network can't carry it.
type loopbackKey struct{}

// Authenticator recognizes in-process requests and nothing else. It belongs
// before every other authenticator.
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

// SelfConfig returns what a client that was configured to call the Service of
// this server itself calls it with: t, by the identity Name, whatever it would
// have dialed. (kube-apiserver gives such clients its own loopback credentials.)
func SelfConfig(t *Transport) *rest.Config {
	return &rest.Config{
		// Not Transport, which excludes the TLS settings that callers add.
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return t },
		UserAgent:     "byre/loopback",
	}
}

// Config returns a client configuration over t. Answers are JSON: that is how
// objects are stored, so that the server passes bytes on and only the client
// decodes.
func Config(t *Transport) *rest.Config {
	return &rest.Config{
		Host:      "https://loopback",
		Transport: t,
		// The queue that bounds in-process requests is the server's own.
		QPS: -1,
		ContentConfig: rest.ContentConfig{
			ContentType: "application/json",
		},
		UserAgent:          "byre/loopback",
		DisableCompression: true,
	}
}
