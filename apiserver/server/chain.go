package server

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	endpointfilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/tracing"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/access/auth"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/process"
	"byre/apiserver/process/pki"
	"byre/apiserver/query"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// effectiveVersion is the version that the process emulates.
func effectiveVersion() basecompatibility.EffectiveVersion {
	return compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
}

// builtinAPI is the built-in API, of Kubernetes and byre's own groups, with the models of its types.
type builtinAPI struct {
	groups []handlers.Group
	models *documents.Models
	// schemas makes the schemas of the groups' types.
	schemas func() (map[string]*spec.Schema, error)
	// types are the types of those models that the groups use.
	types *managedfields.TypeConverter
}

// newBuiltinAPI joins Kubernetes' groups and others, whose types have definitions too.
func newBuiltinAPI(
	kubernetes, others []handlers.Group, definitions openapicommon.GetOpenAPIDefinitions,
) (*builtinAPI, error) {
	api := &builtinAPI{groups: slices.Concat(kubernetes, others)}
	names, err := handlers.ModelNames(api.groups)
	if err != nil {
		return nil, err
	}
	api.models = documents.NewModels(effectiveVersion().EmulationVersion().String(), definitions, schemesOf(api.groups)...)
	api.schemas = api.models.Schemas(names...)
	api.types = managedfields.NewTypeConverter(api.schemas)
	return api, nil
}

// newChanges makes what reads the changes of all resources.
func newChanges(s *storageBackend, a authorizer.Authorizer, types typesOf) *changes.Log {
	builtin := storage.BuiltinResources(effectiveVersion())
	return &changes.Log{
		Driver:       s.database.Driver,
		Authorizer:   a,
		Transformers: s.Transformers,
		Prefix: func(of sqlstore.Resource) string {
			if of.Owner == sqlstore.Custom {
				return of.Group + "/" + of.Resource
			}
			return builtin.ResourcePrefix(schema.GroupResource{Group: of.Group, Resource: of.Resource})
		},
		Types: types,
	}
}

// typesOf returns the type of a resource's objects of a kind.
type typesOf = func(context.Context, sqlstore.Resource, schema.GroupVersionKind) changes.Type

// typeOf returns the type of a resource's objects of a kind: of a custom resource that of its definition.
func (s *Server) typeOf(ctx context.Context, of sqlstore.Resource, kind schema.GroupVersionKind) changes.Type {
	if of.Owner != sqlstore.Custom {
		return changes.TypeOf(s.api.types, kind)
	}
	for _, server := range s.chain.servers {
		if defines, ok := server.(interface {
			TypeOf(context.Context, sqlstore.Resource, schema.GroupVersionKind) changes.Type
		}); ok {
			return defines.TypeOf(ctx, of, kind)
		}
	}
	return changes.Type{}
}

// schemesOf returns the schemes of groups, each once.
func schemesOf(groups []handlers.Group) (schemes []*runtime.Scheme) {
	for i := range groups {
		if !slices.Contains(schemes, groups[i].Scheme) {
			schemes = append(schemes, groups[i].Scheme)
		}
	}
	return schemes
}

// fieldSetBytes bounds the cache of the managed fields of created objects, in bytes:
// enough for a thousand shapes of Pods.
const fieldSetBytes = 4 << 20

// parsedFieldBytes bounds the cache of the parsed managed fields of updated objects, in
// bytes: enough for about five hundred shapes of Pods.
const parsedFieldBytes = 8 << 20

