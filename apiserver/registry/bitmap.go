package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/rangeallocation"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
)

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
	storage  storage.Interface
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
	if err := b.storage.Get(ctx, b.key, storage.GetOptions{IgnoreNotFound: true}, stored); err != nil {
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
		storage.SimpleUpdate(func(input runtime.Object) (runtime.Object, error) {
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
