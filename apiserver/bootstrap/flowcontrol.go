package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
)

// ensureFlowControl creates the suggested flow schemas and priority levels that are
// missing, creates or repairs the mandatory ones, and deletes those that an older release
// has created and nobody has changed.
func (b *Bootstrap) ensureFlowControl(ctx context.Context) error {
	client, cached := b.config.Client.FlowcontrolV1(), b.config.Informers.Flowcontrol().V1()
	levels, schemas := cached.PriorityLevelConfigurations(), cached.FlowSchemas()
	if !levels.Informer().HasSynced() || !schemas.Informer().HasSynced() {
		return errors.New("the informers of priority levels and flow schemas have not synced")
	}
	levelOps := ensurer.NewPriorityLevelConfigurationOps(client.PriorityLevelConfigurations(), levels.Lister())
	schemaOps := ensurer.NewFlowSchemaOps(client.FlowSchemas(), schemas.Lister())

	// The flow schemas follow the priority levels, because a schema names a level.
	err := ensureAll(ctx, levelOps, bootstrap.SuggestedPriorityLevelConfigurations, bootstrap.MandatoryPriorityLevelConfigurations)
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