// newDependencies makes what all servers of the delegation chain share. Its discovery tells clients
// within the cluster the address of the kubernetes Service, and other clients the external address.
func newDependencies(
	o Completed, n network, s *storageBackend, files pki.Files, c clients, a *access, api *builtinAPI,
) process.Dependencies {
	// A policy for a resource holds for another under which the same objects are written, as the two of Events.
	storedAs := storage.BuiltinResources(effectiveVersion()).StoredAs
	equivalent := runtime.NewEquivalentResourceRegistryWithIdentity(func(gr schema.GroupResource) string {
		return storedAs(gr).String()
	})
	return process.Dependencies{
		Storage:          s.Backend,
		EffectiveVersion: effectiveVersion(),
		Serving: handlers.Serving{
			Admission:         a.admission.Plugins,
			Authorizer:        a.auth.Authorizer,
			TypeConverter:     api.types,
			FieldSets:         managedfields.NewFieldSets(fieldSetBytes),
			ParsedSets:        managedfields.NewParsedSets(parsedFieldBytes),
			MinRequestTimeout: time.Duration(o.Generic.MinRequestTimeout) * time.Second,

			EquivalentResources: equivalent,
		},
		Discovery: documents.NewDiscovery(n.address, documents.CIDRRule{
			IPRange: o.ServiceIPRange,
			Address: net.JoinHostPort(o.ServiceIP.String(), "443"), // the port of the kubernetes Service
		}),
		OpenAPI:               documents.NewOpenAPI(),
		Build:                 documents.BuildIdentity(time.Now(), effectiveVersion().EmulationVersion().String()),
		Loopback:              c.loopback,
		Client:                c.kube,
		Informers:             c.informers,
		ServiceResolver:       c.resolver,
		WebhookAuthentication: c.webhooks,
		Backends:              newBackends(o.Cluster, n, files),
	}
}

// newBackends says how aggregated API servers are reached. files are the certificates and
// keys that the server issues itself; flags may name others.
func newBackends(o ClusterOptions, n network, files pki.Files) process.Backends {
	b := process.Backends{
		ProxyCert:        files.FrontProxyCert,
		ProxyKey:         files.FrontProxyKey,
		Dial:             n.egress.cluster,
		RouteToEndpoints: o.RouteToEndpoints,
		Self:             n.self,
		RejectRedirects:  o.RejectRedirects,
	}
	if o.ProxyCertFile != "" {
		b.ProxyCert, b.ProxyKey = o.ProxyCertFile, o.ProxyKeyFile
	}
	if n.tracer != nil {
		b.Trace = tracing.WrapperFor(n.tracer)
	}
	return b
}

// chain is the delegation chain.
type chain struct {
	// handler is the first server of the chain. The filters pass requests to it.
	handler http.Handler
	// servers are those other than the built-in API.
	servers []process.ChainServer
	// startChecks pass when the start is done.
	startChecks []process.HealthChecker
}

// newChain makes the chain from the last delegate to the first: 404, custom resources, the built-in
// API, the other paths of this server, the aggregator. checks are those of this server; those of the
// other servers are added.
func newChain(
	config Config, d process.Dependencies, s *storageBackend, a *access, builtin *builtinAPI, features Part,
	checks process.HealthChecks,
) (*chain, error) {
	c := &chain{handler: notfoundhandler.New(legacyscheme.Codecs, endpointfilters.NoMuxAndDiscoveryIncompleteKey)}
	if err := c.add(config.CustomResources, d); err != nil {
		return nil, err
	}
	api, err := handlers.New(handlers.Config{
		Groups:    builtin.groups,
		Serving:   d.Serving,
		Discovery: d.Discovery,
		NotFound:  c.handler,
	})
	if err != nil {
		return nil, err
	}
	roots := append(api.Roots(), documents.VersionRoot())
	roots = append(roots, documents.TokenIssuerRoots()...)
	d.OpenAPI.Set("builtin", builtin.models.Source(roots, d.Build))
	paths := mux.NewPathRecorderMux("byre")
	paths.NotFoundHandler(api)
	features.Handle(paths, api)
	c.handler = paths
	if err := c.add(config.Aggregator, d); err != nil {
		return nil, err
	}
	for _, server := range c.servers {
		checks.BootSequence = append(checks.BootSequence, server.Checks()...)
	}
	c.startChecks = process.InstallHealth(paths, checks)
	installPaths(paths, config.Options, d, s, a)
	return c, nil
}

