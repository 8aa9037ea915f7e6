package server

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/access/auth"
	"byre/apiserver/handlers/documents"

	"byre/apiserver/process"
	"byre/apiserver/process/pki"
	"byre/apiserver/query"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
)

// newRegistry makes the REST storages of the groups of Kubernetes. files are the certificates
// and keys that the server issues itself; the kubelet client uses them unless flags
// name others.
func newRegistry(o Completed, n network, s *storageBackend, files pki.Files, c clients, a *auth.Auth) (*registry.Builtin, error) {
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
		EndpointSlices: process.NewEndpointSliceGetter(c.reader),
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
		InProcess:      inProcess(o),
	})
}

// inProcess returns the names, as component statuses have them, of the components whose work this process does.
func inProcess(o Completed) (names []string) {
	if len(o.EnabledControllers) > 0 {
		names = append(names, "controller-manager")
	}
	if o.WithScheduler {
		names = append(names, "scheduler")
	}
	return names
}

// Tables describes the tables of all built-in resources that have objects, enabled or not, as a server of the
// effective version makes them, without Stores. They are in the order of their resources.
func Tables(effective compatibility.EffectiveVersion) ([]*query.Table, error) {
	resources, kinds, names := storage.BuiltinResources(effective), map[schema.GroupResource]schema.GroupVersionKind{}, []string{}
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
	models := documents.NewModels(effective.EmulationVersion().String(), generated.GetOpenAPIDefinitions, legacyscheme.Scheme)
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
