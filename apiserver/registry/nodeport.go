package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/rangeallocation"
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
func NewNodePorts(
	options generic.RESTOptionsGetter, ports utilnet.PortRange, client kubernetes.Interface,
) (*NodePorts, error) {
	n := &NodePorts{ports: ports, client: client}
	gr := api.Resource("servicenodeportallocations")
	store, prefix, err := storage.NewRawStorage(options, gr, func() runtime.Object { return &api.RangeAllocation{} })
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

// storageTimeout bounds one access to the storage. Upstream's allocator interfaces pass
// no context.
const storageTimeout = 30 * time.Second

// bitmap is a range of numbers, each free or allocated, that is stored as one
// RangeAllocation. It replaces upstream's pkg/registry/core/service/allocator/storage,
// which connects to etcd.
//
// Invariant: bitmap holds no state in memory. Every operation starts from the stored
// object. A failed write therefore changes nothing, and a replica never allocates from
// outdated state.
type bitmap struct {
	storage  apistorage.Interface
	key      string
	resource schema.GroupResource
	// newEmpty returns a state in which every number is free.
	newEmpty func() allocator.Snapshottable
}

var (
	_ allocator.Interface           = (*bitmap)(nil)
	_ rangeallocation.RangeRegistry = (*bitmap)(nil)
)

// Allocate allocates item. It returns false if item is allocated already.
func (b *bitmap) Allocate(item int) (ok bool, err error) {
	err = b.update(func(state allocator.Snapshottable) (err error) {
		ok, err = state.Allocate(item)
		return err
	})
	return ok && err == nil, err
}

// AllocateNext allocates a free item. It returns false if there is none.
func (b *bitmap) AllocateNext() (item int, ok bool, err error) {
	err = b.update(func(state allocator.Snapshottable) (err error) {
		item, ok, err = state.AllocateNext()
		return err
	})
	return item, ok && err == nil, err
}

// Release frees an item. It does nothing if the item is free.
func (b *bitmap) Release(item int) error {
	return b.update(func(state allocator.Snapshottable) error { return state.Release(item) })
}

// Has reports whether an item is allocated. It returns false if the state cannot be
// read; the allocation that follows then fails.
func (b *bitmap) Has(item int) bool {
	state, err := b.read()
	return err == nil && state.Has(item)
}

// Free returns the number of free items; 0 if the state cannot be read.
func (b *bitmap) Free() int {
	state, err := b.read()
	if err != nil {
		return 0
	}
	return state.Free()
}

// ForEach calls fn with each allocated item.
func (b *bitmap) ForEach(fn func(int)) {
	if state, err := b.read(); err == nil {
		state.ForEach(fn)
	}
}

// Destroy does nothing, because bitmap does not own the storage.
func (b *bitmap) Destroy() {}

// Get returns the stored allocation. Its ResourceVersion is empty if none is stored.
func (b *bitmap) Get() (*api.RangeAllocation, error) {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	stored := &api.RangeAllocation{}
	if err := b.storage.Get(ctx, b.key, apistorage.GetOptions{IgnoreNotFound: true}, stored); err != nil {
		return nil, storeerr.InterpretGetError(err, b.resource, "")
	}
	return stored, nil
}

// CreateOrUpdate stores snapshot. It returns a conflict if the snapshot was not made from
// the stored object.
func (b *bitmap) CreateOrUpdate(snapshot *api.RangeAllocation) error {
	return b.replace(func(stored *api.RangeAllocation) (*api.RangeAllocation, error) {
		switch {
		case stored.ResourceVersion == "":
			created := snapshot.DeepCopy()
			created.ResourceVersion = ""
			return created, nil
		case snapshot.ResourceVersion == "":
			return nil, apierrors.NewConflict(b.resource, "", errors.New("another server has created the allocation"))
		case snapshot.ResourceVersion != stored.ResourceVersion:
			return nil, apierrors.NewConflict(b.resource, "", errors.New("the allocation has changed"))
		}
		return snapshot, nil
	})
}

// update applies change to the stored state. It writes nothing if change changes nothing.
func (b *bitmap) update(change func(allocator.Snapshottable) error) error {
	return b.replace(func(stored *api.RangeAllocation) (*api.RangeAllocation, error) {
		state, err := b.restore(stored)
		if err != nil {
			return nil, err
		}
		if err := change(state); err != nil {
			return nil, err
		}
		stored.Range, stored.Data = state.Snapshot()
		return stored, nil
	})
}

// replace stores the object that next returns for the stored one.
func (b *bitmap) replace(next func(*api.RangeAllocation) (*api.RangeAllocation, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	err := b.storage.GuaranteedUpdate(ctx, b.key, &api.RangeAllocation{}, true, nil,
		apistorage.SimpleUpdate(func(input runtime.Object) (runtime.Object, error) {
			return next(input.(*api.RangeAllocation))
		}), nil)
	return storeerr.InterpretUpdateError(err, b.resource, "")
}

func (b *bitmap) read() (allocator.Snapshottable, error) {
	stored, err := b.Get()
	if err != nil {
		return nil, err
	}
	return b.restore(stored)
}

// restore decodes the stored state. It fails before the first repair has stored an
// object, and if the stored range is not the configured one.
func (b *bitmap) restore(stored *api.RangeAllocation) (allocator.Snapshottable, error) {
	if stored.ResourceVersion == "" {
		return nil, fmt.Errorf("cannot allocate resources of type %s at this time", b.resource)
	}
	state := b.newEmpty()
	if err := state.Restore(stored.Range, stored.Data); err != nil {
		return nil, fmt.Errorf("cannot allocate resources of type %s at this time: %w", b.resource, err)
	}
	return state, nil
}
