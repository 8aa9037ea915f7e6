package lookup_test

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the scheme's core group
	"k8s.io/kubernetes/pkg/apis/discovery"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"

	"byre/apiserver/lookup"
	"byre/apiserver/objectstore"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
	"byre/watch/watchtest"
)

// Look-ups read what is stored, written the moment before, and send nothing to
// the client that everything else goes to.
func TestClient_ReadsTheStore(t *testing.T) {
	store, feed := watchtest.Run(t, storetest.NewModel(), watch.Options{})
	endpointSlices := discovery.Resource("endpointslices")
	getter := objectstore.NewRESTOptionsGetter(objectstore.StorageConfig{Store: store, Feed: feed}, objectstore.BuiltinResources(compatibility.NewEffectiveVersionFromString("1.36", "1.36", "1.36")))
	for resource, news := range map[schema.GroupResource][2]func() runtime.Object{
		{Resource: "pods"}:            {func() runtime.Object { return &core.Pod{} }, func() runtime.Object { return &core.PodList{} }},
		{Resource: "services"}:        {func() runtime.Object { return &core.Service{} }, func() runtime.Object { return &core.ServiceList{} }},
		{Resource: "secrets"}:         {func() runtime.Object { return &core.Secret{} }, func() runtime.Object { return &core.SecretList{} }},
		{Resource: "serviceaccounts"}: {func() runtime.Object { return &core.ServiceAccount{} }, func() runtime.Object { return &core.ServiceAccountList{} }},
		{Resource: "nodes"}:           {func() runtime.Object { return &core.Node{} }, func() runtime.Object { return &core.NodeList{} }},
		endpointSlices:                {func() runtime.Object { return &discovery.EndpointSlice{} }, func() runtime.Object { return &discovery.EndpointSliceList{} }},
	} {
		opts, err := getter.GetRESTOptions(resource, news[0]())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix, nil, news[0], news[1], storage.DefaultNamespaceScopedAttr, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	requests := fake.NewClientset()
	direct := lookup.NewClient(requests, getter.Lookup)
	client := direct.CoreV1()
	write := func(resource schema.GroupResource, version, kind, namespace, name string) {
		value := fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{"namespace":%q,"name":%q,"uid":"1","labels":{"l":%q}}}`, kind, version, namespace, name, name)
		key := sqlstore.Key{Group: resource.Group, Resource: resource.Resource, Namespace: namespace, Name: name}
		if _, err := store.Commit(t.Context(), sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"0", ""} {
		opts := metav1.GetOptions{ResourceVersion: version}
		name := "v" + version
		get := map[string]func(string) (metav1.Object, error){
			"Pod":            func(n string) (metav1.Object, error) { return client.Pods("n").Get(t.Context(), n, opts) },
			"Service":        func(n string) (metav1.Object, error) { return client.Services("n").Get(t.Context(), n, opts) },
			"Secret":         func(n string) (metav1.Object, error) { return client.Secrets("n").Get(t.Context(), n, opts) },
			"ServiceAccount": func(n string) (metav1.Object, error) { return client.ServiceAccounts("n").Get(t.Context(), n, opts) },
			"Node":           func(n string) (metav1.Object, error) { return client.Nodes().Get(t.Context(), n, opts) },
		}
		for kind, resource := range map[string]string{
			"Pod": "pods", "Service": "services", "Secret": "secrets", "ServiceAccount": "serviceaccounts", "Node": "nodes",
		} {
			if _, err := get[kind](name); !apierrors.IsNotFound(err) {
				t.Errorf("%s that is not there: %v", kind, err)
			}
			namespace := "n"
			if kind == "Node" {
				namespace = ""
			}
			write(schema.GroupResource{Resource: resource}, "v1", kind, namespace, name)
			if got, err := get[kind](name); err != nil || got.GetName() != name || got.GetUID() != "1" || got.GetResourceVersion() == "" {
				t.Errorf("%s: %v, %v", kind, got, err)
			}
		}
	}
	list, err := client.Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "l=v0", ResourceVersion: "0"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "v0" {
		t.Errorf("list: %v, %v", list, err)
	}
	for _, name := range []string{"web", "other"} {
		write(endpointSlices, "discovery.k8s.io/v1", "EndpointSlice", "n", name)
	}
	slices, err := direct.DiscoveryV1().EndpointSlices("n").List(t.Context(), metav1.ListOptions{LabelSelector: "l=web", ResourceVersion: "0"})
	if err != nil || len(slices.Items) != 1 || slices.Items[0].Name != "web" {
		t.Errorf("list: %v, %v", slices, err)
	}
	if n := len(requests.Actions()); n != 0 {
		t.Errorf("%d requests: %v", n, requests.Actions())
	}
	// What an informer asks for is a request.
	if _, err := client.Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName!="}); err != nil || len(requests.Actions()) != 1 {
		t.Errorf("%v, %d requests, want 1", err, len(requests.Actions()))
	}
}
