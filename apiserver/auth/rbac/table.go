package rbac

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/objectstore"
	"byre/watch"
)

// loadTimeout bounds the first read of a resource, which is the only one that
// may have to go to the database.
const loadTimeout = 10 * time.Second

// table is the decoded state of one resource.
type table[T metav1.Object] struct {
	resource schema.GroupResource
	newFunc  func() T
	lookup   func(schema.GroupResource) *objectstore.Store
	feed     *watch.Feed

	// objects are what the store has at revision at, or later: by namespace
	// ("" for what has none), in the order of names. Neither the map nor the
	// lists are written to once they are here.
	objects atomic.Pointer[map[string][]T]
	at      atomic.Int64

	// loading is held while the table is brought up to date. It guards the
	// feed's state that was last taken over, and its objects by revision.
	loading sync.Mutex
	seen    watch.Snapshot
	states  map[int64]T
}

func newTable[T metav1.Object](resource string, lookup func(schema.GroupResource) *objectstore.Store, feed *watch.Feed, newFunc func() T) *table[T] {
	return &table[T]{
		resource: schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: resource},
		newFunc:  newFunc,
		lookup:   lookup,
		feed:     feed,
	}
}

// list gives the objects by namespace, as of now.
func (t *table[T]) list() (map[string][]T, error) {
	if err := t.sync(); err != nil {
		return nil, err
	}
	return *t.objects.Load(), nil
}

func find[T metav1.Object](list []T, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(object T, name string) int {
		return cmp.Compare(object.GetName(), name)
	})
}

// sync brings the table up to the feed's revision. When nothing was written
// since the last call it costs one comparison; when something else was, a few.
func (t *table[T]) sync() error {
	revision := t.feed.Revision()
	if revision > 0 && t.at.Load() >= revision {
		return nil
	}
	t.loading.Lock()
	defer t.loading.Unlock()
	if revision > 0 && t.at.Load() >= revision {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	now, err := t.feed.Snapshot(ctx, watch.Resource{Group: t.resource.Group, Name: t.resource.Resource})
	if err != nil {
		return fmt.Errorf("reading %s: %w", t.resource, err)
	}
	if t.objects.Load() == nil || !now.Same(t.seen) {
		if err := t.load(ctx); err != nil {
			return fmt.Errorf("reading %s: %w", t.resource, err)
		}
	}
	t.seen = now
	t.at.Store(now.Revision())
	return nil
}

// load lists the resource as the feed has it, decoding the objects that have
// changed.
func (t *table[T]) load(ctx context.Context) error {
	store := t.lookup(t.resource)
	if store == nil {
		return errors.New("not served yet")
	}
	list, err := store.ListEncoded(ctx, "/"+t.resource.Resource, storage.ListOptions{
		ResourceVersion: "0",
		Recursive:       true,
		Predicate:       storage.Everything,
	})
	if err != nil {
		return err
	}
	states, objects := make(map[int64]T, len(t.states)), map[string][]T{}
	for item, err := range list.Items { // in the order of namespaces and names
		if err != nil {
			return err
		}
		object, known := t.states[item.ResourceVersion()]
		if !known {
			if object, err = t.decode(item); err != nil {
				return err
			}
		}
		states[item.ResourceVersion()] = object
		objects[object.GetNamespace()] = append(objects[object.GetNamespace()], object)
	}
	t.states = states
	t.objects.Store(&objects)
	return nil
}

func (t *table[T]) decode(item objectstore.Encoded) (T, error) {
	object := t.newFunc()
	if err := json.Unmarshal(item.AppendJSON(nil, true), object); err != nil {
		return object, err
	}
	object.SetManagedFields(nil) // of no use here, and most of the object
	return object, nil
}
