package registry

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informers "k8s.io/client-go/informers/networking/v1"
	client "k8s.io/client-go/kubernetes/typed/networking/v1"
	listers "k8s.io/client-go/listers/networking/v1"
)

// ipAddressInformer is an IPAddress informer whose lister reads from the API if the cache
// has no IPAddress of a name. Upstream's repair loop sees Services and IPAddresses
// through two watches. A new Service may arrive before its IPAddress; the loop would
// then report in a warning event that the Service's cluster IP is not allocated.
type ipAddressInformer struct {
	informers.IPAddressInformer
	client client.IPAddressInterface
}

// Lister implements informers.IPAddressInformer.
func (c ipAddressInformer) Lister() listers.IPAddressLister {
	return cachedOrLiveIPAddressLister{IPAddressLister: c.IPAddressInformer.Lister(), client: c.client}
}

type cachedOrLiveIPAddressLister struct {
	listers.IPAddressLister
	client client.IPAddressInterface
}

// Get implements listers.IPAddressLister.
func (l cachedOrLiveIPAddressLister) Get(name string) (*networkingv1.IPAddress, error) {
	address, err := l.IPAddressLister.Get(name)
	if !apierrors.IsNotFound(err) {
		return address, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	return l.client.Get(ctx, name, metav1.GetOptions{})
}
