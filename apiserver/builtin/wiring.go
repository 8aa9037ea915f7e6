package builtin

import (
	"sync"

	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	endpointstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	secretstore "k8s.io/kubernetes/pkg/registry/core/secret/storage"

	"byre/apiserver/builtin/allocation"
)

// wiring is a Config with the storages that others are built from. Each of its
// functions builds at its first call and answers the same from then on, so that
// a resource which is turned off is still there for those that need it.
type wiring struct {
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

func newWiring(c Config, ips *allocation.ClusterIPs, nodePorts *allocation.NodePorts) *wiring {
	w := &wiring{Config: c, ips: ips, nodePorts: nodePorts}
	w.endpoints = sync.OnceValues(func() (*endpointstore.REST, error) {
		return endpointstore.NewREST(w.RESTOptions)
	})
	w.events = sync.OnceValues(func() (*eventstore.REST, error) {
		return eventstore.NewREST(w.RESTOptions, uint64(w.EventTTL.Seconds()))
	})
	w.nodes = sync.OnceValues(func() (*nodestore.NodeStorage, error) {
		return nodestore.NewStorage(w.RESTOptions, *w.Kubelet, w.ProxyTransport)
	})
	w.pods = sync.OnceValues(w.newPods)
	w.secrets = sync.OnceValues(func() (*secretstore.REST, error) {
		return secretstore.NewREST(w.RESTOptions)
	})
	w.rbac = sync.OnceValues(w.newRBAC)
	w.validatingPolicies = sync.OnceValues(w.newValidatingPolicies)
	w.mutatingPolicies = sync.OnceValues(w.newMutatingPolicies)
	w.resolver = sync.OnceValues(func() (resolver.ResourceResolver, error) {
		return resolver.NewDiscoveryResourceResolver(w.Client.Discovery())
	})
	return w
}

// newPods builds pods over the nodes, whose kubelets their subresources go to.
// Without a client of disruption budgets an eviction of a running pod would panic.
func (w *wiring) newPods() (podstore.PodStorage, error) {
	nodes, err := w.nodes()
	if err != nil {
		return podstore.PodStorage{}, err
	}
	return podstore.NewStorage(w.RESTOptions, nodes.KubeletConnectionInfo, w.ProxyTransport, w.Client.PolicyV1(), w.Authorizer)
}

// getter is the part of a storage that other storages look things up by.
func getter(s storages) rest.Getter { return s[""].(rest.Getter) }
