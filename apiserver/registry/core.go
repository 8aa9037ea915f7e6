package registry

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	configmapstore "k8s.io/kubernetes/pkg/registry/core/configmap/storage"
	endpointstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	persistentvolumestore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	persistentvolumeclaimstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplatestore "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	replicationcontrollerstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	resourcequotastore "k8s.io/kubernetes/pkg/registry/core/resourcequota/storage"
	secretstore "k8s.io/kubernetes/pkg/registry/core/secret/storage"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
	serviceaccountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
)

// coreProvider is the storageProvider of the core group. Upstream's (pkg/registry/core/rest) is
// not used: its allocators of cluster IPs and node ports connect to etcd.
type coreProvider struct {
	Config
	ips       *ClusterIPs
	nodePorts *NodePorts
}

// GroupName implements storageProvider.
func (coreProvider) GroupName() string { return corev1.GroupName }

// NewRESTStorage implements storageProvider. As in upstream, it builds the storages of disabled
// resources too: others depend on them.
func (p coreProvider) NewRESTStorage(resources serverstorage.APIResourceConfigSource, options generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(p.GroupName(), legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	b := &storageBuilder{options: options, storage: map[string]rest.Storage{}}
	withoutStatus(b, "configmaps", configmapstore.NewREST)
	withoutStatus(b, "endpoints", endpointstore.NewREST)
	withoutStatus(b, "limitranges", limitrangestore.NewREST)
	withoutStatus(b, "podtemplates", podtemplatestore.NewREST)
	withStatus(b, "persistentvolumes", persistentvolumestore.NewREST)
	withStatus(b, "persistentvolumeclaims", persistentvolumeclaimstore.NewREST)
	withStatus(b, "resourcequotas", resourcequotastore.NewREST)
	if b.err != nil {
		return info, b.err
	}
	for _, build := range []func(generic.RESTOptionsGetter) (map[string]rest.Storage, error){p.others, p.workloads} {
		storage, err := build(options)
		if err != nil {
			return info, err
		}
		maps.Copy(b.storage, storage)
	}
	maps.DeleteFunc(b.storage, func(path string, _ rest.Storage) bool {
		resource, _, _ := strings.Cut(path, "/")
		return !resources.ResourceEnabled(corev1.SchemeGroupVersion.WithResource(resource))
	})
	info.VersionedResourcesStorageMap[corev1.SchemeGroupVersion.Version] = b.storage
	return info, nil
}

// storageBuilder collects storages until a constructor fails.
type storageBuilder struct {
	options generic.RESTOptionsGetter
	storage map[string]rest.Storage
	err     error
}

// withoutStatus adds a resource that has no subresources.
func withoutStatus[S rest.Storage](b *storageBuilder, resource string, build func(generic.RESTOptionsGetter) (S, error)) {
	if b.err == nil {
		b.storage[resource], b.err = build(b.options)
	}
}

// withStatus adds a resource whose only subresource is status.
func withStatus[S, T rest.Storage](b *storageBuilder, resource string, build func(generic.RESTOptionsGetter) (S, T, error)) {
	if b.err == nil {
		b.storage[resource], b.storage[resource+"/status"], b.err = build(b.options)
	}
}

// others builds the storages with other subresources or arguments that do not depend on each
// other.
func (p coreProvider) others(options generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	events, err := eventstore.NewREST(options, uint64(p.EventTTL.Seconds()))
	if err != nil {
		return nil, err
	}
	namespaces, namespaceStatus, namespaceFinalize, err := namespacestore.NewREST(options)
	if err != nil {
		return nil, err
	}
	controllers, err := replicationcontrollerstore.NewStorage(options)
	if err != nil {
		return nil, err
	}
	return map[string]rest.Storage{
		"componentstatuses":             p.componentStatuses(),
		"events":                        events,
		"namespaces":                    namespaceStorage{namespaces},
		"namespaces/finalize":           namespaceFinalize,
		"namespaces/status":             namespaceStatus,
		"replicationcontrollers":        controllers.Controller,
		"replicationcontrollers/scale":  controllers.Scale,
		"replicationcontrollers/status": controllers.Status,
	}, nil
}

// workloads builds the storages of pods and of what depends on them or what they depend on: the
// subresources of pods connect to the kubelets of nodes; a token of a service account may be bound
// to a pod, a secret or a node; a service is proxied to its pods.
func (p coreProvider) workloads(options generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	nodes, err := nodestore.NewStorage(options, *p.Kubelet, p.ProxyTransport)
	if err != nil {
		return nil, err
	}
	// The subresource eviction panics without a client of PodDisruptionBudgets.
	pods, err := podstore.NewStorage(options, nodes.KubeletConnectionInfo, p.ProxyTransport, p.Client.PolicyV1(), p.Authorizer)
	if err != nil {
		return nil, err
	}
	secrets, err := secretstore.NewREST(options)
	if err != nil {
		return nil, err
	}
	webhooks := p.Client.AdmissionregistrationV1()
	serviceAccounts, err := serviceaccountstore.NewREST(options, p.Tokens.Issuer, p.APIAudiences, p.Authorizer, p.Tokens.MaxExpiration,
		pods.Pod.Store, secrets.Store, nodes.Node.Store, webhooks.ValidatingWebhookConfigurations(), webhooks.MutatingWebhookConfigurations(),
		p.Tokens.ExtendExpiration, p.Tokens.MaxExtendedExpiration)
	if err != nil {
		return nil, err
	}
	services, serviceStatus, serviceProxy, err := servicestore.NewREST(options, p.ips.Primary, p.ips.ByFamily, p.nodePorts.Allocator,
		p.EndpointSlices, pods.Pod, p.ProxyTransport)
	if err != nil {
		return nil, err
	}
	storage := map[string]rest.Storage{
		"bindings":                 pods.LegacyBinding,
		"nodes":                    nodes.Node,
		"nodes/proxy":              nodes.Proxy,
		"nodes/status":             nodes.Status,
		"pods":                     pods.Pod,
		"pods/attach":              pods.Attach,
		"pods/binding":             pods.Binding,
		"pods/ephemeralcontainers": pods.EphemeralContainers,
		"pods/eviction":            pods.Eviction,
		"pods/exec":                pods.Exec,
		"pods/log":                 pods.Log,
		"pods/portforward":         pods.PortForward,
		"pods/proxy":               pods.Proxy,
		"pods/resize":              pods.Resize,
		"pods/status":              pods.Status,
		"secrets":                  secrets,
		"serviceaccounts":          serviceAccounts,
		"services":                 services,
		"services/proxy":           serviceProxy,
		"services/status":          serviceStatus,
	}
	if serviceAccounts.Token != nil {
		storage["serviceaccounts/token"] = serviceAccounts.Token
	}
	return storage, nil
}
