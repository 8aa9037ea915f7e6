package lookup

import (
	"k8s.io/api/core/v1"
	discoveryapi "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"byre/apiserver/objectstore"
)

// NewClient returns a clientset that reads some objects from the stores of this process:
// GET of ServiceAccounts, Pods, Secrets, Nodes and Services, and LIST of Pods and
// EndpointSlices. All other calls go to client. stores may return nil for a resource that
// is not served yet; a read then fails with ServiceUnavailable.
func NewClient(client kubernetes.Interface, stores func(schema.GroupResource) *objectstore.Store) kubernetes.Interface {
	return storeClient{client, coreV1Client{client.CoreV1(), stores}, discoveryV1Client{client.DiscoveryV1(), stores}}
}

type storeClient struct {
	kubernetes.Interface
	core      coreV1Client
	discovery discoveryV1Client
}

func (d storeClient) CoreV1() corev1.CoreV1Interface { return d.core }

func (d storeClient) DiscoveryV1() discoveryv1.DiscoveryV1Interface { return d.discovery }

type coreV1Client struct {
	corev1.CoreV1Interface
	stores func(schema.GroupResource) *objectstore.Store
}

func (c coreV1Client) ServiceAccounts(namespace string) corev1.ServiceAccountInterface {
	return serviceAccounts{c.CoreV1Interface.ServiceAccounts(namespace), reader[v1.ServiceAccount]{c.stores, v1.Resource("serviceaccounts"), namespace}}
}

func (c coreV1Client) Pods(namespace string) corev1.PodInterface {
	return pods{c.CoreV1Interface.Pods(namespace), reader[v1.Pod]{c.stores, v1.Resource("pods"), namespace}}
}

func (c coreV1Client) Secrets(namespace string) corev1.SecretInterface {
	return secrets{c.CoreV1Interface.Secrets(namespace), reader[v1.Secret]{c.stores, v1.Resource("secrets"), namespace}}
}

func (c coreV1Client) Nodes() corev1.NodeInterface {
	return nodes{c.CoreV1Interface.Nodes(), reader[v1.Node]{c.stores, v1.Resource("nodes"), ""}}
}

func (c coreV1Client) Services(namespace string) corev1.ServiceInterface {
	return services{c.CoreV1Interface.Services(namespace), reader[v1.Service]{c.stores, v1.Resource("services"), namespace}}
}

type discoveryV1Client struct {
	discoveryv1.DiscoveryV1Interface
	stores func(schema.GroupResource) *objectstore.Store
}

func (d discoveryV1Client) EndpointSlices(namespace string) discoveryv1.EndpointSliceInterface {
	return endpointSlices{
		d.DiscoveryV1Interface.EndpointSlices(namespace),
		reader[discoveryapi.EndpointSlice]{d.stores, discoveryapi.Resource("endpointslices"), namespace},
	}
}
