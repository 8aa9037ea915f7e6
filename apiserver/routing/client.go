package routing

import (
	"context"
	"errors"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
)

// lookupTimeout bounds a look-up: who resolves a Service gives no context.
const lookupTimeout = 10 * time.Second

// NewResolver returns a Resolver that asks client for each Service and its endpoints
// anew: connections to webhooks are seldom opened, and nothing need be followed.
func NewResolver(client kubernetes.Interface, toEndpoints bool, self *url.URL) *Resolver {
	return &Resolver{Services: services{client}, Slices: slices{client}, ToEndpoints: toEndpoints, Self: self}
}

type services struct{ client kubernetes.Interface }

func (s services) Services(namespace string) listers.ServiceNamespaceLister {
	return namespacedServices{s.client, namespace}
}

func (services) List(labels.Selector) ([]*corev1.Service, error) { return nil, errors.ErrUnsupported }

type namespacedServices struct {
	client    kubernetes.Interface
	namespace string
}

func (n namespacedServices) Get(name string) (*corev1.Service, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return n.client.CoreV1().Services(n.namespace).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
}

func (namespacedServices) List(labels.Selector) ([]*corev1.Service, error) {
	return nil, errors.ErrUnsupported
}

type slices struct{ client kubernetes.Interface }

func (s slices) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	list, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector:   labels.Set{discoveryv1.LabelServiceName: service}.String(),
		ResourceVersion: "0",
	})
	if err != nil {
		return nil, err
	}
	found := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		found[i] = &list.Items[i]
	}
	return found, nil
}
