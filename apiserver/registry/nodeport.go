package registry

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

	"byre/apiserver/storage"
)

// NodePorts allocates node ports from one range.
type NodePorts struct {
	// Allocator is the allocator that the storage of Services uses.
	Allocator *portallocator.PortAllocator

	ports    utilnet.PortRange
	registry *bitmap
	client   kubernetes.Interface
}

// NewNodePorts builds the allocator. It stores the allocated ports in the storage that
// options returns for the resource servicenodeportallocations. Repair reads Services
// through client.
func NewNodePorts(options generic.RESTOptionsGetter, ports utilnet.PortRange, client kubernetes.Interface) (*NodePorts, error) {
	n := &NodePorts{ports: ports, client: client}
	gr := api.Resource("servicenodeportallocations")
	newObject := func() runtime.Object { return &api.RangeAllocation{} } // there is no list type: nobody lists them
	store, prefix, err := storage.NewRawStorage(options, gr, newObject, newObject)
	if err != nil {
		return nil, err
	}
	n.Allocator, err = portallocator.New(ports, func(size int, rangeSpec string, offset int) (allocator.Interface, error) {
		n.registry = &bitmap{
			storage:  store,
			key:      prefix + "/servicenodeports",
			resource: gr,
			newEmpty: func() allocator.Snapshottable {
				return allocator.NewAllocationMapWithOffset(size, rangeSpec, offset)
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

// firstRepairInterval is the time between two attempts of the first repair. It is short,
// because no port can be allocated before the first repair succeeds.
const firstRepairInterval = time.Second

// Repair reconciles the allocated ports with the Services, at once and then every
// repairInterval, until ctx ends. It calls onFirstSuccess after the first success.
func (n *NodePorts) Repair(ctx context.Context, onFirstSuccess func()) {
	once, cancel := context.WithCancel(ctx)
	defer cancel()
	n.newRepair(firstRepairInterval).RunUntil(func() {
		onFirstSuccess()
		cancel()
	}, stopChannel(once))

	timer := time.NewTimer(repairInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	n.newRepair(repairInterval).RunUntil(func() {}, stopChannel(ctx))
}

func (n *NodePorts) newRepair(interval time.Duration) *portrepair.Repair {
	return portrepair.NewRepair(interval, n.client.CoreV1(), n.client.EventsV1(), n.ports, n.registry)
}

// stopChannel returns a channel that is closed when ctx ends. Upstream's repair loops
// take a chan struct{}; ctx.Done() is receive-only.
func stopChannel(ctx context.Context) chan struct{} {
	stop := make(chan struct{})
	context.AfterFunc(ctx, func() { close(stop) })
	return stop
}
