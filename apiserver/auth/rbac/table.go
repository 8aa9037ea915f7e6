package rbac

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"byre/apiserver/storage"
	"byre/watch"
)

// loadTimeout bounds the first read of a resource, which is the only one that
// may have to go to the database.
const loadTimeout = 10 * time.Second

// table is the decoded state of one resource.
type table struct {
	resource schema.GroupResource
	newFunc  func() metav1.Object
	lookup   func(schema.GroupResource) *storage.Store
	feed     *watch.Feed

	// Invariant: indexer holds the state of the store at revision at, or a
	// later one.
	indexer cache.Indexer
	at      atomic.Int64

	mu sync.Mutex // held while the table is brought up to date
	// seen is the feed's state that was last taken over. states maps the
	// revision of each object in indexer to its key, keys the other way round.
	// All are guarded by mu.
	seen   watch.Snapshot
	states map[int64]string
	keys   map[string]int64
}

func newTable(resource string, lookup func(schema.GroupResource) *storage.Store, feed *watch.Feed, newFunc func() metav1.Object) *table {
	return &table{
		resource: schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: resource},
		newFunc:  newFunc,
		lookup:   lookup,
		feed:     feed,
		indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		states: map[int64]string{},
		keys:   map[string]int64{},
	}
}

// sync brings the table up to the feed's revision. When nothing was written
// since the last call it costs one comparison; when something else was, a few.
func (t *table) sync() error {
	revision := t.feed.Revision()
	if revision > 0 && t.at.Load() >= revision {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if revision > 0 && t.at.Load() >= revision {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	now, err := t.feed.Snapshot(ctx, t.resource.Group, t.resource.Resource)
	if err != nil {
		return fmt.Errorf("reading %s: %w", t.resource, err)
	}
	if !now.Same(t.seen) {
		if err := t.load(ctx); err != nil {
			return fmt.Errorf("reading %s: %w", t.resource, err)
		}
	}
	t.seen = now
	t.at.Store(now.Revision())
	return nil
}

// load lists the resource as the feed has it and takes over the differences.
func (t *table) load(ctx context.Context) error {
	store := t.lookup(t.resource)
	if store == nil {
		return errors.New("not served yet")
	}
	list, err := store.ListEncoded(ctx, "/"+t.resource.Resource, apistorage.ListOptions{
		ResourceVersion: "0",
		Recursive:       true,
		Predicate:       apistorage.Everything,
	})
	if err != nil {
		return err
	}
	seen := make(map[int64]struct{}, len(t.states))
	for item, err := range list.Items {
		if err != nil {
			return err
		}
		seen[item.ResourceVersion()] = struct{}{}
		if err := t.add(item); err != nil {
			return err
		}
	}
	for revision, key := range t.states {
		if _, ok := seen[revision]; !ok {
			if err := t.forget(revision, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// add decodes an object in a state that isn't known yet.
func (t *table) add(item storage.Encoded) error {
	revision := item.ResourceVersion()
	if _, known := t.states[revision]; known {
		return nil
	}
	object := t.newFunc()
	if err := json.Unmarshal(item.AppendJSON(nil, true), object); err != nil {
		return err
	}
	object.SetManagedFields(nil) // of no use here, and most of the object
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	if err := t.indexer.Update(object); err != nil {
		return err
	}
	t.states[revision], t.keys[key] = key, revision
	return nil
}

// forget drops a state that the store no longer has, and the object with it
// unless it is known in another state.
func (t *table) forget(revision int64, key string) error {
	if t.keys[key] == revision {
		object, _, err := t.indexer.GetByKey(key)
		if err != nil {
			return err
		}
		if err := t.indexer.Delete(object); err != nil {
			return err
		}
		delete(t.keys, key)
	}
	delete(t.states, revision)
	return nil
}
