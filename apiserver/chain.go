package apiserver

import (
	"net"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	endpointfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/delegation"
	"byre/apiserver/handlers"
	"byre/apiserver/handlers/discovery"
	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/handlers/openapi"
	"byre/apiserver/history"
	"byre/apiserver/query"
	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/factory"
	"byre/sqlstore"
)

// effectiveVersion is the version that the process emulates.
func effectiveVersion() basecompatibility.EffectiveVersion {
	return compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
}

// newStorage makes the storage configuration that all servers of the delegation chain
// share.
func (s *Server) newStorage() factory.Backend {
	o := s.config.Options.Store
	return factory.Backend{
		Store:                   s.core.store,
		Feed:                    s.core.feed,
		Program:                 factory.Program(effectiveVersion()),
		Transformers:            s.encryption.transformers,
		DeleteCollectionWorkers: o.DeleteCollectionWorkers,
		NoGarbageCollection:     !o.GarbageCollection,
	}
}

// externalAddress is the host and port at which clients find this server.
func (s *Server) externalAddress() string {
	return net.JoinHostPort(s.config.Options.AdvertiseAddress.String(), s.port)
}

// newDiscovery makes the registry of the API groups that are served. It tells clients
// within the cluster the address of the kubernetes Service, and other clients the
// external address.
func (s *Server) newDiscovery() *discovery.Registry {
	return discovery.NewRegistry(s.externalAddress(), discovery.CIDRRule{
		IPRange: s.config.Options.ServiceIPRange,
		Address: net.JoinHostPort(s.config.Options.ServiceIP.String(), "443"), // the port of the kubernetes Service
	})
}

// newGroups makes the groups of the built-in API: those of Kubernetes, and byre's own.
func (s *Server) newGroups() []handlers.Group {
	builtin := factory.BuiltinResources(effectiveVersion())
	log := &changes.Log{
		Driver:       s.core.database.Driver,
		Authorizer:   s.auth.Authorizer,
		Transformers: s.encryption.transformers,
		Prefix: func(of sqlstore.Resource) string {
			if of.Owner == sqlstore.Custom {
				return of.Group + "/" + of.Resource
			}
			return builtin.ResourcePrefix(schema.GroupResource{Group: of.Group, Resource: of.Resource})
		},
	}
	s.changes = history.New(history.Config{Log: log, Feed: s.core.feed})
	groups := append(s.builtin.Groups(), history.NewGroup(s.changes))
	if o := &s.config.Options.SQL; o.Enabled {
		s.queries = query.New(query.Config{
			Feed:        s.core.feed,
			Log:         log,
			Tables:      &s.tables,
			Timeout:     o.Timeout,
			Memory:      o.Memory.Value(),
			Concurrency: o.Parallel(),
		})
		groups = append(groups, query.NewGroup(s.queries))
	}
	return groups
}

// builtinModels are the built-in groups with the models of their types.
type builtinModels struct {
	groups []handlers.Group
	models *openapi.Models
	// schemas makes the schemas of the groups' types.
	schemas func() (map[string]*spec.Schema, error)
	// types are the types of those models that the groups use.
	types *managedfields.TypeConverter
}

// newBuiltinModels makes the models of groups.
func newBuiltinModels(groups []handlers.Group) (builtinModels, error) {
	names, err := handlers.ModelNames(groups)
	definitions := openapi.Join(generated.GetOpenAPIDefinitions, history.Definitions, query.Definitions)
	models := openapi.NewModels(effectiveVersion().EmulationVersion().String(), definitions, schemesOf(groups)...)
	schemas := models.Schemas(names...)
	return builtinModels{groups, models, schemas, managedfields.NewTypeConverter(schemas)}, err
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

// newServing makes what the handlers of all resources share.
func (s *Server) newServing(builtin builtinModels) handlers.Serving {
	return handlers.Serving{
		Admission:         s.admission.Plugins,
		Authorizer:        s.auth.Authorizer,
		TypeConverter:     builtin.types,
		FieldSets:         managedfields.NewCache(fieldSetBytes),
		ParsedFields:      managedfields.NewSets(parsedFieldBytes),
		MinRequestTimeout: time.Duration(s.config.Options.Filters.MinRequestTimeout) * time.Second,
	}
}

// buildChain makes the delegation chain, which the filters pass requests to. It builds
// from the last delegate to the first: 404, custom resources, the built-in API, the
// other paths of this server, the aggregator.
func (s *Server) buildChain(builtin builtinModels, d delegation.Dependencies) (http.Handler, error) {
	notFound := notfoundhandler.New(legacyscheme.Codecs, endpointfilters.NoMuxAndDiscoveryIncompleteKey)
	tables, err := query.NewBuiltin(s.builtin.Groups(), s.getter.Lookup, builtin.schemas)
	if err != nil {
		return nil, err
	}
	s.tables = append(s.tables, tables)
	handler, err := s.addServer(s.config.CustomResources, d, notFound)
	if err != nil {
		return nil, err
	}
	api, err := handlers.New(handlers.Config{
		Groups:    builtin.groups,
		Serving:   d.Serving,
		Discovery: d.Discovery,
		NotFound:  handler,
	})
	if err != nil {
		return nil, err
	}
	roots := append(api.Roots(), openapi.VersionRoot())
	roots = append(roots, openapi.TokenIssuerRoots()...)
	d.OpenAPI.Set("builtin", builtin.models.Source(roots, d.Build))
	paths := mux.NewPathRecorderMux("byre")
	paths.NotFoundHandler(api)
	if s.queries != nil {
		paths.UnlistedHandle(query.Path, query.NewHandler(s.queries, s.admission.Plugins, api))
	}
	if handler, err = s.addServer(s.config.Aggregator, d, paths); err != nil {
		return nil, err
	}
	// The paths include the health checks of the other servers, so these are made
	// before.
	s.installPaths(paths, api, d)
	return handler, nil
}

// addServer makes a server of the chain that delegates to delegate. Where newServer is
// nil, the chain begins with delegate.
func (s *Server) addServer(newServer delegation.NewServer, d delegation.Dependencies, delegate http.Handler) (http.Handler, error) {
	if newServer == nil {
		return delegate, nil
	}
	server, err := newServer(d, delegate)
	if err != nil {
		return nil, err
	}
	s.chain = append(s.chain, server)
	if tables, ok := server.(query.Tables); ok {
		s.tables = append(s.tables, tables)
	}
	return server, nil
}
