package instances

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// statusStorage is the status subresource of a version. Upstream's StatusREST has no
// exported field for the strategy, which must be a lazyStrategy here.
type statusStorage struct{ store *genericregistry.Store }

var _ rest.Patcher = statusStorage{}

func newStatusStorage(registry *genericregistry.Store, strategy updateStrategy) statusStorage {
	store := *registry
	store.UpdateStrategy, store.ResetFieldsStrategy = strategy, strategy
	return statusStorage{&store}
}

func (s statusStorage) New() runtime.Object { return s.store.New() }

// Destroy does nothing: the store is the main resource's.
func (statusStorage) Destroy() {}

func (s statusStorage) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update changes the status of an object that exists.
func (s statusStorage) Update(ctx context.Context, name string, object rest.UpdatedObjectInfo, onCreate rest.ValidateObjectFunc, onUpdate rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, object, onCreate, onUpdate, false, options)
}

func (s statusStorage) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// scaleStorage adds Destroy to upstream's ScaleREST, which makes it a rest.Storage.
type scaleStorage struct{ *customresource.ScaleREST }

// Destroy does nothing: the store is the main resource's.
func (scaleStorage) Destroy() {}
