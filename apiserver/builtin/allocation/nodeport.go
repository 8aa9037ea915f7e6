package allocation

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	portrepair "k8s.io/kubernetes/pkg/registry/core/service/portallocator/controller"
)

// NodePorts allocates node ports out of one range.
type NodePorts struct {
	// Allocator is what the Services' storage takes ports from.
	Allocator *portallocator.PortAllocator

	ports    utilnet.PortRange
	registry *bitmap
	client   kubernetes.Interface
	interval time.Duration
}

// NewNodePorts keeps the ports that are taken where options says that
// servicenodeportallocations are kept. Repairs read Services over client, every
// interval.
func NewNodePorts(options generic.RESTOptionsGetter, ports utilnet.PortRange, client kubernetes.Interface, interval time.Duration) (*NodePorts, error) {
	n := &NodePorts{ports: ports, client: client, interval: interval}
	gr := api.Resource("servicenodeportallocations")
	store, prefix, err := rawStorage(options, gr, ranges)
	if err != nil {
		return nil, err
	}
	n.Allocator, err = portallocator.New(ports, func(max int, rangeSpec string, offset int) (allocator.Interface, error) {
		n.registry = &bitmap{
			storage:  store,
			key:      prefix + "/servicenodeports",
			resource: gr,
			empty: func() allocator.Snapshottable {
				return allocator.NewAllocationMapWithOffset(max, rangeSpec, offset)
			},
		}
		return n.registry, nil
	})
	if err != nil {
		return nil, err
	}
	n.Allocator.EnableMetrics()
	return n, nil
}

// Repair brings the taken ports in line with the Services, at once and then
// every interval, until ctx ends. It calls first after the first success.
func (n *NodePorts) Repair(ctx context.Context, first func()) {
	loop := portrepair.NewRepair(n.interval, n.client.CoreV1(), n.client.EventsV1(), n.ports, n.registry)
	loop.RunUntil(first, stopChannel(ctx))
}

// ranges are the objects that state of ranges is kept in.
func ranges() (object, list runtime.Object) {
	return &api.RangeAllocation{}, &api.RangeAllocation{}
}
