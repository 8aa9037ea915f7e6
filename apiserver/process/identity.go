package process

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
)

// LoopbackUserName is the user of the server's own requests, as in kube-apiserver.
const LoopbackUserName = user.APIServerUser

// self is the server itself. It is in system:masters, as in kube-apiserver: it creates the
// roles that authorize everybody else.
var self user.Info = &user.DefaultInfo{
	Name:   LoopbackUserName,
	UID:    LoopbackUserName,
	Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
}

// userKey is the key of the context value that names the user of a loopback request. A
// request from the network cannot have it.
type userKey struct{}

// LoopbackAuthenticator authenticates loopback requests and no others. It must be the first
// authenticator.
func LoopbackAuthenticator() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		who, ok := r.Context().Value(userKey{}).(user.Info)
		if !ok {
			return nil, false, nil
		}
		return &authenticator.Response{User: who}, true, nil
	})
}

// SelfConfig returns the configuration of a webhook client whose Service is this server's
// own: its requests go through t, whatever address the client resolves.
// kube-apiserver gives such clients its loopback credentials.
func SelfConfig(t *LoopbackTransport) *rest.Config {
	return &rest.Config{
		// Not the field Transport: the callers add TLS settings, which exclude it.
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return t },
		UserAgent:     "byre/loopback",
	}
}

// LoopbackAs returns a copy of a configuration that Config has made. The requests of its clients are
// those of the user who.
func LoopbackAs(config *rest.Config, t *LoopbackTransport, who user.Info) *rest.Config {
	config = rest.CopyConfig(config)
	config.Transport = userTransport{t, who}
	return config
}

// LoopbackConfig returns a client configuration over t, for the server itself. Responses are JSON, the
// encoding in which objects are stored: the server sends the stored bytes and only the client
// decodes.
func LoopbackConfig(t *LoopbackTransport) *rest.Config {
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
