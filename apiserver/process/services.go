package process

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/util/proxy"
	listers "k8s.io/client-go/listers/core/v1"

	"byre/apiserver/storage"
)

// ServiceResolver resolves a Service to an address. It implements the ServiceResolver of
// upstream's webhooks and aggregator.
type ServiceResolver struct {
	Services listers.ServiceLister
	Slices   proxy.EndpointSliceGetter
	// ToEndpoints resolves a Service to one of its endpoints, if it has any, instead of
	// to its cluster IP: this server need not be on a node that routes cluster IPs.
	ToEndpoints bool
	// Self is the URL of this server's own listener, to which the Service
	// default/kubernetes is resolved. If it is nil, that Service is resolved like any
	// other.
	Self *url.URL
}

// selfPort is the port of the Service kubernetes.
const selfPort = 443

// ResolveEndpoint returns the scheme and host of a Service's port.
func (r *ServiceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if r.Self != nil && namespace == metav1.NamespaceDefault && name == "kubernetes" && port == selfPort {
		return r.Self, nil
	}
	service, err := r.Services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if r.ToEndpoints && service.Spec.Type != corev1.ServiceTypeExternalName {
		slices, err := r.Slices.GetEndpointSlices(namespace, name)
		if err != nil {
			return nil, err
		}
		if len(slices) > 0 {
			return proxy.ResolveEndpoint(r.Services, r.Slices, namespace, name, port)
		}
	}
	return proxy.ResolveCluster(r.Services, namespace, name, port)
}

// NewServiceResolver returns a Resolver that reads a Service and its endpoints at each call.
// Connections to webhooks are opened so seldom that no informer needs to follow
// Services for them.
func NewServiceResolver(reader *storage.LookupReader, toEndpoints bool, self *url.URL) *ServiceResolver {
	return &ServiceResolver{Services: services{reader}, Slices: endpointSlices{reader}, ToEndpoints: toEndpoints,
		Self: self}
}

type services struct{ reader *storage.LookupReader }

func (s services) Services(namespace string) listers.ServiceNamespaceLister {
	return s.reader.Services.Lister(namespace)
}

func (s services) List(selector labels.Selector) ([]*corev1.Service, error) {
	return s.reader.Services.Lister(metav1.NamespaceAll).List(selector)
}

type endpointSlices struct{ reader *storage.LookupReader }

func (s endpointSlices) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	return s.reader.EndpointSlices.Lister(namespace).List(
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
}
