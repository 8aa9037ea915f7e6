package allocation

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

// storageTimeout bounds one access: the interfaces here carry no context.
const storageTimeout = 30 * time.Second

// errTaken leaves an update that found nothing to allocate.
var errTaken = errors.New("nothing to allocate")

// bitmap is a range of numbers, each free or taken, kept as one object.
//
// Invariant: it holds no state of its own. Every operation starts from what is
// stored, so that a write that failed leaves nothing behind and replicas never
// work from each other's past.
type bitmap struct {
	storage  storage.Interface
	key      string
	resource schema.GroupResource
	// empty makes the range with everything free.
	empty func() allocator.Snapshottable
}

var (
	_ allocator.Interface           = (*bitmap)(nil)
	_ rangeallocation.RangeRegistry = (*bitmap)(nil)
)

// Allocate takes an item; it is false when it is taken already.
func (b *bitmap) Allocate(item int) (bool, error) {
	return b.take(func(state allocator.Snapshottable) (bool, error) { return state.Allocate(item) })
}

// AllocateNext takes some free item; it is false when there is none.
func (b *bitmap) AllocateNext() (int, bool, error) {
	var item int
	ok, err := b.take(func(state allocator.Snapshottable) (ok bool, err error) {
		item, ok, err = state.AllocateNext()
		return ok, err
	})
	return item, ok, err
}

// Release frees an item; freeing a free one does nothing.
func (b *bitmap) Release(item int) error {
	return b.update(func(state allocator.Snapshottable) error { return state.Release(item) })
}

// Has tells whether an item is taken; what can't be read counts as free, as the
// allocation that follows will find out.
func (b *bitmap) Has(item int) bool {
	state, err := b.read()
	return err == nil && state.Has(item)
}

// Free returns how many items are free; 0 when that can't be read.
func (b *bitmap) Free() int {
	state, err := b.read()
	if err != nil {
		return 0
	}
	return state.Free()
}

// ForEach calls fn with each item that is taken.
func (b *bitmap) ForEach(fn func(int)) {
	if state, err := b.read(); err == nil {
		state.ForEach(fn)
	}
}

// Destroy does nothing: the storage is its owner's.
func (b *bitmap) Destroy() {}

// Get returns what is stored; its ResourceVersion is empty when nothing is.
func (b *bitmap) Get() (*api.RangeAllocation, error) {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	stored := &api.RangeAllocation{}
	if err := b.storage.Get(ctx, b.key, storage.GetOptions{IgnoreNotFound: true}, stored); err != nil {
		return nil, storeerr.InterpretGetError(err, b.resource, "")
	}
	return stored, nil
}

// CreateOrUpdate stores a snapshot. It is a conflict when the snapshot isn't
// derived from what is stored.
func (b *bitmap) CreateOrUpdate(snapshot *api.RangeAllocation) error {
	return b.replace(func(stored *api.RangeAllocation) (*api.RangeAllocation, error) {
		switch {
		case stored.ResourceVersion == "":
			fresh := snapshot.DeepCopy()
			fresh.ResourceVersion = ""
			return fresh, nil
		case snapshot.ResourceVersion == "":
			return nil, apierrors.NewConflict(b.resource, "", errors.New("another server has made the first allocation"))
		case snapshot.ResourceVersion != stored.ResourceVersion:
			return nil, apierrors.NewConflict(b.resource, "", errors.New("the allocation has changed"))
		}
		return snapshot, nil
	})
}

// take updates with an operation that may find what it wants taken.
func (b *bitmap) take(op func(allocator.Snapshottable) (bool, error)) (bool, error) {
	err := b.update(func(state allocator.Snapshottable) error {
		ok, err := op(state)
		if err == nil && !ok {
			err = errTaken
		}
		return err
	})
	if errors.Is(err, errTaken) {
		return false, nil
	}
	return err == nil, err
}

// update changes the stored state.
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

// restore makes the state of what is stored. It fails before the first repair
// has stored anything, and while the stored range isn't the configured one.
func (b *bitmap) restore(stored *api.RangeAllocation) (allocator.Snapshottable, error) {
	if stored.ResourceVersion == "" {
		return nil, fmt.Errorf("cannot allocate resources of type %s at this time", b.resource)
	}
	state := b.empty()
	if err := state.Restore(stored.Range, stored.Data); err != nil {
		return nil, fmt.Errorf("cannot allocate resources of type %s at this time: %w", b.resource, err)
	}
	return state, nil
}
