package server

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	endpointfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/tracing"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/process"

	"byre/apiserver/history"

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
	groups  []handlers.Group
	changes *history.Storage
	queries *query.Storage // nil without --enable-sql
	// tables are those that queries read. Each server of the chain adds its own.
	tables query.Servers
	models *documents.Models
	// schemas makes the schemas of the groups' types.
	schemas func() (map[string]*spec.Schema, error)
	// types are the types of those models that the groups use.
	types *managedfields.TypeConverter
}

// newBuiltinAPI adds byre's own groups to those of Kubernetes.
func newBuiltinAPI(o Completed, s *storageBackend, a authorizer.Authorizer, kubernetes *registry.Builtin) (*builtinAPI, error) {
	builtin := storage.BuiltinResources(effectiveVersion())
	log := &changes.Log{
		Driver:       s.database.Driver,
		Authorizer:   a,
		Transformers: s.Transformers,
		Prefix: func(of sqlstore.Resource) string {
			if of.Owner == sqlstore.Custom {
				return of.Group + "/" + of.Resource
			}
			return builtin.ResourcePrefix(schema.GroupResource{Group: of.Group, Resource: of.Resource})
		},
	}
	api := &builtinAPI{changes: history.New(history.Config{Log: log, Feed: s.Feed})}
	api.groups = append(kubernetes.Groups(), history.NewGroup(api.changes))
	if o.SQL.Enabled {
		api.queries = query.New(query.Config{
			Feed:        s.Feed,
			Log:         log,
			Tables:      &api.tables,
			Timeout:     o.SQL.Timeout,
			Memory:      o.SQL.Memory.Value(),
			Concurrency: o.SQL.Parallel(),
		})
		api.groups = append(api.groups, query.NewGroup(api.queries))
	}
	names, err := handlers.ModelNames(api.groups)
	if err != nil {
		return nil, err
	}
	definitions := documents.Join(generated.GetOpenAPIDefinitions, history.Definitions, query.Definitions)
	api.models = documents.NewModels(effectiveVersion().EmulationVersion().String(), definitions, schemesOf(api.groups)...)
	api.schemas = api.models.Schemas(names...)
	api.types = managedfields.NewTypeConverter(api.schemas)
	tables, err := query.NewBuiltinTables(kubernetes.Groups(), s.getter.Lookup, api.schemas)
	api.tables = query.Servers{tables}
	return api, err
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
func newDependencies(o Completed, n network, s *storageBackend, files pki.Files, c clients, a *access, api *builtinAPI) process.Dependencies {
	var writers *process.Writers
	if o.Store.ReadsOnly() {
		writers = &process.Writers{CA: cmp.Or(o.Serving.RootCAFile, files.CACert), Self: n.id}
	}
	// A policy for a resource holds for another under which the same objects are written, as the two of Events.
	storedAs := storage.BuiltinResources(effectiveVersion()).StoredAs
	equivalent := runtime.NewEquivalentResourceRegistryWithIdentity(func(gr schema.GroupResource) string { return storedAs(gr).String() })
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
		Writers:               writers,
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
func newChain(config Config, d process.Dependencies, s *storageBackend, a *access, builtin *builtinAPI, checks process.HealthChecks) (*chain, error) {
	c := &chain{handler: notfoundhandler.New(legacyscheme.Codecs, endpointfilters.NoMuxAndDiscoveryIncompleteKey)}
	if err := c.add(config.CustomResources, d, builtin); err != nil {
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
	if builtin.queries != nil {
		paths.UnlistedHandle(query.Path, query.NewHandler(builtin.queries, a.admission.Plugins, api))
	}
	c.handler = paths
	if err := c.add(config.Aggregator, d, builtin); err != nil {
		return nil, err
	}
	for _, server := range c.servers {
		checks.BootSequence = append(checks.BootSequence, server.Checks()...)
	}
	served := newCheckPaths(api)
	c.startChecks = process.InstallHealth(served, checks)
	installPaths(paths, config.Options, d, s, a, served)
	if builtin.queries != nil {
		c.handler = builtin.queries.Beside(c.handler)
	}
	return c, nil
}

// add makes a server that delegates to the chain so far, and puts it before it. Where newServer is
// nil, the chain stays as it is.
func (c *chain) add(newServer process.NewChainServer, d process.Dependencies, builtin *builtinAPI) error {
	if newServer == nil {
		return nil
	}
	server, err := newServer(d, c.handler)
	if err != nil {
		return err
	}
	c.handler, c.servers = server, append(c.servers, server)
	if tables, ok := server.(query.Tables); ok {
		builtin.tables = append(builtin.tables, tables)
	}
	return nil
}
