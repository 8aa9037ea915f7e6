package controllers

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	storagemigrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"byre/apiserver/storage"
)

// discoveringClient is a fake client whose discovery lists preferred resources.
type discoveringClient struct{ *fake.Clientset }

func (c discoveringClient) Discovery() discovery.DiscoveryInterfaces {
	return fakeDiscovery{&discoveryfake.FakeDiscovery{Fake: &c.Fake}}
}

type fakeDiscovery struct{ *discoveryfake.FakeDiscovery }

func (d fakeDiscovery) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return discovery.ServerPreferredResources(d.FakeDiscovery)
}

func (d fakeDiscovery) ServerPreferredResourcesWithContext(ctx context.Context) ([]*metav1.APIResourceList, error) {
	return discovery.ServerPreferredResourcesWithContext(ctx, d.FakeDiscovery)
}

// serve has discovery list ConfigMaps, and Foos in the given versions, the first of which is preferred.
func (c discoveringClient) serve(versions ...string) {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
	lists := []*metav1.APIResourceList{{
		GroupVersion: "v1",
		APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: verbs}},
	}}
	for _, version := range versions {
		lists = append(lists, &metav1.APIResourceList{
			GroupVersion: "example.com/" + version,
			APIResources: []metav1.APIResource{{Name: "foos", Kind: "Foo", Namespaced: true, Verbs: verbs}},
		})
	}
	synctest.Wait()
	shared := &c.Fake
	shared.Lock()
	defer shared.Unlock()
	shared.Resources = lists
}

// newDiscovering returns what a controller is built with, over fake clients.
func newDiscovering(
	t *testing.T, objects ...runtime.Object,
) (*controllerContext, discoveringClient, *metadatafake.FakeMetadataClient) {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, objectMetadata := discoveringClient{fake.NewClientset()},
		metadatafake.NewSimpleMetadataClient(scheme, objects...)
	started := make(chan struct{})
	close(started)
	own := clients{&rest.Config{Host: "https://example.com", Transport: notFound{}}, client, objectMetadata}
	return &controllerContext{
		Config: &Config{NewMetadataWatch: func(schema.GroupResource) *storage.MetadataWatch { return nil }},
		ControllerContext: app.ControllerContext{InformerFactory: informers.NewSharedInformerFactory(client, 0),
			InformersStarted: started},
		clients:           own,
		root:              own,
		metadataInformers: metadatainformer.NewSharedInformerFactory(objectMetadata, 0),
	}, client, objectMetadata
}

// notFound answers 404.
type notFound struct{}

func (notFound) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// TestGarbageCollector_LeavesDependentsOfAVersionThatWasServed: once an owner's version is no longer served, the
// collector cannot look for the owner, and does not take it for deleted.
func TestGarbageCollector_LeavesDependentsOfAVersionThatWasServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		owner := &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Foo"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "owner", UID: "1"},
		}
		cc, client, objects := newDiscovering(t, owner)
		client.serve("v1", "v1beta1")
		run, err := newGarbageCollector(ctx, cc)
		if err != nil {
			t.Fatal(err)
		}
		go run(ctx)
		time.Sleep(time.Minute)
		client.serve("v1")
		time.Sleep(time.Minute)
		configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
		dependent := func(name, version, owner string, uid types.UID) {
			if err := objects.Tracker().Create(configMaps, &metav1.PartialObjectMetadata{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: name, UID: types.UID(name),
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/" + version, Kind: "Foo", Name: owner,
						UID: uid}},
				},
			}, "default"); err != nil {
				t.Fatal(err)
			}
		}
		dependent("dependent", "v1beta1", "owner", "1")
		dependent("orphan", "v1", "deleted", "2")
		time.Sleep(time.Minute)
		if _, err := objects.Resource(configMaps).Namespace("default").Get(ctx, "orphan", metav1.GetOptions{}); err == nil {
			t.Error("the dependent of no owner was not deleted")
		}
		if _, err := objects.Resource(configMaps).Namespace("default").Get(ctx, "dependent",
			metav1.GetOptions{}); err != nil {
			t.Errorf("the dependent of an owner that exists: %v", err)
		}
		cancel()
		cc.metadataInformers.Shutdown()
		synctest.Wait()
	})
}

// TestMigrator_FollowsDefinitionsAndKeepsNoObjects migrates two resources, of which the second has moved to another
// version before. No watch and no object outlives a migration.
func TestMigrator_FollowsDefinitionsAndKeepsNoObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cc, client, objects := newDiscovering(t)
		objects.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", UID: "1",
				ResourceVersion: "4"}}
			return true,
				&metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "5"}, Items: []runtime.RawExtension{{Object: object}}}, nil
		})
		watches := make(chan *watch.FakeWatcher, 10)
		objects.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			w := watch.NewFake()
			watches <- w
			return true, w, nil
		})
		run, err := newStorageVersionMigrator(ctx, cc)
		if err != nil {
			t.Fatal(err)
		}
		cc.InformerFactory.StartWithContext(ctx)
		go run(ctx)
		for i, resource := range []metav1.GroupResource{{Resource: "configmaps"}, {Group: "example.com", Resource: "foos"}} {
			client.serve([]string{"v1", "v2"}[i])
			migrations := client.StoragemigrationV1().StorageVersionMigrations()
			migration := &storagemigrationv1.StorageVersionMigration{
				ObjectMeta: metav1.ObjectMeta{Name: resource.Resource, CreationTimestamp: metav1.Now()},
				Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: resource},
			}
			if _, err := migrations.Create(ctx, migration, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if migration, err = migrations.Get(ctx, resource.Resource, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if !meta.IsStatusConditionTrue(migration.Status.Conditions, string(storagemigrationv1.MigrationSucceeded)) {
				t.Errorf("%v: %+v", resource, migration.Status)
			}
			if len(watches) != 1 || !(<-watches).IsStopped() {
				t.Errorf("%v: the objects are watched after the migration", resource)
			}
		}
		cancel()
		cc.InformerFactory.Shutdown()
		synctest.Wait()
	})
}

// TestMigrator_KeepsObjectsAfterAFailure: a migration fails where the objects are not read within a minute. The next
// one finds them.
func TestMigrator_KeepsObjectsAfterAFailure(t *testing.T) {
	t.Parallel()
	condition := func(kind storagemigrationv1.MigrationConditionType, age time.Duration) metav1.Condition {
		return metav1.Condition{Type: string(kind), Status: metav1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(time.Now().Add(-age))}
	}
	running := condition(storagemigrationv1.MigrationRunning, 0)
	for _, test := range []struct {
		conditions []metav1.Condition
		want       bool
	}{
		{nil, true},
		{[]metav1.Condition{running}, true},
		{[]metav1.Condition{running, condition(storagemigrationv1.MigrationSucceeded, 0)}, true},
		{[]metav1.Condition{condition(storagemigrationv1.MigrationSucceeded, 0)}, false},
		{[]metav1.Condition{condition(storagemigrationv1.MigrationFailed, time.Minute)}, true},
		{[]metav1.Condition{condition(storagemigrationv1.MigrationFailed, 2*time.Hour)}, false},
	} {
		known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
		if err := known.Add(&storagemigrationv1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: "one"},
			Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Resource: "pods"}},
			Status:     storagemigrationv1.StorageVersionMigrationStatus{Conditions: test.conditions},
		}); err != nil {
			t.Fatal(err)
		}
		migrated := migratedResources{migrations: storagemigrationlisters.NewStorageVersionMigrationLister(known)}
		if got := migrated.wanted()[pods]; got != test.want {
			t.Errorf("%v: wanted is %v", test.conditions, got)
		}
	}
}
