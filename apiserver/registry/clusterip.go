package registry

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	client "k8s.io/client-go/kubernetes/typed/networking/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	iprepair "k8s.io/kubernetes/pkg/registry/core/service/ipallocator/controller"
	netutils "k8s.io/utils/net"
)

// ClusterIPs allocates the cluster IPs of Services in one or two IP families.
type ClusterIPs struct {
	// Primary is the family of a Service that requests none.
	Primary api.IPFamily
	// ByFamily has an allocator for each family of the configured ranges.
	ByFamily map[api.IPFamily]ipallocator.Interface

	ranges networkinglisters.ServiceCIDRLister
	// newRepair makes upstream's repair loop. Its constructor starts goroutines, which RunUntil ends.
	newRepair func() *iprepair.RepairIPAddress
}

// repairInterval is the time between two repairs; kube-apiserver's default.
const repairInterval = 3 * time.Minute

// AllocatorResync returns the argument of informers.WithCustomResyncConfig with which the caller
// makes the informers that the repair loop uses. With it the loop checks all Services and
// IPAddresses every repairInterval; without it, only objects that change.
func AllocatorResync() map[metav1.Object]time.Duration {
	return map[metav1.Object]time.Duration{&corev1.Service{}: repairInterval, &networkingv1.IPAddress{}: repairInterval}
}

// NewClusterIPs builds the allocators of the families of primary and secondary;
// secondary may be zero. The allocators take addresses from the ranges of the
// ServiceCIDR objects. Upstream's constructor starts goroutines, which Stop ends. The
// caller makes factory with CustomResync and starts it after NewClusterIPs.
func NewClusterIPs(
	client kubernetes.Interface, factory informers.SharedInformerFactory, primary, secondary net.IPNet,
) (*ClusterIPs, error) {
	c := &ClusterIPs{
		ByFamily: map[api.IPFamily]ipallocator.Interface{},
		ranges:   factory.Networking().V1().ServiceCIDRs().Lister(),
		newRepair: func() *iprepair.RepairIPAddress {
			addresses := ipAddressInformer{factory.Networking().V1().IPAddresses(), client.NetworkingV1().IPAddresses()}
			return iprepair.NewRepairIPAddress(repairInterval, repairClient{client, addresses.Lister()},
				factory.Core().V1().Services(), factory.Networking().V1().ServiceCIDRs(), addresses)
		},
	}
	factory.Core().V1().Services().Informer() // the factory starts what it knows
	for _, cidr := range []net.IPNet{primary, secondary} {
		if cidr.IP == nil {
			continue
		}
		allocator, err := ipallocator.NewMetaAllocator(client.NetworkingV1(),
			factory.Networking().V1().ServiceCIDRs(), factory.Networking().V1().IPAddresses(),
			netutils.IsIPv6CIDR(&cidr), nil)
		if err != nil {
			c.Stop()
			return nil, err
		}
		family := allocator.IPFamily()
		if c.ByFamily[family] != nil {
			allocator.Destroy()
			c.Stop()
			return nil, errors.New("both service ranges are of one IP family")
		}
		allocator.EnableMetrics()
		c.ByFamily[family] = allocator
		if c.Primary == "" {
			c.Primary = family
		}
	}
	return c, nil
}

// maxFirstRepairInterval bounds the time between two attempts of the first repair. It is not short, because each
// attempt leaves its event handlers, which do nothing, in the informers.
const maxFirstRepairInterval = 30 * time.Second

