package process

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/proxy"
	listers "k8s.io/client-go/listers/core/v1"
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
