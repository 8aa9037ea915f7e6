package controllers

import (
	"context"
	"slices"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	storagemigrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/storageversionmigrator"
	"k8s.io/kubernetes/pkg/features"

	"byre/apiserver/process"
	"byre/apiserver/storage"
)

const (
	// migrationPoll is how often the resources of unfinished migrations are looked up.
	migrationPoll = time.Second
	// keepFailed is how long the objects of a resource stay in memory after its migration has failed. A migration
	// fails if they could not be read within a minute. The next one finds them there.
	keepFailed = time.Hour
)

// newStorageVersionMigrator builds upstream's controllers of StorageVersionMigrations. It builds
// none if the feature is off.
func newStorageVersionMigrator(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionMigrator) {
		return nil, nil
	}
	migrated := migratedResources{cc.kube.Discovery(),
		cc.InformerFactory.Storagemigration().V1().StorageVersionMigrations().Lister()}
	return func(ctx context.Context) {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if len(migrated.wanted()) == 0 {
				return
			}
			if err := runMigrations(ctx, cc, migrated); err != nil {
				utilruntime.HandleErrorWithContext(ctx, err, "Cannot migrate resources")
			}
		}, migrationPoll)
	}, nil
}

// runMigrations runs upstream's controllers until no resource is wanted or ctx ends.
//
// Upstream's migrator takes the objects of a resource from the stores of a garbage collector.
// byre's collector keeps no objects. The migrator therefore has a collector of its own, which
// follows only the resources that are being migrated, and has no workers: it deletes nothing. Its graph
// and its informers only grow, and so end with the migrations.
func runMigrations(ctx context.Context, cc *controllerContext, migrated migratedResources) error {
	untyped, err := dynamic.NewForConfig(cc.config)
	if err != nil {
		return err
	}
	definitions, err := apiextensionsclient.NewForConfig(cc.config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The migrator's own account may list every resource, but watch none.
	objects := metadatainformer.NewSharedInformerFactoryWithOptions(cc.root.metadata, 0,
		metadatainformer.WithTransform(process.StripManagedFields))
	defer objects.Shutdown()
	typed := informers.NewSharedInformerFactory(cc.root.kube, 0)
	defer typed.Shutdown()
	published := cc.kube.Discovery()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(published))
	stored := func(schema.GroupResource) *storage.MetadataWatch { return nil }
	started := make(chan struct{})
	close(started)
	graph := garbagecollector.NewDependencyGraphBuilder(ctx, cc.metadata, mapper,
		garbagecollector.DefaultIgnoredResources(),
		graphInformers{stored, objects}, started)
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, cc.kube, cc.metadata, mapper, graph)
	if err != nil {
		return err
	}
	migrations := typed.Storagemigration().V1().StorageVersionMigrations()
	const name = names.StorageVersionMigratorController
	migrate := storageversionmigrator.NewSVMController(ctx, cc.kube, untyped, migrations, name, mapper, graph)
	revisions := storageversionmigrator.NewResourceVersionController(ctx, cc.kube, published, cc.metadata, migrations,
		mapper)
	custom := storageversionmigrator.NewCustomResourceController(ctx, cc.kube, migrations,
		definitions.ApiextensionsV1().CustomResourceDefinitions())
	typed.StartWithContext(ctx)
	together(
		// Run logs an error if no resource is synced in this time.
		func(ctx context.Context) { collector.Run(ctx, 0, time.Hour) },
		func(ctx context.Context) { collector.Sync(ctx, migrated, migrationPoll) },
		migrate.Run, revisions.Run, custom.Run,
		func(ctx context.Context) {
			wait.UntilWithContext(ctx, func(context.Context) {
				mapper.Reset() // The versions of a custom resource may have changed.
				if len(migrated.wanted()) == 0 {
					cancel()
				}
			}, migrationPoll)
		},
	)(ctx)
	return nil
}

// migratedResources is the part of discovery that has the resources that migrations want.
type migratedResources struct {
	discovery.ServerResourcesInterface
	migrations storagemigrationlisters.StorageVersionMigrationLister
}

// wanted returns the resources of unfinished migrations, and of those that have failed not long ago. A migration is
// unfinished while it is marked as running: its end is still to be written to the CustomResourceDefinition.
func (m migratedResources) wanted() map[schema.GroupResource]bool {
	migrations, _ := m.migrations.List(labels.Everything()) // An informer's cache lists everything without an error.
	wanted := map[schema.GroupResource]bool{}
	for _, migration := range migrations {
		conditions := migration.Status.Conditions
		failed := meta.FindStatusCondition(conditions, string(storagemigrationv1.MigrationFailed))
		hasEnded := meta.IsStatusConditionTrue(conditions, string(storagemigrationv1.MigrationSucceeded)) ||
			failed != nil && time.Since(failed.LastTransitionTime.Time) > keepFailed
		if !hasEnded || meta.IsStatusConditionTrue(conditions, string(storagemigrationv1.MigrationRunning)) {
			wanted[schema.GroupResource(migration.Spec.Resource)] = true
		}
	}
	return wanted
}

// ServerPreferredResources implements documents.ServerResourcesInterface.
func (m migratedResources) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	wanted := m.wanted()
	all, err := m.ServerResourcesInterface.ServerPreferredResources()
	var some []*metav1.APIResourceList
	for _, list := range all {
		version, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			continue
		}
		kept := *list
		kept.APIResources = slices.DeleteFunc(slices.Clone(list.APIResources), func(r metav1.APIResource) bool {
			return !wanted[schema.GroupResource{Group: version.Group, Resource: r.Name}]
		})
		if len(kept.APIResources) > 0 {
			some = append(some, &kept)
		}
	}
	return some, err
}
