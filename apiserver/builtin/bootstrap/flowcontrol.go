package bootstrap

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	listers "k8s.io/client-go/listers/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
)

// ensureFlowControl creates the suggested flow schemas and priority levels that are
// missing, creates or repairs the mandatory ones, and deletes those that an older release
// has created and nobody has changed.
func (b *Bootstrap) ensureFlowControl(ctx context.Context) error {
	levels, err := b.priorityLevels(ctx)
	if err != nil {
		return fmt.Errorf("list priority levels: %w", err)
	}
	schemas, err := b.flowSchemas(ctx)
	if err != nil {
		return fmt.Errorf("list flow schemas: %w", err)
	}
	client := b.config.Client.FlowcontrolV1()
	levelOps := ensurer.NewPriorityLevelConfigurationOps(client.PriorityLevelConfigurations(), levels)
	schemaOps := ensurer.NewFlowSchemaOps(client.FlowSchemas(), schemas)

	// Concurrent writes share a commit, and so its fsync. The flow schemas follow the
	// priority levels, because a schema names a level.
	var writes errgroup.Group
	suggestedLevel := ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()
	for _, level := range bootstrap.SuggestedPriorityLevelConfigurations {
		writes.Go(func() error { return ensurer.EnsureConfiguration(ctx, levelOps, level, suggestedLevel) })
	}
	mandatoryLevel := ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()
	for _, level := range bootstrap.MandatoryPriorityLevelConfigurations {
		writes.Go(func() error { return ensurer.EnsureConfiguration(ctx, levelOps, level, mandatoryLevel) })
	}
	if err := writes.Wait(); err != nil {
		return fmt.Errorf("priority levels: %w", err)
	}
	suggestedSchema := ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.FlowSchema]()
	for _, schema := range bootstrap.SuggestedFlowSchemas {
		writes.Go(func() error { return ensurer.EnsureConfiguration(ctx, schemaOps, schema, suggestedSchema) })
	}
	mandatorySchema := ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.FlowSchema]()
	for _, schema := range bootstrap.MandatoryFlowSchemas {
		writes.Go(func() error { return ensurer.EnsureConfiguration(ctx, schemaOps, schema, mandatorySchema) })
	}
	if err := writes.Wait(); err != nil {
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

// priorityLevels returns a lister of the existing priority levels, which the ensurer
// requires. One LIST a minute is cheaper than an informer.
func (b *Bootstrap) priorityLevels(ctx context.Context) (listers.PriorityLevelConfigurationLister, error) {
	list, err := b.config.Client.FlowcontrolV1().PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	indexer, err := indexerOf(list.Items)
	if err != nil {
		return nil, err
	}
	return listers.NewPriorityLevelConfigurationLister(indexer), nil
}

// flowSchemas returns a lister of the existing flow schemas.
func (b *Bootstrap) flowSchemas(ctx context.Context) (listers.FlowSchemaLister, error) {
	list, err := b.config.Client.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	indexer, err := indexerOf(list.Items)
	if err != nil {
		return nil, err
	}
	return listers.NewFlowSchemaLister(indexer), nil
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
