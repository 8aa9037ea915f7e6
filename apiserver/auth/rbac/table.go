package rbac

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"byre/apiserver/storage"
)

// loadTimeout bounds the first read of a resource, which is the only one that
// may have to go to the database.
const loadTimeout = 10 * time.Second

// table is the decoded state of one resource.
type table struct {
	resource schema.GroupResource
	newFunc  func() metav1.Object
	lookup   func(schema.GroupResource) *storage.Store
	revision func() int64

	// Invariant: indexer holds the state of the store at revision at, or a
	// later one.
	indexer cache.Indexer
	at      atomic.Int64

	mu sync.Mutex // held while the table is brought up to date
	// states maps the revision of each object in indexer to its key, keys the
	// other way round. Both are guarded by mu.
	states map[int64]string
	keys   map[string]int64
}

func newTable(resource string, lookup func(schema.GroupResource) *storage.Store, revision func() int64, newFunc func() metav1.Object) *table {
	return &table{
		resource: schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: resource},
		newFunc:  newFunc,
		lookup:   lookup,
		revision: revision,
		indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		states: map[int64]string{},
		keys:   map[string]int64{},
	}
}

// sync brings the table up to the feed's revision. When nothing was written
// since the last call it costs one comparison.
func (t *table) sync() error {
	revision := t.revision()
	if revision > 0 && t.at.Load() >= revision {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if revision > 0 && t.at.Load() >= revision {
		return nil
	}
	if err := t.load(); err != nil {
		return fmt.Errorf("reading %s: %w", t.resource, err)
	}
	t.at.Store(revision)
	return nil
}

// load lists the resource as the feed has it and takes over the differences.
func (t *table) load() error {
	store := t.lookup(t.resource)
	if store == nil {
		return fmt.Errorf("not served yet")
	}
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	list, err := store.ListEncoded(ctx, "/"+t.resource.Resource, apistorage.ListOptions{
		ResourceVersion: "0",
		Recursive:       true,
		Predicate:       apistorage.Everything,
	})
	if err != nil {
		return err
	}
	seen := make(map[int64]string, len(t.states))
	for item, err := range list.Items {
		if err != nil {
			return err
		}
		revision := item.ResourceVersion()
		if key, ok := t.states[revision]; ok {
			seen[revision] = key
			continue
		}
		key, err := t.add(item)
		if err != nil {
			return err
		}
		seen[revision] = key
		t.keys[key] = revision
	}
	for revision, key := range t.states {
		if _, ok := seen[revision]; ok || t.keys[key] != revision {
			continue // still there, or there in a newer state
		}
		delete(t.keys, key)
		if err := t.remove(key); err != nil {
			return err
		}
	}
	t.states = seen
	return nil
}

func (t *table) add(item storage.Encoded) (string, error) {
	object := t.newFunc()
	if err := json.Unmarshal(item.AppendJSON(nil, true), object); err != nil {
		return "", err
	}
	object.SetManagedFields(nil) // of no use here, and most of the object
	if err := t.indexer.Update(object); err != nil {
		return "", err
	}
	return cache.MetaNamespaceKeyFunc(object)
}

func (t *table) remove(key string) error {
	object, ok, err := t.indexer.GetByKey(key)
	if err != nil || !ok {
		return err
	}
	return t.indexer.Delete(object)
}
