package registry

import (
	"sync"

	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	endpointstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	secretstore "k8s.io/kubernetes/pkg/registry/core/secret/storage"

	"byre/apiserver/registry/allocation"
)

// storageProvider builds the storages of all resources, as upstream's RESTStorageProviders
// do. Its function fields return storages that several resources share. Each function
// builds its storage in the first call and returns the same storage later, so that a
// disabled resource is still available to the storages that depend on it.
type storageProvider struct {
	Config
	ips       *allocation.ClusterIPs
	nodePorts *allocation.NodePorts

	endpoints func() (*endpointstore.REST, error)
	events    func() (*eventstore.REST, error)
	nodes     func() (*nodestore.NodeStorage, error)
	pods      func() (podstore.PodStorage, error)
	secrets   func() (*secretstore.REST, error)
	rbac      func() (rbacStorages, error)

	validatingPolicies func() (storages, error)
	mutatingPolicies   func() (storages, error)
	resolver           func() (resolver.ResourceResolver, error)
}

func newStorageProvider(c Config, ips *allocation.ClusterIPs, nodePorts *allocation.NodePorts) *storageProvider {
	p := &storageProvider{Config: c, ips: ips, nodePorts: nodePorts}
	p.endpoints = sync.OnceValues(func() (*endpointstore.REST, error) {
		return endpointstore.NewREST(p.RESTOptions)
	})
	p.events = sync.OnceValues(func() (*eventstore.REST, error) {
		return eventstore.NewREST(p.RESTOptions, uint64(p.EventTTL.Seconds()))
	})
	p.nodes = sync.OnceValues(func() (*nodestore.NodeStorage, error) {
		return nodestore.NewStorage(p.RESTOptions, *p.Kubelet, p.ProxyTransport)
	})
	p.pods = sync.OnceValues(p.newPods)
	p.secrets = sync.OnceValues(func() (*secretstore.REST, error) {
		return secretstore.NewREST(p.RESTOptions)
	})
	p.rbac = sync.OnceValues(p.newRBAC)
	p.validatingPolicies = sync.OnceValues(p.newValidatingPolicies)
	p.mutatingPolicies = sync.OnceValues(p.newMutatingPolicies)
	p.resolver = sync.OnceValues(func() (resolver.ResourceResolver, error) {
		return resolver.NewDiscoveryResourceResolver(p.Client.Discovery())
	})
	return p
}

// newPods builds the storages of pods. Their subresources connect to the kubelets of the
// nodes. The eviction subresource panics without a client of PodDisruptionBudgets.
func (p *storageProvider) newPods() (podstore.PodStorage, error) {
	nodes, err := p.nodes()
	if err != nil {
		return podstore.PodStorage{}, err
	}
	return podstore.NewStorage(p.RESTOptions, nodes.KubeletConnectionInfo, p.ProxyTransport, p.Client.PolicyV1(), p.Authorizer)
}

// getterOf returns the Getter of the main storage.
func getterOf(s storages) rest.Getter { return s[""].(rest.Getter) }
