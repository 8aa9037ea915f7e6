package allocation

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informers "k8s.io/client-go/informers/networking/v1"
	client "k8s.io/client-go/kubernetes/typed/networking/v1"
	listers "k8s.io/client-go/listers/networking/v1"
)

// currentAddresses is an informer whose lister asks the API before it says that
// an address has no IPAddress. The repair loop sees Services and IPAddresses by
// two watches: a Service that has just been made may come first, and would be
// reported, by a warning event, as one that has a stolen address.
type currentAddresses struct {
	informers.IPAddressInformer
	client client.IPAddressInterface
}

// Lister implements informers.IPAddressInformer.
func (c currentAddresses) Lister() listers.IPAddressLister {
	return currentLister{IPAddressLister: c.IPAddressInformer.Lister(), client: c.client}
}

type currentLister struct {
	listers.IPAddressLister
	client client.IPAddressInterface
}

// Get implements listers.IPAddressLister.
func (l currentLister) Get(name string) (*networkingv1.IPAddress, error) {
	address, err := l.IPAddressLister.Get(name)
	if !apierrors.IsNotFound(err) {
		return address, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	return l.client.Get(ctx, name, metav1.GetOptions{})
}
