package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
)

// namespaces builds the storages of namespaces. Upstream's storage keeps its registry in
// an unexported field, where package handlers cannot find it. namespaceStorage therefore
// adds a registry of its own over the same storage.Interface.
func namespaces(p *storageProvider) (storages, error) {
	recorder := &storageRecorder{RESTOptionsGetter: p.RESTOptions}
	s, status, finalize, err := namespacestore.NewREST(recorder)
	if err != nil {
		return nil, err
	}
	registry, err := newNamespaceRegistry(recorder)
	if err != nil {
		return nil, fmt.Errorf("registry for reads: %w", err)
	}
	return storages{"": namespaceStorage{s, registry}, "status": status, "finalize": finalize}, nil
}

// namespaceStorage is upstream's storage of namespaces with the registry that package
// endpoints reads from.
type namespaceStorage struct {
	*namespacestore.REST
	registry *genericregistry.Store
}

// Registry returns a registry whose reads give the same result as those of the embedded
// storage. Writes must go through the embedded storage.
func (n namespaceStorage) Registry() *genericregistry.Store { return n.registry }

// newNamespaceRegistry builds a registry over the storage that recorder has recorded. The
// functions that reads depend on are those of upstream's NewREST
// (k8s.io/kubernetes/pkg/registry/core/namespace/storage);
// TestNamespaceRegistry_IsUpstreams compares the two.
func newNamespaceRegistry(recorder *storageRecorder) (*genericregistry.Store, error) {
	registry := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &core.Namespace{} },
		NewListFunc:               func() runtime.Object { return &core.NamespaceList{} },
		PredicateFunc:             namespace.MatchNamespace,
		DefaultQualifiedResource:  core.Resource("namespaces"),
		SingularQualifiedResource: core.Resource("namespace"),
		CreateStrategy:            namespace.Strategy,
		UpdateStrategy:            namespace.Strategy,
		DeleteStrategy:            namespace.Strategy,
		TableConvertor:            rest.NewDefaultTableConvertor(core.Resource("namespaces")),
	}
	registry.Storage.Storage = recorder.storage // CompleteWithOptions makes no other
	err := registry.CompleteWithOptions(&generic.StoreOptions{RESTOptions: recorder.RESTOptionsGetter, AttrFunc: namespace.GetAttrs})
	return registry, err
}

// storageRecorder is a RESTOptionsGetter that records the storage.Interface which its
// decorator returns.
type storageRecorder struct {
	generic.RESTOptionsGetter
	storage storage.Interface
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (r *storageRecorder) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := r.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	decorate := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		s, destroy, err := decorate(config, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
		r.storage = s
		return s, destroy, err
	}
	return options, nil
}
