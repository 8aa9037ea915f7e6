package aggregator

import (
	"fmt"
	"net/url"
	"sync/atomic"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"byre/apiserver/process"
)

// backendKey names a backend. APIServices with equal keys share one: they name the same
// Service, and its certificate is verified the same way.
type backendKey struct {
	namespace, name string
	port            int32
	insecure        bool
	caBundle        string
}

func backendKeyOf(service *apiregistrationv1.APIService) backendKey {
	at := service.Spec.Service
	return backendKey{
		namespace: at.Namespace,
		name:      at.Name,
		port:      ptr.Deref(at.Port, 443),
		insecure:  service.Spec.InsecureSkipTLSVerify,
		caBundle:  string(service.Spec.CABundle),
	}
}

// String names the Service, for logs.
func (k backendKey) String() string { return fmt.Sprintf("%s/%s:%d", k.namespace, k.name, k.port) }

// client makes requests to a backend. It is safe for concurrent use.
type client struct {
	key      backendKey
	resolver *process.ServiceResolver
	// connected is replaced when the client certificate of this server is rotated.
	connected atomic.Pointer[connected]
}

// connected is the result of connect: a transport or an error.
type connected struct {
	transport *backendTransport
	err       error
}

// connect makes the client use the current client certificate. Requests in flight go on
// with the one before.
func (c *client) connect(config *transportConfig, service *apiregistrationv1.APIService) error {
	t, err := config.newBackendTransport(service)
	c.closeIdle(c.connected.Swap(&connected{t, err}))
	return err
}

// transport returns the transport that connect has made.
func (c *client) transport() (*backendTransport, error) {
	current := c.connected.Load()
	return current.transport, current.err
}

// close closes the connections that no request uses.
func (c *client) close() { c.closeIdle(c.connected.Load()) }

func (*client) closeIdle(current *connected) {
	if current != nil && current.transport != nil {
		current.transport.closeIdle()
	}
}

// locate returns the URL of a path and query at an endpoint of the backend's Service.
func (c *client) locate(path, query string) (*url.URL, error) {
	at, err := c.resolver.ResolveEndpoint(c.key.namespace, c.key.name, c.key.port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: at.Host, Path: path, RawQuery: query}, nil
}