// add makes a server that delegates to the chain so far, and puts it before it. Where newServer is
// nil, the chain stays as it is.
func (c *chain) add(newServer process.NewChainServer, d process.Dependencies) error {
	if newServer == nil {
		return nil
	}
	server, err := newServer(d, c.handler)
	if err != nil {
		return err
	}
	c.handler, c.servers = server, append(c.servers, server)
	return nil
}

// newRegistry makes the REST storages of the groups of Kubernetes. files are the certificates
// and keys that the server issues itself; the kubelet client uses them unless flags
// name others.
func newRegistry(
	o Completed, n network, s *storageBackend, files pki.Files, c clients, a *auth.Auth, componentStatuses []string,
) (*registry.Builtin, error) {
	kubelet := *o.Cluster.Kubelet
	if kubelet.TLSClientConfig.CertFile == "" {
		kubelet.TLSClientConfig.CertFile, kubelet.TLSClientConfig.KeyFile = files.KubeletClientCert, files.KubeletKey
	}
	if n.egress.cluster != nil {
		kubelet.Lookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return n.egress.cluster, nil }
	}
	return registry.New(registry.Config{
		RESTOptions:             s.getter,
		APIResourceConfigSource: o.APIResources,
		Emulation: genericapiserver.ResourceExpirationEvaluatorOptions{
			CurrentVersion:                          effectiveVersion().EmulationVersion(),
			EmulationForwardCompatible:              o.Generic.EmulationForwardCompatible,
			RuntimeConfigEmulationForwardCompatible: o.Generic.RuntimeConfigEmulationForwardCompatible,
		},
		Client:         c.kube,
		Informers:      c.informers,
		Authenticator:  a.Authenticator,
		APIAudiences:   a.APIAudiences,
		Authorizer:     a.Authorizer,
		EndpointSlices: c.resolver.Slices,
		RuleResolver:   a.RuleResolver,
		Tokens: registry.TokenConfig{
			Issuer:                a.TokenIssuer.Generator,
			MaxExpiration:         a.TokenIssuer.MaxExpiration,
			ExtendExpiration:      a.TokenIssuer.ExtendExpiration,
			MaxExtendedExpiration: a.TokenIssuer.MaxExtendedExpiration,
		},
		Services: registry.ServiceConfig{
			ClusterIPRange:          o.ServiceIPRange,
			SecondaryClusterIPRange: o.SecondaryServiceIPRange,
			NodePortRange:           o.Cluster.NodePortRange,
		},
		EventTTL: o.Cluster.EventTTL,
		Kubelet:  &kubelet,

		ProxyTransport: newProxyTransport(n.egress.cluster),
		StoreReady:     s.checkDatabase,
		InProcess:      componentStatuses,
	})
}

// Tables describes the tables of all built-in resources that have objects, enabled or not, as a server of the
// effective version makes them, without Stores. They are in the order of their resources.
func Tables(effective basecompatibility.EffectiveVersion) ([]*query.Table, error) {
	resources, kinds, names := storage.BuiltinResources(effective), map[schema.GroupResource]schema.GroupVersionKind{},
		[]string{}
	for gr, name := range registry.Kinds() {
		if resources.StoredAs(gr) != gr {
			continue // its objects are another resource's
		}
		kind, err := resources.StorageKind(gr, name)
		if err != nil {
			return nil, err
		}
		object, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			return nil, err
		}
		kinds[gr] = kind
		names = append(names, util.GetCanonicalTypeName(object))
	}
	slices.Sort(names)
	models := documents.NewModels(effective.EmulationVersion().String(), generated.GetOpenAPIDefinitions,
		legacyscheme.Scheme)
	definitions, err := models.Schemas(names...)()
	if err != nil {
		return nil, err
	}
	var tables []*query.Table
	schemas := query.NewSchemas(definitions)
	for gr, kind := range kinds {
		tables = append(tables, schemas.Describe(gr, kind))
	}
	slices.SortFunc(tables, func(a, b *query.Table) int {
		return cmp.Or(cmp.Compare(a.Resource.Group, b.Resource.Group), cmp.Compare(a.Resource.Resource, b.Resource.Resource))
	})
	return tables, nil
}

