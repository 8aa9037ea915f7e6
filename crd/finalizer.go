package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"byre/apiserver/storage"
)

// cleaners makes a cleaner for each definition that is being deleted. It
// implements finalizer.CRClientGetter.
type cleaners struct {
	resolver *resolver
	calls    *storeCalls
}

// GetCustomResourceListerCollectionDeleter implements finalizer.CRClientGetter.
func (c cleaners) GetCustomResourceListerCollectionDeleter(
	crd *apiextensionsv1.CustomResourceDefinition,
) (finalizer.ListerCollectionDeleter, error) {
	// Upstream passes no context. The definition is read only if nobody has used its
	// instances yet.
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	// crd is what the finalizer has written last. The resolver may not have seen it yet.
	found := c.resolver.put(crd, true)
	if found.CRD.UID != crd.UID {
		return nil, fmt.Errorf("%s is not served", crd.Name)
	}
	stored, err := found.handlers.Stored(ctx)
	if err != nil {
		return nil, err
	}
	store, err := stored.Store()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", crd.Name, err)
	}
	versions := sets.New[string]()
	for _, v := range found.CRD.Spec.Versions {
		versions.Insert(crd.Spec.Group + "/" + v.Name)
	}
	registry := stored.Registry()
	return &cleaner{Lister: registry, registry: registry, store: store, versions: versions, calls: c.calls}, nil
}

// cleaner deletes the instances of a definition, a page at a time. Upstream's finalizer
// lists all of them into memory.
//
// Invariant: the cleaner deletes every row of the resource, also one in a version that the
// definition does not have and that nobody can read therefore. The database deletes the
// definition only when there is no such row.
type cleaner struct {
	rest.Lister
	registry *customresource.REST
	store    *storage.Store // of registry
	// versions are the apiVersions of the definition.
	versions sets.Set[string]
	calls    *storeCalls
	// issued is true after DeleteCollection.
	issued bool
}

const (
	// readTimeout bounds the read of a definition.
	readTimeout = 10 * time.Second
	// cleanPage is how many instances are in memory at a time.
	cleanPage = 500
	// cleanWorkers is how many instances are deleted at a time. Their deletions share
	// commits.
	cleanWorkers = 16
)

// instance is what the cleaner reads of an instance.
type instance struct {
	metav1.PartialObjectMetadata
	row storage.Row
}

// isEnding reports whether the instance is being deleted, and others have to remove its
// finalizers.
func isEnding(i *instance) bool { return i.DeletionTimestamp != nil && len(i.Finalizers) > 0 }

// List returns one instance if there are any. The finalizer only needs to know whether
// there are. It calls DeleteCollection once for each namespace in the list: one call
// deletes all instances. Then it calls List until there are none: what List finds then that
// is not being deleted, it deletes.
func (c *cleaner) List(ctx context.Context, _ *internalversion.ListOptions) (list runtime.Object, err error) {
	err = c.calls.do(func() error {
		first, _, err := c.page(ctx, 1, "")
		if err == nil && c.issued && len(first) > 0 && !isEnding(&first[0]) {
			if err = c.deleteAll(ctx, rest.ValidateAllObjectFunc, nil); err == nil {
				first, _, err = c.page(ctx, 1, "")
			}
		}
		list = listOf(first)
		return err
	})
	return list, err
}

// listOf returns instances as the finalizer reads them: it looks at their namespaces.
func listOf(instances []instance) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	for _, i := range instances {
		var item unstructured.Unstructured
		item.SetNamespace(i.Namespace)
		list.Items = append(list.Items, item)
	}
	return list
}

