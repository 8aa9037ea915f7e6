package allocation

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	client "k8s.io/client-go/kubernetes/typed/networking/v1"
)

// repairClient is the client of upstream's repair loop, several of which run at the same time, one in each replica.
type repairClient struct{ kubernetes.Interface }

// NetworkingV1 implements kubernetes.Interface.
func (c repairClient) NetworkingV1() client.NetworkingV1Interface {
	return repairNetworking{c.Interface.NetworkingV1()}
}

type repairNetworking struct{ client.NetworkingV1Interface }

// IPAddresses implements client.NetworkingV1Interface.
func (n repairNetworking) IPAddresses() client.IPAddressInterface {
	return repairAddresses{n.NetworkingV1Interface.IPAddresses()}
}

type repairAddresses struct{ client.IPAddressInterface }

// Create implements client.IPAddressInterface. An IPAddress that exists is a success: another replica has created it.
// Upstream's loop checks it like any other when it arrives; it would give up its first repair for the error.
func (a repairAddresses) Create(ctx context.Context, address *networkingv1.IPAddress, o metav1.CreateOptions) (*networkingv1.IPAddress, error) {
	created, err := a.IPAddressInterface.Create(ctx, address, o)
	if apierrors.IsAlreadyExists(err) {
		return address, nil
	}
	return created, err
}
