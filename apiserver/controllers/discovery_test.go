package controllers

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
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
		GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: verbs}},
	}}
	for _, version := range versions {
		lists = append(lists, &metav1.APIResourceList{
			GroupVersion: "example.com/" + version, APIResources: []metav1.APIResource{{Name: "foos", Kind: "Foo", Namespaced: true, Verbs: verbs}},
		})
	}
	synctest.Wait()
	c.Lock()
	defer c.Unlock()
	c.Resources = lists
}

// newDiscovering returns what a controller is built with, over fake clients.
func newDiscovering(t *testing.T, objects ...runtime.Object) (*controllerContext, discoveringClient, *metadatafake.FakeMetadataClient) {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, objectMetadata := discoveringClient{fake.NewClientset()}, metadatafake.NewSimpleMetadataClient(scheme, objects...)
	started := make(chan struct{})
	close(started)
	own := clients{&rest.Config{Host: "https://example.com", Transport: notFound{}}, client, objectMetadata}
	return &controllerContext{
		Config:            &Config{NewMetadataWatch: func(schema.GroupResource) *storage.MetadataWatch { return nil }},
		ControllerContext: app.ControllerContext{InformerFactory: informers.NewSharedInformerFactory(client, 0), InformersStarted: started},
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
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/" + version, Kind: "Foo", Name: owner, UID: uid}},
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
		if _, err := objects.Resource(configMaps).Namespace("default").Get(ctx, "dependent", metav1.GetOptions{}); err != nil {
			t.Errorf("the dependent of an owner that exists: %v", err)
		}
		cancel()
		cc.metadataInformers.Shutdown()
		synctest.Wait()
	})
}
