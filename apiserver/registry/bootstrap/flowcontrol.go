package bootstrap

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	listers "k8s.io/client-go/listers/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
)

// ensureFlowControl creates the suggested flow schemas and priority levels that are
// missing, creates or repairs the mandatory ones, and deletes those that an older release
// has created and nobody has changed.
func (b *Bootstrap) ensureFlowControl(ctx context.Context) error {
	levelOps, err := b.priorityLevels(ctx)
	if err != nil {
		return fmt.Errorf("list priority levels: %w", err)
	}
	schemaOps, err := b.flowSchemas(ctx)
	if err != nil {
		return fmt.Errorf("list flow schemas: %w", err)
	}

	// The flow schemas follow the priority levels, because a schema names a level.
	err = ensureAll(ctx, levelOps, bootstrap.SuggestedPriorityLevelConfigurations, bootstrap.MandatoryPriorityLevelConfigurations)
	if err != nil {
		return fmt.Errorf("priority levels: %w", err)
	}
	if err := ensureAll(ctx, schemaOps, bootstrap.SuggestedFlowSchemas, bootstrap.MandatoryFlowSchemas); err != nil {
		return fmt.Errorf("flow schemas: %w", err)
	}

	allSchemas := slices.Concat(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas)
	if err := ensurer.RemoveUnwantedObjects(ctx, schemaOps, allSchemas); err != nil {
		return fmt.Errorf("remove flow schemas: %w", err)
	}
	allLevels := slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations)
	if err := ensurer.RemoveUnwantedObjects(ctx, levelOps, allLevels); err != nil {
		return fmt.Errorf("remove priority levels: %w", err)
	}
	return nil
}

// configuration is an object of flow control.
type configuration interface {
	*flowcontrolv1.PriorityLevelConfiguration | *flowcontrolv1.FlowSchema
	metav1.Object
	runtime.Object
}

// ensureAll ensures the objects of one kind side by side: concurrent writes share a commit, and
// so its fsync.
func ensureAll[T configuration](ctx context.Context, ops ensurer.ObjectOps[T], suggested, mandatory []T) error {
	var writes errgroup.Group
	ensure := func(objects []T, strategy ensurer.EnsureStrategy[T]) {
		for _, object := range objects {
			writes.Go(func() error { return ensurer.EnsureConfiguration(ctx, ops, object, strategy) })
		}
	}
	ensure(suggested, ensurer.NewSuggestedEnsureStrategy[T]())
	ensure(mandatory, ensurer.NewMandatoryEnsureStrategy[T]())
	return writes.Wait()
}

// priorityLevels lists the existing priority levels and returns the operations on them that the
// ensurer requires. One LIST a minute is cheaper than an informer.
func (b *Bootstrap) priorityLevels(ctx context.Context) (ensurer.ObjectOps[*flowcontrolv1.PriorityLevelConfiguration], error) {
	client := b.config.Client.FlowcontrolV1().PriorityLevelConfigurations()
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	listed, err := indexerOf(list.Items)
	if err != nil {
		return nil, err
	}
	ops := ensurer.NewPriorityLevelConfigurationOps(client, listers.NewPriorityLevelConfigurationLister(listed))
	return listedOps[*flowcontrolv1.PriorityLevelConfiguration]{ObjectOps: ops, get: client.Get, listed: listed}, nil
}

// flowSchemas is to flow schemas what priorityLevels is to priority levels.
func (b *Bootstrap) flowSchemas(ctx context.Context) (ensurer.ObjectOps[*flowcontrolv1.FlowSchema], error) {
	client := b.config.Client.FlowcontrolV1().FlowSchemas()
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	listed, err := indexerOf(list.Items)
	if err != nil {
		return nil, err
	}
	ops := ensurer.NewFlowSchemaOps(client, listers.NewFlowSchemaLister(listed))
	return listedOps[*flowcontrolv1.FlowSchema]{ObjectOps: ops, get: client.Get, listed: listed}, nil
}

// listedOps are operations whose cache is a list. After a Create that fails with AlreadyExists,
// the ensurer waits for the object to come into the cache, and so Create adds it: another
// replica has created it since the list.
type listedOps[T configuration] struct {
	ensurer.ObjectOps[T]
	get    func(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	listed cache.Indexer
}

func (o listedOps[T]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	created, err := o.ObjectOps.Create(ctx, obj, opts)
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	existing, getErr := o.get(ctx, obj.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(getErr): // deleted meanwhile: the ensurer creates it again
		return created, err
	case getErr != nil:
		return created, getErr
	}
	if addErr := o.listed.Add(existing); addErr != nil {
		return created, addErr
	}
	return created, err
}

// indexerOf returns an indexer of objects, by namespace and name.
func indexerOf[T any](objects []T) (cache.Indexer, error) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for i := range objects {
		if err := indexer.Add(&objects[i]); err != nil {
			return nil, err
		}
	}
	return indexer, nil
}
