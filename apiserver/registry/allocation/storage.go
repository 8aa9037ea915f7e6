package allocation

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
)

// newStorage returns the storage.Interface that options' decorator makes for gr, and the
// prefix of its keys. The storage is used directly, without a registry.
func newStorage(options generic.RESTOptionsGetter, gr schema.GroupResource, objects func() (object, list runtime.Object)) (storage.Interface, string, error) {
	object, _ := objects()
	opts, err := options.GetRESTOptions(gr, object)
	if err != nil {
		return nil, "", err
	}
	prefix := "/" + opts.ResourcePrefix
	store, _, err := opts.Decorator(opts.StorageConfig, prefix,
		func(runtime.Object) (string, error) { return "", fmt.Errorf("%s have no keys of their own", gr) },
		func() runtime.Object { object, _ := objects(); return object },
		func() runtime.Object { _, list := objects(); return list },
		storage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		return nil, "", fmt.Errorf("storage of %s: %w", gr, err)
	}
	return store, prefix, nil
}

// stopChannel returns a channel that is closed when ctx ends. Upstream's repair loops
// take a chan struct{}; ctx.Done() is receive-only.
func stopChannel(ctx context.Context) chan struct{} {
	stop := make(chan struct{})
	context.AfterFunc(ctx, func() { close(stop) })
	return stop
}
