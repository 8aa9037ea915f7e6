package endpoints

import (
	"reflect"

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// registryOf finds the registry that a storage is or embeds, directly or inside
// the rest.StandardStorage whose writes it checks. It relies on what holds for
// all of upstream's: a storage that embeds a registry reads what that reads. One that
// has it elsewhere may show it by a method.
func registryOf(s rest.Storage) *genericregistry.Store {
	if shown, ok := s.(interface{ Registry() *genericregistry.Store }); ok {
		return shown.Registry()
	}
	value := reflect.ValueOf(s)
	for value.Kind() == reflect.Pointer && !value.IsNil() {
		if registry, ok := value.Interface().(*genericregistry.Store); ok {
			return registry
		}
		if value = value.Elem(); value.Kind() != reflect.Struct {
			return nil
		}
		value = embeddedGetter(value)
	}
	return nil
}

// embeddedGetter is the embedded field of an object that objects are got from.
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
