package allocation

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	repair *iprepair.RepairIPAddress
	// run makes sure that repair runs once: it ends what its constructor started.
	run sync.Once
}

// Resync tells a factory of informers that the repair goes over all objects of
// these types periodically; a factory without it repairs what changes only.
func Resync(interval time.Duration) map[metav1.Object]time.Duration {
	return map[metav1.Object]time.Duration{&corev1.Service{}: interval, &networkingv1.IPAddress{}: interval}
}

// NewClusterIPs makes allocators for the families of the two ranges; secondary
// may be zero. The ranges that addresses come from are those of the ServiceCIDR
// objects. The allocators follow these at once, until Stop: upstream's
// constructor starts them. The factory's informers are started after it; see
// Resync for the factory.
func NewClusterIPs(client kubernetes.Interface, factory informers.SharedInformerFactory, primary, secondary net.IPNet, interval time.Duration) (*ClusterIPs, error) {
	c := &ClusterIPs{
		ByFamily: map[api.IPFamily]ipallocator.Interface{},
		repair: iprepair.NewRepairIPAddress(interval, client, factory.Core().V1().Services(),
			factory.Networking().V1().ServiceCIDRs(), currentAddresses{
				IPAddressInformer: factory.Networking().V1().IPAddresses(),
				client:            client.NetworkingV1().IPAddresses(),
			}),
	}
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
// returns early, with an error, when the first pass fails for good. It is called
// once.
func (c *ClusterIPs) Repair(ctx context.Context, first func()) error {
	c.run.Do(func() { c.repair.RunUntil(first, stopChannel(ctx)) })
	if ctx.Err() == nil {
		return errors.New("the first repair of the cluster IPs failed")
	}
	return nil
}

// Stop ends the allocators, and what a Repair that never ran would have ended;
// it may be called more than once.
func (c *ClusterIPs) Stop() {
	for _, allocator := range c.ByFamily {
		allocator.Destroy()
	}
	c.run.Do(func() {
		stopped := make(chan struct{})
		close(stopped)
		c.repair.RunUntil(func() {}, stopped)
	})
}
