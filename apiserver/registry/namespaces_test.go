package registry

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/kubernetes/pkg/apis/core"

	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// TestNamespaceRegistry_IsUpstreams compares namespaceStorage's registry with the one in an
// unexported field of upstream's storage: both return the same objects.
func TestNamespaceRegistry_IsUpstreams(t *testing.T) {
	t.Parallel()
	model := storetest.NewModel()
	options := storage.NewRESTOptionsGetter(
		storage.Backend{Store: sqlstore.New(model, sqlstore.Options{}), Feed: watch.New(model, watch.Options{})},
		storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
	all, err := namespaces(&storageProvider{Config: Config{RESTOptions: options}})
	if err != nil {
		t.Fatal(err)
	}
	s := all[""].(namespaceStorage)
	field := reflect.ValueOf(s.REST).Elem().FieldByName("store")
	upstream, ours := (*genericregistry.Store)(field.UnsafePointer()), s.Registry()

	if upstream.Storage.Storage != ours.Storage.Storage {
		t.Error("the registries have different storages")
	}
	for _, name := range []string{"Decorator", "AfterCreate", "AfterUpdate", "AfterDelete"} {
		if !reflect.ValueOf(upstream).Elem().FieldByName(name).IsNil() {
			t.Errorf("upstream's registry sets %s", name)
		}
	}
	ctx := request.WithNamespace(t.Context(), "")
	for _, registry := range []*genericregistry.Store{upstream, ours} {
		if key, err := registry.KeyFunc(ctx, "a"); key != "/namespaces/a" || err != nil {
			t.Errorf("KeyFunc returned %q, %v", key, err)
		}
		if root := registry.KeyRootFunc(ctx); root != "/namespaces" {
			t.Errorf("KeyRootFunc returned %q", root)
		}
	}
	if upstream.DefaultQualifiedResource != ours.DefaultQualifiedResource {
		t.Errorf("upstream's resource is %s", upstream.DefaultQualifiedResource)
	}
	for _, pair := range [][2]runtime.Object{{upstream.NewFunc(), ours.NewFunc()}, {upstream.NewListFunc(), ours.NewListFunc()}} {
		if reflect.TypeOf(pair[0]) != reflect.TypeOf(pair[1]) {
			t.Errorf("upstream makes a %T, ours is a %T", pair[0], pair[1])
		}
	}
	object := &core.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "1"}},
		Status:     core.NamespaceStatus{Phase: core.NamespaceActive},
	}
	for _, label := range []string{"", "l=1", "l=2"} {
		for _, field := range []string{"", "metadata.name=a", "metadata.name=b", "status.phase=Active", "status.phase=Terminating", "name=a"} {
			l, err := labels.Parse(label)
			if err != nil {
				t.Fatal(err)
			}
			f := fields.ParseSelectorOrDie(field)
			want, wantErr := matches(upstream, l, f, object)
			got, gotErr := matches(ours, l, f, object)
			if got != want || (gotErr == nil) != (wantErr == nil) {
				t.Errorf("%q %q: got %v, %v, want %v, %v", label, field, got, gotErr, want, wantErr)
			}
		}
	}
}

func matches(registry *genericregistry.Store, l labels.Selector, f fields.Selector, object runtime.Object) (bool, error) {
	predicate := registry.PredicateFunc(l, f)
	return predicate.Matches(object)
}
