package process

import (
	"context"
	"errors"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/util/proxy"
	listers "k8s.io/client-go/listers/core/v1"

	"byre/apiserver/storage"
)

// NewServiceResolver returns a Resolver that reads a Service and its endpoints at each call.
// Connections to webhooks are opened so seldom that no informer needs to follow
// Services for them.
func NewServiceResolver(reader *storage.LookupReader, toEndpoints bool, self *url.URL) *ServiceResolver {
	return &ServiceResolver{Services: services{reader}, Slices: endpointSlices{reader}, ToEndpoints: toEndpoints, Self: self}
}

type services struct{ reader *storage.LookupReader }

func (s services) Services(namespace string) listers.ServiceNamespaceLister {
	return namespacedServices{s.reader, namespace}
}

func (services) List(labels.Selector) ([]*corev1.Service, error) { return nil, errors.ErrUnsupported }

type namespacedServices struct {
	reader    *storage.LookupReader
	namespace string
}

func (n namespacedServices) Get(name string) (*corev1.Service, error) {
	ctx, cancel := context.WithTimeout(context.Background(), storage.LookupTimeout)
	defer cancel()
	return n.reader.Services.GetCached(ctx, n.namespace, name)
}

func (namespacedServices) List(labels.Selector) ([]*corev1.Service, error) {
	return nil, errors.ErrUnsupported
}

// NewEndpointSliceGetter returns what finds the EndpointSlices of a Service, from the watch
// cache, at each call.
func NewEndpointSliceGetter(reader *storage.LookupReader) proxy.EndpointSliceGetter {
	return endpointSlices{reader}
}

type endpointSlices struct{ reader *storage.LookupReader }

func (s endpointSlices) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(context.Background(), storage.LookupTimeout)
	defer cancel()
	return s.reader.EndpointSlices.ListCached(ctx, namespace, labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
}
