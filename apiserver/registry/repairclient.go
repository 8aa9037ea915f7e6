package registry

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	client "k8s.io/client-go/kubernetes/typed/networking/v1"
	listers "k8s.io/client-go/listers/networking/v1"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	netutils "k8s.io/utils/net"
)

// repairClient is the client of upstream's repair loop, several of which run at the same time, one in each replica.
type repairClient struct {
	kubernetes.Interface
	cached listers.IPAddressLister // the one by which the loop judges
}

// NetworkingV1 implements kubernetes.Interface.
func (c repairClient) NetworkingV1() client.NetworkingV1Interface {
	return repairNetworking{c.Interface.NetworkingV1(), c}
}

type repairNetworking struct {
	client.NetworkingV1Interface
	repairClient repairClient
}

// IPAddresses implements client.NetworkingV1Interface.
func (n repairNetworking) IPAddresses() client.IPAddressInterface {
	return repairAddresses{n.NetworkingV1Interface.IPAddresses(), n.repairClient}
}

type repairAddresses struct {
	client.IPAddressInterface
	repairClient repairClient
}

// Create implements client.IPAddressInterface. An IPAddress that exists is a success: another replica has created it.
// Upstream's loop checks it like any other when it arrives; it would give up its first repair for the error.
func (a repairAddresses) Create(ctx context.Context, address *networkingv1.IPAddress, o metav1.CreateOptions) (*networkingv1.IPAddress, error) {
	created, err := a.IPAddressInterface.Create(ctx, address, o)
	if apierrors.IsAlreadyExists(err) {
		return address, nil
	}
	return created, err
}

// Delete implements client.IPAddressInterface. Upstream's loop deletes what has no Service in the cache of its informer,
// which lags for as long as the process was suspended. If a live Service has the address, two Services would then get it:
// Delete fails, and the loop tries again. The preconditions refuse the deletion of an IPAddress that has changed since the
// loop has read it.
func (a repairAddresses) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	address, err := a.repairClient.cached.Get(name)
	if err != nil {
		return err
	}
	if parent := address.Spec.ParentRef; isManaged(address) && parent != nil && parent.Group == "" && parent.Resource == "services" {
		service, err := a.repairClient.CoreV1().Services(parent.Namespace).Get(ctx, parent.Name, metav1.GetOptions{})
		switch {
		case err == nil && slices.Contains(service.Spec.ClusterIPs, name):
			return apierrors.NewConflict(networkingv1.Resource("ipaddresses"), name, errors.New("its Service exists"))
		case err != nil && !apierrors.IsNotFound(err):
			return err
		}
	}
	o.Preconditions = &metav1.Preconditions{UID: &address.UID, ResourceVersion: &address.ResourceVersion}
	return a.IPAddressInterface.Delete(ctx, name, o)
}

// isManaged says whether an IPAddress has the labels of upstream's allocator. The repair loop deletes and creates one of a
// Service that has not.
func isManaged(address *networkingv1.IPAddress) bool {
	family := corev1.IPv4Protocol
	if netutils.IsIPv6String(address.Name) {
		family = corev1.IPv6Protocol
	}
	return address.Labels[networkingv1.LabelIPAddressFamily] == string(family) && address.Labels[networkingv1.LabelManagedBy] == ipallocator.ControllerName
}
