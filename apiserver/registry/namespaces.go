package registry

import (
	"reflect"

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
)

// namespaceStorage is upstream's storage of namespaces with the registry that package handlers
// reads from. Upstream keeps the registry in an unexported field, and the methods Get, List and
// Watch of its storage do nothing but call the registry's (TestNamespaces_ReadTheirRegistry).
// Writes must go through the storage.
type namespaceStorage struct{ *namespacestore.REST }

// Registry returns the registry of the embedded storage.
func (n namespaceStorage) Registry() *genericregistry.Store {
	return (*genericregistry.Store)(reflect.ValueOf(n.REST).Elem().FieldByName("store").UnsafePointer())
}