// page returns instances as they are stored, and the token of the next page.
func (c *cleaner) page(ctx context.Context, size int64, from string) ([]instance, string, error) {
	predicate := apistorage.Everything
	predicate.Limit, predicate.Continue = size, from
	rows, next, err := c.store.ListRows(ctx, apistorage.ListOptions{Predicate: predicate, Recursive: true})
	if err != nil {
		return nil, "", err
	}
	instances := make([]instance, len(rows))
	for n, row := range rows {
		// A value that is not JSON is in no version: it is deleted by its key.
		_ = json.Unmarshal(row.JSON, &instances[n].PartialObjectMetadata)
		instances[n].Namespace, instances[n].Name = row.Namespace, row.Name
		row.JSON = nil // which the deletion does not need
		instances[n].row = row
	}
	return instances, next, nil
}

// DeleteCollection deletes the instances of all namespaces, whatever namespace ctx has. The
// finalizer does not read what it returns.
func (c *cleaner) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, _ *internalversion.ListOptions,
) (runtime.Object, error) {
	c.issued = true
	return nil, c.calls.do(func() error { return c.deleteAll(ctx, validate, options) })
}

// deleteAll deletes every instance that can be deleted, several at a time. It goes on after an
// instance that cannot be deleted: the error tells how many instances could not be deleted, and why
// the first could not. It becomes the message of a condition, so that its size is bounded.
func (c *cleaner) deleteAll(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) error {
	var failed atomic.Int64
	var workers errgroup.Group
	workers.SetLimit(cleanWorkers)
	for from := ""; ; {
		page, next, err := c.page(ctx, cleanPage, from)
		if err != nil {
			_ = workers.Wait()
			return err
		}
		for i := range page {
			workers.Go(func() error {
				err := c.deleteOne(ctx, &page[i], validate, options.DeepCopy())
				if err == nil || apierrors.IsNotFound(err) {
					return nil
				}
				failed.Add(1)
				return fmt.Errorf("%s/%s: %w", page[i].Namespace, page[i].Name, err)
			})
		}
		if from = next; from == "" {
			break
		}
	}
	first := workers.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case first != nil:
		return fmt.Errorf("%d instances could not be deleted, the first is %w", failed.Load(), first)
	}
	return nil
}

// deleteOne deletes an instance. One that nobody can read, it deletes by its key: one in a version
// that the definition does not have without a regard to finalizers, and one without finalizers that
// can't be decoded, because the conversion webhook has gone before the definition.
func (c *cleaner) deleteOne(
	ctx context.Context, i *instance, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) error {
	if isEnding(i) {
		return nil
	}
	ctx = request.WithNamespace(ctx, i.Namespace)
	if !c.versions.Has(i.APIVersion) {
		return c.deleteByKey(ctx, i)
	}
	_, _, err := c.registry.Delete(ctx, i.Name, validate, options)
	// What a webhook fails with has no reason; what can't be decoded otherwise is an internal error.
	isUnreadable := err != nil &&
		(apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsInternalError(err))
	if isUnreadable && len(i.Finalizers) == 0 {
		return c.deleteByKey(ctx, i)
	}
	return err
}

// deleteByKey deletes an instance without reading it, if it is what the cleaner has seen. Another one is left to the
// next deletion, because it may be readable and have finalizers.
func (c *cleaner) deleteByKey(ctx context.Context, i *instance) error {
	return storeerr.InterpretDeleteError(c.store.DeleteRow(ctx, i.row), c.store.GroupResource(), i.Name)
}

// storeCalls are the calls that the finalizer makes to the store. Invariant: after drain no
// call is in flight and none begins. Run calls drain before it returns, because upstream's
// finalizer offers no way to join its workers; otherwise a worker could use the store after
// the program has closed it.
type storeCalls struct {
	mu    sync.RWMutex // held for reading during each call
	ended bool
}

// errStopped is the error of a call after drain.
var errStopped = errors.New("the server of definitions has stopped")

// do makes one call, or fails with errStopped. The call makes no other.
func (c *storeCalls) do(call func() error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.ended {
		return errStopped
	}
	return call()
}

// drain waits for the calls in flight and refuses further ones.
func (c *storeCalls) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}
