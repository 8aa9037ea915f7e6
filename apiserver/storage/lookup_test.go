package storage_test

import (
	"context"
	"testing"

	"k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/apitest"
	"byre/apiserver/storage"
)

func metaOf(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1", Labels: map[string]string{"l": name}}
}

// reads are the two ways to read an object.
type reads map[string]func(ctx context.Context, name string) (metav1.Object, error)

// readsOf returns the reads of the objects of a namespace.
func readsOf[T any, P interface {
	*T
	metav1.Object
}](r storage.LookupResource[T], namespace string) reads {
	return reads{
		"cached": func(ctx context.Context, name string) (metav1.Object, error) {
			object, err := r.GetCached(ctx, namespace, name)
			return P(object), err
		},
		"live": func(ctx context.Context, name string) (metav1.Object, error) {
			object, err := r.Get(ctx, namespace, name)
			return P(object), err
		},
	}
}

// TestReader_ReadsTheStore: a read right after a write returns what was written.
func TestReader_ReadsTheStore(t *testing.T) {
	t.Parallel()
	stores := apitest.NewStores(t)
	r := stores.Reader
	for _, test := range []struct {
		resource schema.GroupResource
		reads    reads
		object   func(name string) apitest.Object
	}{
		{v1.Resource("serviceaccounts"), readsOf(r.ServiceAccounts, "n"), func(name string) apitest.Object {
			return &v1.ServiceAccount{ObjectMeta: metaOf("n", name)}
		}},
		{v1.Resource("pods"), readsOf(r.Pods, "n"), func(name string) apitest.Object {
			return &v1.Pod{ObjectMeta: metaOf("n", name)}
		}},
		{v1.Resource("secrets"), readsOf(r.Secrets, "n"), func(name string) apitest.Object {
			return &v1.Secret{ObjectMeta: metaOf("n", name)}
		}},
		{v1.Resource("nodes"), readsOf(r.Nodes, ""), func(name string) apitest.Object {
			return &v1.Node{ObjectMeta: metaOf("", name)}
		}},
		{v1.Resource("services"), readsOf(r.Services, "n"), func(name string) apitest.Object {
			return &v1.Service{ObjectMeta: metaOf("n", name)}
		}},
		{discoveryv1.Resource("endpointslices"), readsOf(r.EndpointSlices, "n"), func(name string) apitest.Object {
			return &discoveryv1.EndpointSlice{ObjectMeta: metaOf("n", name)}
		}},
	} {
		for name, read := range test.reads {
			if _, err := read(t.Context(), name); !apierrors.IsNotFound(err) {
				t.Errorf("%s %s that does not exist: %v", test.resource, name, err)
			}
			stores.Create(t, test.resource, test.object(name))
			if got, err := read(t.Context(), name); err != nil || got.GetName() != name || got.GetUID() != "1" ||
				got.GetResourceVersion() == "" {
				t.Errorf("%s %s: %v, %v", test.resource, name, got, err)
			}
		}
	}
}

// TestReader_ListsBySelector: a list has the objects with the labels, of one namespace or
// of all.
func TestReader_ListsBySelector(t *testing.T) {
	t.Parallel()
	stores := apitest.NewStores(t)
	for namespace, name := range map[string]string{"m": "web", "n": "web", "n2": "other"} {
		stores.Create(t, v1.Resource("pods"), &v1.Pod{ObjectMeta: metaOf(namespace, name)})
	}
	for _, test := range []struct {
		namespace string
		selector  labels.Selector
		want      int
	}{
		{"", labels.Everything(), 3},
		{"", labels.SelectorFromSet(labels.Set{"l": "web"}), 2},
		{"n", labels.Everything(), 1},
		{"n", labels.SelectorFromSet(labels.Set{"l": "other"}), 0},
	} {
		pods, err := stores.Reader.Pods.ListCached(t.Context(), test.namespace, test.selector)
		if err != nil || len(pods) != test.want {
			t.Errorf("%q in %q: %v, %v, want %d", test.selector, test.namespace, pods, err, test.want)
		}
	}
}

// TestReader_RefusesWhatIsNotServed: before the stores exist every read is an error.
func TestReader_RefusesWhatIsNotServed(t *testing.T) {
	t.Parallel()
	r := storage.NewLookupReader(func(schema.GroupResource) *storage.Store { return nil })
	if _, err := r.Nodes.Get(t.Context(), "", "n"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("Get: %v", err)
	}
	if _, err := r.Nodes.GetCached(t.Context(), "", "n"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("GetCached: %v", err)
	}
	if _, err := r.Pods.ListCached(t.Context(), "", labels.Everything()); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("ListCached: %v", err)
	}
}
