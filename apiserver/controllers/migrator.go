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
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	storagemigrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/storageversionmigrator"
	"k8s.io/kubernetes/pkg/features"

	"byre/apiserver/storage"
)

// migrationPoll is how often the resources of unfinished migrations are looked up.
const migrationPoll = time.Second

// newStorageVersionMigrator builds upstream's controllers of StorageVersionMigrations. It builds
// none if the feature is off.
//
// Upstream's migrator takes the objects of a resource from the stores of a garbage collector.
// byre's collector keeps no objects. The migrator therefore has a collector of its own, which
// follows only the resources that are being migrated, and has no workers: it deletes nothing.
func newStorageVersionMigrator(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionMigrator) {
		return nil, nil
	}
	untyped, err := dynamic.NewForConfig(cc.config)
	if err != nil {
		return nil, err
	}
	definitions, err := apiextensionsclient.NewForConfig(cc.config)
	if err != nil {
		return nil, err
	}
	published := cc.kube.Discovery()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(published))
	// The migrator's own account may list every resource, but watch none.
	factory := metadatainformer.NewSharedInformerFactory(cc.root.metadata, 0)
	stored := func(schema.GroupResource) *storage.MetadataWatch { return nil }
	started := make(chan struct{})
	close(started)
	graph := garbagecollector.NewDependencyGraphBuilder(ctx, cc.metadata, mapper, garbagecollector.DefaultIgnoredResources(),
		graphInformers{stored, factory}, started)
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, cc.kube, cc.metadata, mapper, graph)
	if err != nil {
		return nil, err
	}
	migrations := cc.InformerFactory.Storagemigration().V1().StorageVersionMigrations()
	migrated := &migratedResources{ServerResourcesInterface: published, migrations: migrations.Lister()}
	const name = names.StorageVersionMigratorController
	migrate := storageversionmigrator.NewSVMController(ctx, cc.kube, untyped, migrations, name, mapper, graph)
	revisions := storageversionmigrator.NewResourceVersionController(ctx, cc.kube, cc.kube.Discovery(), cc.metadata, migrations, mapper)
	custom := storageversionmigrator.NewCustomResourceController(ctx, cc.kube, migrations, definitions.ApiextensionsV1().CustomResourceDefinitions())
	return func(ctx context.Context) {
		defer factory.Shutdown()
		together(
			// Run logs an error if no resource is synced in this time. The first comes with the second poll.
			func(ctx context.Context) { collector.Run(ctx, 0, time.Hour) },
			func(ctx context.Context) { collector.Sync(ctx, migrated, migrationPoll) },
			migrate.Run, revisions.Run, custom.Run,
		)(ctx)
	}, nil
}

// migratedResources is the part of discovery that has the resources of unfinished migrations.
type migratedResources struct {
	discovery.ServerResourcesInterface
	migrations storagemigrationlisters.StorageVersionMigrationLister
	// last is the last answer that has resources: the collector takes none for a failure.
	last []*metav1.APIResourceList
}

// ServerPreferredResources implements discovery.ServerResourcesInterface.
func (m *migratedResources) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	migrations, err := m.migrations.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	wanted := map[schema.GroupResource]bool{}
	for _, migration := range migrations {
		if isFinished := slices.ContainsFunc([]storagemigrationv1.MigrationConditionType{storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed},
			func(c storagemigrationv1.MigrationConditionType) bool {
				return meta.IsStatusConditionTrue(migration.Status.Conditions, string(c))
			}); !isFinished {
			wanted[schema.GroupResource(migration.Spec.Resource)] = true
		}
	}
	if len(wanted) == 0 {
		return m.last, nil
	}
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
	if len(some) > 0 {
		m.last = some
	}
	return m.last, err
}
