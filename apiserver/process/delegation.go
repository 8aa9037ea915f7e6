package process

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/compatibility"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/storage"
	"byre/sqlstore"
)

// ChainServer is a server of the chain other than the built-in API.
type ChainServer interface {
	// ServeHTTP serves the server's own requests and passes all others on to its
	// delegate.
	http.Handler
	// Run runs the goroutines of the server. It returns nil after ctx has ended; before
	// that it returns only with an error.
	Run(ctx context.Context) error
	// Checks are the checks of /readyz that pass once the server has started.
	Checks() []HealthChecker
	// Stores reports whether the server keeps the objects of a resource in the store, and as whose.
	Stores(schema.GroupResource) (owner sqlstore.Owner, ok bool)
}

// NewChainServer makes a Server that passes requests that are not its own on to delegate. It
// starts nothing.
type NewChainServer func(d Dependencies, delegate http.Handler) (ChainServer, error)

// Dependencies is what every server of the chain is made with. The assembly makes it
// completely before the first server. Nobody changes it afterwards. A server reads the
// fields that it needs.
type Dependencies struct {
	// Storage says where objects are kept.
	Storage storage.Backend
	// EffectiveVersion is the version that the server emulates.
	EffectiveVersion compatibility.EffectiveVersion
	// Serving is what the handlers of all resources share. Its TypeConverter has only
	// the built-in groups; ServeGroup replaces it.
	Serving handlers.Serving
	// Discovery and OpenAPI have the groups that are served. Servers may add entries at
	// any time.
	Discovery *documents.Discovery
	OpenAPI   *documents.OpenAPI
	// Build is a part of what the hashes of OpenAPI documents are made from; see
	// documents.BuildIdentity.
	Build string

	// Loopback, Client and Informers send requests to the whole chain as the server's
	// own privileged user. The informers are started after every server has been made.
	Loopback  *rest.Config
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// ServiceResolver finds the Service of a webhook. WebhookAuthentication chooses the
	// credentials with which the server authenticates itself to webhooks.
	ServiceResolver       webhook.ServiceResolver
	WebhookAuthentication webhook.AuthenticationInfoResolverWrapper
	// Backends says how aggregated API servers are reached.
	Backends Backends
}

// Backends says how aggregated API servers are reached.
type Backends struct {
	// ProxyCert and ProxyKey are the files of the client certificate with which this
	// server authenticates itself to them. The files are read again when they change.
	ProxyCert, ProxyKey string
	// Dial connects to them; nil connects directly.
	Dial utilnet.DialFunc
	// Trace, if not nil, adds spans to requests to them and passes the trace context
	// on.
	Trace transport.WrapperFunc
	// RouteToEndpoints sends requests to the endpoints of a Service, if it has any,
	// instead of to its cluster IP.
	RouteToEndpoints bool
	// Self is the URL of this server's own listener, to which requests to the Service
	// kubernetes are sent. If it is nil, that Service is resolved like any other.
	Self *url.URL
	// RejectRedirects answers with 502 where an aggregated API server answers with a
	// redirect. Otherwise the client gets the redirect. This server never follows one.
	RejectRedirects bool
}

// RESTOptions returns the RESTOptionsGetter of resources that are not built in, whose
// types scheme knows.
func (d *Dependencies) RESTOptions(
	scheme *runtime.Scheme, codecs runtime.StorageSerializer, resources ...schema.GroupResource,
) *storage.RESTOptionsGetter {
	return storage.NewRESTOptionsGetter(d.Storage,
		storage.GroupResources(scheme, codecs, d.EffectiveVersion, resources...))
}

// ServeGroup serves a group of types that are not built in, in discovery and, as the
// source of the given name, in OpenAPI. Other requests go on to delegate. schemas returns the
// schemas of the group's types, by the names by which they refer to each other.
func (d *Dependencies) ServeGroup(
	name string, group handlers.Group, definitions openapicommon.GetOpenAPIDefinitions, delegate http.Handler,
) (api *handlers.API, schemas func() (map[string]*spec.Schema, error), err error) {
	groups := []handlers.Group{group}
	names, err := handlers.ModelNames(groups)
	if err != nil {
		return nil, nil, err
	}
	models := documents.NewModels(d.EffectiveVersion.EmulationVersion().String(), definitions, group.Scheme)
	schemas = models.Schemas(names...)
	serving := d.Serving
	serving.TypeConverter = managedfields.NewTypeConverter(schemas)
	api, err = handlers.New(handlers.Config{
		Groups:    groups,
		Serving:   serving,
		Discovery: d.Discovery,
		NotFound:  delegate,
	})
	if err != nil {
		return nil, nil, err
	}
	d.OpenAPI.Set(name, models.Source(api.Roots(), d.Build))
	return api, schemas, nil
}
