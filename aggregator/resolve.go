package aggregator

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/util/proxy"
	listers "k8s.io/client-go/listers/core/v1"
)

// resolver finds where a Service is served.
type resolver struct {
	services listers.ServiceLister
	slices   proxy.EndpointSliceGetter
	// toEndpoints leads to the endpoints of a Service that has any, instead of to
	// its cluster IP: this server need not be on a node that routes these.
	toEndpoints bool
}

// ResolveEndpoint returns the scheme and host of a Service's port. It is
// upstream's ServiceResolver.
func (r *resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	service, err := r.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if r.toEndpoints && service.Spec.Type != corev1.ServiceTypeExternalName {
		slices, err := r.slices.GetEndpointSlices(namespace, name)
		if err != nil {
			return nil, err
		}
		if len(slices) > 0 {
			return proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
		}
	}
	return proxy.ResolveCluster(r.services, namespace, name, port)
}
