package admission

import (
	"context"
	"errors"
	"net/url"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
)

// lookupTimeout bounds the look-up of an object whose lister has no
// context of the request.
const lookupTimeout = 10 * time.Second

// clusterIPs finds a webhook's Service at its cluster IP (or external name). It
// looks Services up one by one, as connections to webhooks are seldom opened.
type clusterIPs struct {
	client corev1.CoreV1Interface
}

// ClusterIPs finds the Services of webhooks at their cluster IPs, as the plugins
// here do, for others that call webhooks.
func ClusterIPs(client corev1.CoreV1Interface) webhook.ServiceResolver { return clusterIPs{client} }

func (c clusterIPs) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(c, namespace, name, port)
}

// Services and List make clusterIPs the lister that ResolveCluster asks.
func (c clusterIPs) Services(namespace string) listers.ServiceNamespaceLister {
	return namespacedServices{c.client.Services(namespace)}
}

func (c clusterIPs) List(labels.Selector) ([]*v1.Service, error) { return nil, errors.ErrUnsupported }

type namespacedServices struct {
	client corev1.ServiceInterface
}

func (n namespacedServices) Get(name string) (*v1.Service, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return n.client.Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
}

func (n namespacedServices) List(labels.Selector) ([]*v1.Service, error) {
	return nil, errors.ErrUnsupported
}
