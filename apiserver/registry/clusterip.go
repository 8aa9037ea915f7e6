package registry

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
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
func NewClusterIPs(client kubernetes.Interface, factory informers.SharedInformerFactory, primary, secondary net.IPNet) (*ClusterIPs, error) {
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

// maxFirstRepairInterval bounds the time between two attempts of the first repair. It is not short, because each attempt
// leaves its event handlers, which do nothing, in the informers.
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