// clients send requests as the server itself: to the delegation chain within the process, and to webhooks.
type clients struct {
	transport *process.LoopbackTransport
	loopback  *rest.Config
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	// reader reads built-in objects from their stores, without a request.
	reader *storage.LookupReader
	// informers are started after every part of the server has registered its own.
	informers informers.SharedInformerFactory
	// resolver finds the Services of webhooks, in the store. webhooks chooses the credentials
	// with which the server authenticates itself to a webhook.
	resolver *process.ServiceResolver
	webhooks webhook.AuthenticationInfoResolverWrapper
}

// newClients makes the clients. Their requests within the process fail until their transport
// serves the chain. stores finds the store of a resource.
func newClients(o Completed, n network, stores func(schema.GroupResource) *storage.Store) (clients, error) {
	transport := new(process.LoopbackTransport)
	config, self, tracer := process.LoopbackConfig(transport), process.SelfConfig(transport), n.tracer
	if tracer != nil {
		config.Wrap(tracing.WrapperFor(tracer))
		self.Wrap(tracing.WrapperFor(tracer))
	} else {
		tracer = tracing.NewNoopTracerProvider()
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, fmt.Errorf("loopback client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return clients{}, fmt.Errorf("loopback client: %w", err)
	}
	// Upstream's name of kube-apiserver's informers in their metrics. A process has it once: the
	// informers of another server in it have no metrics.
	name, _ := cache.NewInformerName("kube-apiserver")
	reader := storage.NewLookupReader(stores)
	return clients{
		transport: transport,
		loopback:  config,
		kube:      kube,
		dynamic:   dynamicClient,
		reader:    reader,
		informers: informers.NewSharedInformerFactoryWithOptions(kube, 0,
			informers.WithTransform(process.StripManagedFields), informers.WithCustomResyncConfig(registry.AllocatorResync()),
			informers.WithInformerName(name)),
		resolver: process.NewServiceResolver(reader, o.Cluster.RouteToEndpoints, n.self),
		webhooks: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, n.egress.selector, self, tracer),
	}, nil
}

// stop ends the requests within the process. Those that are left are watches of informers
// that nobody reads any more.
func (c clients) stop() {
	c.transport.Close()
	c.transport.Wait()
	c.informers.Shutdown()
}

// checkLive requests this server's /livez, through all filters. It excludes the check
// of the database: while the database is away, the server still answers reads from its
// watch cache, and a restart would end that.
func (c clients) checkLive(ctx context.Context) error {
	return c.kube.Discovery().RESTClient().Get().AbsPath("/livez").Param("exclude", "etcd").Do(ctx).Error()
}

// as returns the configuration of clients whose requests are those of another user. Their user
// agent is that of a Kubernetes component in upstream's form, from which its name gets into the
// managed fields.
func (c clients) as(component string, who user.Info) *rest.Config {
	config := process.LoopbackAs(c.loopback, c.transport, who)
	info := Version(effectiveVersion())
	version, _, _ := strings.Cut(info.GitVersion, "+")
	config.UserAgent = fmt.Sprintf("%s/%s (%s) kubernetes/%.7s", component, version, info.Platform,
		cmp.Or(info.GitCommit, "unknown"))
	return config
}

// watchStored watches the metadata of a resource's objects in their stored bytes. It
// returns nil for a resource that no server of the chain stores.
func watchStored(
	getter *storage.RESTOptionsGetter, others []process.ChainServer, gr schema.GroupResource,
) *storage.MetadataWatch {
	if getter.Lookup(gr) != nil {
		return getter.WatchMetadata(gr, sqlstore.BuiltIn)
	}
	for _, server := range others {
		if owner, ok := server.Stores(gr); ok {
			return getter.WatchMetadata(gr, owner)
		}
	}
	return nil
}
