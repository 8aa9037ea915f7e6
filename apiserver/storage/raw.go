package storage

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// NewRawStorage makes the storage of a resource without a registry, for objects whose keys the
// caller makes. prefix is that of the keys, without a slash at its end.
func NewRawStorage(
	options generic.RESTOptionsGetter, gr schema.GroupResource, newFunc, newListFunc func() runtime.Object,
) (store apistorage.Interface, prefix string, err error) {
	opts, err := options.GetRESTOptions(gr, newFunc())
	if err != nil {
		return nil, "", err
	}
	prefix = "/" + opts.ResourcePrefix
	store, _, err = opts.Decorator(opts.StorageConfig, prefix, nil, newFunc, newListFunc, apistorage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		return nil, "", fmt.Errorf("storage of %s: %w", gr, err)
	}
	return store, prefix, nil
}
