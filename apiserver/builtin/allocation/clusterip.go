package allocation

import (
	"context"
	"errors"
	"net"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	iprepair "k8s.io/kubernetes/pkg/registry/core/service/ipallocator/controller"
	netutils "k8s.io/utils/net"
)

// ClusterIPs allocates the addresses of Services, in one or two IP families.
type ClusterIPs struct {
	// Primary is the family that a Service gets which asks for none.
	Primary api.IPFamily
	// ByFamily has an allocator for each family of the configured ranges.
	ByFamily map[api.IPFamily]ipallocator.Interface

	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	interval  time.Duration
}

// NewClusterIPs makes allocators for the families of the two ranges; secondary
// may be zero. The ranges that addresses come from are those of the ServiceCIDR
// objects. The allocators follow these at once, until Stop: upstream's
// constructor starts them.
func NewClusterIPs(client kubernetes.Interface, factory informers.SharedInformerFactory, primary, secondary net.IPNet, interval time.Duration) (*ClusterIPs, error) {
	c := &ClusterIPs{ByFamily: map[api.IPFamily]ipallocator.Interface{}, client: client, informers: factory, interval: interval}
	// Asked for here, so that the factory's Start finds it.
	factory.Core().V1().Services().Informer()
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

// Repair brings the IPAddress objects in line with the Services, at once and
// then as they change, until ctx ends. It calls first after the first pass. It
// returns early, with an error, when the first pass fails for good.
func (c *ClusterIPs) Repair(ctx context.Context, first func()) error {
	loop := iprepair.NewRepairIPAddress(c.interval, c.client, c.informers.Core().V1().Services(),
		c.informers.Networking().V1().ServiceCIDRs(), c.informers.Networking().V1().IPAddresses())
	loop.RunUntil(first, stopChannel(ctx))
	if ctx.Err() == nil {
		return errors.New("the first repair of the cluster IPs failed")
	}
	return nil
}

// Stop ends the allocators; it may be called more than once.
func (c *ClusterIPs) Stop() {
	for _, allocator := range c.ByFamily {
		allocator.Destroy()
	}
}
