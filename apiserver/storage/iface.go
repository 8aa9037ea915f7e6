package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
)

func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	panic("in work")
}
func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *apistorage.Preconditions, validateDeletion apistorage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts apistorage.DeleteOptions) error {
	panic("in work")
}
func (s *Store) Watch(ctx context.Context, key string, opts apistorage.ListOptions) (apiwatch.Interface, error) {
	panic("in work")
}
func (s *Store) Get(ctx context.Context, key string, opts apistorage.GetOptions, objPtr runtime.Object) error {
	panic("in work")
}
func (s *Store) GetList(ctx context.Context, key string, opts apistorage.ListOptions, listObj runtime.Object) error {
	panic("in work")
}
func (s *Store) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *apistorage.Preconditions, tryUpdate apistorage.UpdateFunc, cachedExistingObject runtime.Object) error {
	panic("in work")
}
func (s *Store) Stats(ctx context.Context) (apistorage.Stats, error)           { panic("in work") }
func (s *Store) ReadinessCheck() error                                         { panic("in work") }
func (s *Store) RequestWatchProgress(ctx context.Context) error                { panic("in work") }
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) { panic("in work") }
func (s *Store) EnableResourceSizeEstimation(apistorage.KeysFunc) error        { panic("in work") }
func (s *Store) CompactRevision() int64                                        { panic("in work") }