// Repair reconciles the IPAddress objects with the Services, at once and then whenever
// they change, until ctx ends. It calls onFirstSuccess after the first repair, once the
// allocators give out addresses.
func (c *ClusterIPs) Repair(ctx context.Context, onFirstSuccess func()) {
	repaired := func() {
		// Upstream's allocators learn the ranges by themselves, up to 0.1 s after the informers.
		if wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, c.knowRanges) == nil {
			onFirstSuccess()
		}
	}
	for interval := firstRepairInterval; ctx.Err() == nil; interval = min(2*interval, maxFirstRepairInterval) {
		attempt, cancel := context.WithCancel(ctx)
		c.newRepair().RunUntil(repaired, stopChannel(attempt)) // returns before ctx ends if the first repair fails
		cancel()
		select {
		case <-time.After(interval):
		case <-ctx.Done():
		}
	}
}

// knowRanges says whether each allocator has taken in the ServiceCIDRs that have a range of its family.
func (c *ClusterIPs) knowRanges(context.Context) (bool, error) {
	serviceCIDRs, err := c.ranges.List(labels.Everything())
	for _, serviceCIDR := range serviceCIDRs {
		for _, cidr := range serviceCIDR.Spec.CIDRs {
			family := api.IPv4Protocol
			if prefix, err := netip.ParsePrefix(cidr); err == nil && prefix.Addr().Is6() {
				if prefix.Bits() < 64 {
					continue // ipallocator.NewIPAllocator refuses it
				}
				family = api.IPv6Protocol
			}
			if a, ok := c.ByFamily[family].(*ipallocator.MetaAllocator); ok && a.Free()+a.Used() == 0 {
				return false, nil
			}
		}
	}
	return true, err
}

// Stop stops the allocators. It may be called more than once.
func (c *ClusterIPs) Stop() {
	for _, allocator := range c.ByFamily {
		allocator.Destroy()
	}
}

// ipAddressInformer is an IPAddress informer whose lister reads from the API if the cache
// has no IPAddress of a name. Upstream's repair loop sees Services and IPAddresses
// through two watches. A new Service may arrive before its IPAddress; the loop would
// then report in a warning event that the Service's cluster IP is not allocated.
type ipAddressInformer struct {
	networkinginformers.IPAddressInformer
	client client.IPAddressInterface
}

// Lister implements informers.IPAddressInformer.
func (c ipAddressInformer) Lister() networkinglisters.IPAddressLister {
	return cachedOrLiveIPAddressLister{IPAddressLister: c.IPAddressInformer.Lister(), client: c.client}
}

type cachedOrLiveIPAddressLister struct {
	networkinglisters.IPAddressLister
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

// repairClient is the client of upstream's repair loop, several of which run at the same time, one in each replica.
type repairClient struct {
	kubernetes.Interface
	cached networkinglisters.IPAddressLister // the one by which the loop judges
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
func (a repairAddresses) Create(
	ctx context.Context, address *networkingv1.IPAddress, o metav1.CreateOptions,
) (*networkingv1.IPAddress, error) {
	created, err := a.IPAddressInterface.Create(ctx, address, o)
	if apierrors.IsAlreadyExists(err) {
		return address, nil
	}
	return created, err
}

// Delete implements client.IPAddressInterface. Upstream's loop deletes what has no Service in the cache of its
// informer, which lags for as long as the process was suspended. If a live Service has the address, two Services would
// then get it: Delete fails, and the loop tries again. The preconditions refuse the deletion of an IPAddress that has
// changed since the loop has read it.
func (a repairAddresses) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	address, err := a.repairClient.cached.Get(name)
	if err != nil {
		return err
	}
	if parent := address.Spec.ParentRef; isManaged(address) && parent != nil && parent.Group == "" &&
		parent.Resource == "services" {
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

// isManaged says whether an IPAddress has the labels of upstream's allocator. The repair loop deletes and creates one
// of a Service that has not.
func isManaged(address *networkingv1.IPAddress) bool {
	family := corev1.IPv4Protocol
	if netutils.IsIPv6String(address.Name) {
		family = corev1.IPv6Protocol
	}
	return address.Labels[networkingv1.LabelIPAddressFamily] == string(family) &&
		address.Labels[networkingv1.LabelManagedBy] == ipallocator.ControllerName
}
