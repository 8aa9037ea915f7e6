package crd

import (
	"context"
	"fmt"
	"sync"
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
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// cleaners makes a cleaner for each definition that is being deleted. It
// implements finalizer.CRClientGetter.
type cleaners struct {
	resolver *resolver
	calls    *storeCalls
}

// GetCustomResourceListerCollectionDeleter implements finalizer.CRClientGetter.
func (c cleaners) GetCustomResourceListerCollectionDeleter(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	// Upstream passes no context. The definition is read only if nobody has used its
	// instances yet.
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	found := c.resolver.get(crd.Name)
	if found == nil || found.CRD.UID != crd.UID {
		return nil, fmt.Errorf("%s is not served", crd.Name)
	}
	registry, err := found.handlers.Stored(ctx)
	if err != nil {
		return nil, err
	}
	return cleaner{registry, c.calls}, nil
}

// cleaner deletes the instances of a definition, a page at a time. Upstream's finalizer
// lists all of them into memory.
type cleaner struct {
	*customresource.REST
	calls *storeCalls
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

// List returns one instance if there are any. The finalizer only needs to know whether
// there are, and calls DeleteCollection once for each namespace in the list: one call
// deletes all instances.
func (c cleaner) List(ctx context.Context, _ *internalversion.ListOptions) (list runtime.Object, err error) {
	err = c.calls.do(func() error {
		list, err = c.page(ctx, 1, "")
		return err
	})
	return list, err
}

func (c cleaner) page(ctx context.Context, size int64, from string) (*unstructured.UnstructuredList, error) {
	list, err := c.REST.List(request.WithNamespace(ctx, metav1.NamespaceAll), &internalversion.ListOptions{Limit: size, Continue: from})
	if err != nil {
		return nil, err
	}
	return list.(*unstructured.UnstructuredList), nil
}

// DeleteCollection deletes the instances of all namespaces, whatever namespace ctx has.
func (c cleaner) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, _ *internalversion.ListOptions) (last runtime.Object, err error) {
	err = c.calls.do(func() error {
		last, err = c.deleteAll(ctx, validate, options)
		return err
	})
	return last, err
}

// deleteAll deletes every instance that can be deleted, and returns the last page of
// instances. It goes on after an instance that cannot be deleted: the error tells how many
// instances could not be deleted, and why the first could not.
func (c cleaner) deleteAll(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	var failed failures
	for from := ""; ; {
		page, err := c.page(ctx, cleanPage, from)
		if err != nil {
			return nil, err
		}
		c.deletePage(ctx, page, validate, options, &failed)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if from = page.GetContinue(); from == "" {
			return page, failed.err()
		}
	}
}

// deletePage deletes the instances of a page, several at a time.
func (c cleaner) deletePage(ctx context.Context, page *unstructured.UnstructuredList, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, failed *failures) {
	var workers errgroup.Group
	workers.SetLimit(cleanWorkers)
	for i := range page.Items {
		object := &page.Items[i]
		workers.Go(func() error {
			ctx := request.WithNamespace(ctx, object.GetNamespace())
			_, _, err := c.REST.Delete(ctx, object.GetName(), validate, options.DeepCopy())
			if err != nil && !apierrors.IsNotFound(err) {
				failed.add(object, err)
			}
			return nil
		})
	}
	_ = workers.Wait() // the workers report to failed
}

// failures counts the instances that could not be deleted and keeps the first error:
// the error becomes the message of a condition, so that its size is bounded.
type failures struct {
	mu    sync.Mutex
	count int
	first error
}

func (f *failures) add(object *unstructured.Unstructured, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count++; f.first == nil {
		f.first = fmt.Errorf("%s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
}

func (f *failures) err() error {
	if f.count == 0 {
		return nil
	}
	return fmt.Errorf("%d instances could not be deleted, the first is %w", f.count, f.first)
}
