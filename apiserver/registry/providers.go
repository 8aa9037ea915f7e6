package registry

import (
	"context"
	"crypto/tls"
	"maps"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/probe"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
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
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	lifecyclerest "k8s.io/kubernetes/pkg/registry/lifecycle/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"
)

// storageProvider builds the storages of one group. It is upstream's RESTStorageProvider, which
// pkg/controlplane/apiserver declares.
type storageProvider interface {
	GroupName() string
	NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

// providers returns the providers of all groups. The list is that of upstream's
// CompletedConfig.StorageProviders (pkg/controlplane/instance.go), and so is its order, in which
// clients see the groups. The post-start hooks of the providers are not used: package bootstrap
// says why.
func (c Config) providers(core coreProvider) []storageProvider {
	return []storageProvider{
		core,
		apiserverinternalrest.StorageProvider{},
		authenticationrest.RESTStorageProvider{Authenticator: c.Authenticator, APIAudiences: c.APIAudiences},
		authorizationrest.RESTStorageProvider{Authorizer: c.Authorizer, RuleResolver: c.RuleResolver},
		autoscalingrest.RESTStorageProvider{},
		batchrest.RESTStorageProvider{},
		certificatesrest.RESTStorageProvider{Authorizer: c.Authorizer},
		coordinationrest.RESTStorageProvider{},
		discoveryrest.StorageProvider{},
		lifecyclerest.RESTStorageProvider{},
		networkingrest.RESTStorageProvider{},
		noderest.RESTStorageProvider{},
		policyrest.RESTStorageProvider{},
		rbacrest.RESTStorageProvider{Authorizer: c.Authorizer},
		schedulingrest.RESTStorageProvider{},
		storagerest.RESTStorageProvider{},
		svmrest.RESTStorageProvider{},
		flowcontrolrest.RESTStorageProvider{InformerFactory: c.Informers},
		appsrest.StorageProvider{},
		admissionregistrationrest.RESTStorageProvider{Authorizer: c.Authorizer, DiscoveryClient: c.Client.Discovery()},
		eventsrest.RESTStorageProvider{TTL: c.EventTTL},
		resourcerest.RESTStorageProvider{NamespaceClient: c.Client.CoreV1().Namespaces(), Authorizer: c.Authorizer},
	}
}

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
func (p coreProvider) NewRESTStorage(
	resources serverstorage.APIResourceConfigSource, options generic.RESTOptionsGetter,
) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(p.GroupName(), legacyscheme.Scheme, legacyscheme.ParameterCodec,
		legacyscheme.Codecs)
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
func withoutStatus[S rest.Storage](
	b *storageBuilder, resource string, build func(generic.RESTOptionsGetter) (S, error),
) {
	if b.err == nil {
		b.storage[resource], b.err = build(b.options)
	}
}

// withStatus adds a resource whose only subresource is status.
func withStatus[S, T rest.Storage](
	b *storageBuilder, resource string, build func(generic.RESTOptionsGetter) (S, T, error),
) {
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
	pods, err := podstore.NewStorage(options, nodes.KubeletConnectionInfo, p.ProxyTransport, p.Client.PolicyV1(),
		p.Authorizer)
	if err != nil {
		return nil, err
	}
	secrets, err := secretstore.NewREST(options)
	if err != nil {
		return nil, err
	}
	webhooks := p.Client.AdmissionregistrationV1()
	serviceAccounts, err := serviceaccountstore.NewREST(options, p.Tokens.Issuer, p.APIAudiences, p.Authorizer,
		p.Tokens.MaxExpiration,
		pods.Pod.Store, secrets.Store, nodes.Node.Store, webhooks.ValidatingWebhookConfigurations(),
		webhooks.MutatingWebhookConfigurations(),
		p.Tokens.ExtendExpiration, p.Tokens.MaxExtendedExpiration)
	if err != nil {
		return nil, err
	}
	services, serviceStatus, serviceProxy, err := servicestore.NewREST(options, p.ips.Primary, p.ips.ByFamily,
		p.nodePorts.Allocator,
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

// The secure ports of the other components, as in k8s.io/kubernetes/cmd/kube-scheduler
// and kube-controller-manager. Those packages are not imported, because they import the
// generic API server.
const (
	controllerManagerPort = 10257
	schedulerPort         = 10259
)

// probeTimeout bounds the probe of the store; upstream's probe of etcd has the same
// limit.
const probeTimeout = 20 * time.Second

// componentStatuses reports the readiness of the store under the name etcd-0, which
// clients of this deprecated resource look for. It probes the other components at the
// addresses that upstream probes, unless this process does their work.
func (p coreProvider) componentStatuses() rest.Storage {
	return componentstatus.NewStorage(func() map[string]componentstatus.Server {
		servers := map[string]componentstatus.Server{
			"controller-manager": localHealthz(controllerManagerPort),
			"scheduler":          localHealthz(schedulerPort),
			"etcd-0":             storeProbe(p.StoreReady),
		}
		for _, name := range p.InProcess {
			servers[name] = storeProbe(func(context.Context) error { return nil })
		}
		return servers
	})
}

func localHealthz(port int) componentstatus.Server {
	return &componentstatus.HttpServer{
		EnableHTTPS: true,
		TLSConfig:   &tls.Config{InsecureSkipVerify: true},
		Addr:        "127.0.0.1",
		Port:        port,
		Path:        "/healthz",
	}
}

// storeProbe implements componentstatus.Server by calling Config.StoreReady.
type storeProbe func(context.Context) error

func (p storeProbe) DoServerCheck() (probe.Result, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if err := p(ctx); err != nil {
		return probe.Failure, "", err
	}
	return probe.Success, "ok", nil
}

// namespaceStorage is upstream's storage of namespaces with the registry that package handlers
// reads from. Upstream keeps the registry in an unexported field, and the methods Get, List and
// Watch of its storage do nothing but call the registry's (TestNamespaces_ReadTheirRegistry).
// Writes must go through the storage.
type namespaceStorage struct{ *namespacestore.REST }

// Registry returns the registry of the embedded storage.
func (n namespaceStorage) Registry() *genericregistry.Store {
	return (*genericregistry.Store)(reflect.ValueOf(n.REST).Elem().FieldByName("store").UnsafePointer())
}
