package apiserver

import (
	"fmt"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/tracing"

	"byre/apiserver/builtin"
	"byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/apiserver/lookup"
	"byre/apiserver/loopback"
	"byre/apiserver/objectstore"
	"byre/apiserver/openapi"
)

// Shared is what the servers of the chain have in common.
type Shared struct {
	// Common is Storage, Discovery and so on; a server with types of its own
	// stores them by Common.Own.
	endpoints.Common
	// Loopback, Client, Dynamic and Informers reach the whole chain as itself.
	// The informers are started after every server was made.
	Loopback *rest.Config
	Client   kubernetes.Interface
	// Direct is Client with look-ups that read the store instead of the chain.
	Direct    kubernetes.Interface
	Dynamic   dynamic.Interface
	Informers informers.SharedInformerFactory
	// Services and Webhooks are how webhooks are found, and by what the server
	// shows itself to them.
	Services webhook.ServiceResolver
	Webhooks webhook.AuthenticationInfoResolverWrapper
	// Aggregation is how servers behind this one are reached.
	Aggregation Aggregation
}

// Aggregation is how servers behind this one are reached.
type Aggregation struct {
	// ProxyCert and ProxyKey are the files of the certificate by which this
	// server shows itself to them.
	ProxyCert, ProxyKey string
	// Dial connects to them; nil means directly.
	Dial utilnet.DialFunc
	// Trace, if not nil, adds spans to requests to them and sends the trace's
	// context on.
	Trace transport.WrapperFunc
	// RouteToEndpoints goes to the endpoints of their Services where there are
	// any, instead of to their cluster IPs.
	RouteToEndpoints bool
	// Self is where this server listens.
	Self *url.URL
	// RejectRedirects keeps their redirects from clients.
	RejectRedirects bool
}

// newShared makes what needs nothing but the store and the loopback transport.
func newShared(core *core, roundTripper *loopback.Transport, registry *discovery.Registry, stores func(schema.GroupResource) *objectstore.Store,
	egress *egressselector.EgressSelector, tracer tracing.TracerProvider) (Shared, error) {
	config, self := loopback.Config(roundTripper), loopback.SelfConfig(roundTripper)
	if tracer == nil {
		tracer = tracing.NewNoopTracerProvider()
	} else {
		config.Wrap(tracing.WrapperFor(tracer))
		self.Wrap(tracing.WrapperFor(tracer))
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Shared{}, fmt.Errorf("loopback client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return Shared{}, fmt.Errorf("loopback client: %w", err)
	}
	direct := lookup.NewClient(client, stores)
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	return Shared{
		Common: endpoints.Common{
			Storage:   objectstore.Builtin(core.store, core.feed, effective),
			Effective: effective,
			Discovery: registry,
			OpenAPI:   openapi.NewService(),
			Build:     openapi.BuildIdentity(time.Now()),
		},
		Webhooks: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, egress, self, tracer),
		Loopback: config,
		Client:   client,
		Direct:   direct,
		Dynamic:  dynamicClient,
		Informers: informers.NewSharedInformerFactoryWithOptions(client, 0,
			informers.WithTransform(loopback.Trim), informers.WithCustomResyncConfig(builtin.Resync())),
	}, nil
}
