package aggregator

import (
	"errors"
	"fmt"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"byre/apiserver/endpoints"
)

// Config is what New needs. All but Self, CustomSynced, Metrics and the booleans
// are required.
type Config struct {
	endpoints.Common
	// Loopback and Client reach the whole server as itself.
	Loopback *restclient.Config
	Client   kubernetes.Interface
	// Informers has the Services. It is started by the caller, before Run.
	Informers informers.SharedInformerFactory
	// ProxyCert and ProxyKey are the files of the certificate that is shown to
	// backends. They are followed.
	ProxyCert, ProxyKey string
	// RouteToEndpoints goes to the endpoints of a Service that has any, instead
	// of to its cluster IP.
	RouteToEndpoints bool
	// Self is where this server listens, which the Service kubernetes leads to; nil
	// if that is like any other.
	Self *url.URL
	// RejectRedirects answers a backend's redirect by a 502 instead of passing it
	// on. None is ever followed.
	RejectRedirects bool
	// Dial connects to backends; nil means directly.
	Dial utilnet.DialFunc
	// Trace, if not nil, adds spans to requests to backends and sends the trace's
	// context on.
	Trace transport.WrapperFunc
	// CustomSynced is closed when all custom resources that there were at the
	// start are in Discovery; nil if there is nothing to wait for.
	CustomSynced <-chan struct{}
	// Metrics takes the package's metrics; nil for none.
	Metrics Registry
}

func (c *Config) check() error {
	if err := c.Check(); err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	switch {
	case c.Loopback == nil, c.Client == nil, c.Informers == nil:
		return errors.New("aggregator: Loopback, Client and Informers are required")
	case c.ProxyCert == "", c.ProxyKey == "":
		return errors.New("aggregator: ProxyCert and ProxyKey are required")
	default:
		return nil
	}
}
