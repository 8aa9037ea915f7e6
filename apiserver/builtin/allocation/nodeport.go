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

// firstRepairInterval is between two tries of the first repair: nothing can be
// allocated before it succeeds.
const firstRepairInterval = time.Second

// Repair brings the taken ports in line with the Services, at once and then
// every interval, until ctx ends. It calls first after the first success.
func (n *NodePorts) Repair(ctx context.Context, first func()) {
	once, cancel := context.WithCancel(ctx)
	defer cancel()
	n.repairer(firstRepairInterval).RunUntil(func() {
		first()
		cancel()
	}, stopChannel(once))

	timer := time.NewTimer(n.interval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	n.repairer(n.interval).RunUntil(func() {}, stopChannel(ctx))
}

func (n *NodePorts) repairer(interval time.Duration) *portrepair.Repair {
	return portrepair.NewRepair(interval, n.client.CoreV1(), n.client.EventsV1(), n.ports, n.registry)
}

// ranges are the objects that state of ranges is kept in.
func ranges() (object, list runtime.Object) {
	return &api.RangeAllocation{}, &api.RangeAllocation{}
}
