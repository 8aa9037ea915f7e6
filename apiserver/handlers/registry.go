package handlers

import (
	"reflect"

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// registryProvider is a storage that holds its registry in a field which is not embedded.
type registryProvider interface {
	Registry() *genericregistry.Store
}

// registryOf returns the registry whose reads give the same result as those of a storage;
// nil if there is none. It is the storage itself, or embedded in it, directly or in an
// embedded rest.StandardStorage, or the one that a registryProvider returns.
//
// The function relies on a property of upstream's storages: one that embeds a registry does
// not change what the registry reads, unless by the registry's Decorator, which encoded calls.
// TestRegistry_ReadsAreNotOverridden fails for another, and lists the storages that are read
// otherwise.
func registryOf(s rest.Storage) *genericregistry.Store {
	if provider, ok := s.(registryProvider); ok {
		return provider.Registry()
	}
	value := reflect.ValueOf(s)
	for value.Kind() == reflect.Struct || value.Kind() == reflect.Pointer && !value.IsNil() {
		if registry, ok := value.Interface().(*genericregistry.Store); ok {
			return registry
		}
		if value = reflect.Indirect(value); value.Kind() != reflect.Struct {
			return nil
		}
		value = embeddedGetter(value)
	}
	return nil
}

// embeddedGetter returns the exported embedded field of object that implements rest.Getter;
// the zero Value if there is none.
func embeddedGetter(object reflect.Value) reflect.Value {
	for i := range object.NumField() {
		field := object.Type().Field(i)
		if !field.Anonymous || !field.IsExported() {
			continue
		}
		value := object.Field(i)
		if value.Kind() == reflect.Interface {
			value = value.Elem()
		}
		if value.Kind() != reflect.Pointer {
			continue
		}
		if _, ok := value.Interface().(rest.Getter); ok {
			return value
		}
	}
	return reflect.Value{}
}
