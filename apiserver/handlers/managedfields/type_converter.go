package managedfields

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// NewTypeConverter returns a type converter of Go objects for managed fields. It calls
// schemas once, at its first use or in Prepare.
//
// What upstream does: its converter validates every object against its schema. It makes
// a new object of a typed value at each request for one, which its field manager makes
// for every manager of an object's fields.
//
// What is done instead: only the first object of a kind is validated. A typed value
// refers to the object that it was made of. Comparisons leave out parts that are equal
// (update.go).
//
// What it relies on: a Go object has the fields of its type. An object of a kind can
// therefore violate the schema in two ways only: by duplicates, which the caller
// allows, and by missing keys of list items, which the comparison after the conversion
// reports too. TestTypeConverter_Converts, TestTypeConverter_Validates and FuzzUpdate
// fail when upstream does otherwise.
//
// What it earns: a fourteenth of the processor time of a Pod's create, and a fifth of a status
// patch (BenchmarkUpdate compares it, together with update.go).
func NewTypeConverter(schemas func() (map[string]*spec.Schema, error)) *TypeConverter {
	return &TypeConverter{build: sync.OnceValues(func() (managedfields.TypeConverter, error) {
		built, err := schemas()
		if err != nil {
			return nil, err
		}
		return managedfields.NewTypeConverter(built, false)
	})}
}

var _ managedfields.TypeConverter = (*TypeConverter)(nil)

// TypeConverter implements managedfields.TypeConverter. It is safe for concurrent use.
type TypeConverter struct {
	build func() (managedfields.TypeConverter, error)
	// types maps each schema.GroupVersionKind of which an object was validated to its
	// knownType.
	types sync.Map
}

// knownType is the schema type of a kind, with the fields that a comparison may leave
// out.
type knownType struct {
	typed.ParseableType
	parts []*value.FieldCacheEntry
}

// Prepare builds the schemas, so that the first use does not wait for them. If that
// fails, the first use returns the error.
func (c *TypeConverter) Prepare() { _, _ = c.build() }

// ObjectToTyped implements managedfields.TypeConverter.
func (c *TypeConverter) ObjectToTyped(
	object runtime.Object, opts ...typed.ValidationOptions,
) (*typed.TypedValue, error) {
	upstream, err := c.build()
	if err != nil {
		return nil, err
	}
	if _, ok := object.(runtime.Unstructured); ok || !slices.Contains(opts, typed.AllowDuplicates) {
		return upstream.ObjectToTyped(object, opts...)
	}
	kind := object.GetObjectKind().GroupVersionKind()
	if known, ok := c.types.Load(kind); ok {
		of := known.(knownType)
		v, err := value.NewValueReflect(object)
		if err != nil {
			return nil, err
		}
		return typed.AsTypedUnvalidated(objectValue{v, object, of.parts}, of.Schema, of.TypeRef), nil //nolint:staticcheck // deprecated since validation is cheap; it is not
	}
	converted, err := upstream.ObjectToTyped(object, opts...)
	if err == nil {
		c.types.Store(kind,
			knownType{typed.ParseableType{Schema: converted.Schema(), TypeRef: converted.TypeRef()}, partsOf(object, converted)})
	}
	return converted, err
}

// TypedToObject implements managedfields.TypeConverter. If the value was made of an
// object, it returns this object. Upstream calls it for every manager of an object's
// fields, mostly to compare the object's version with the manager's.
func (c *TypeConverter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	if of, ok := v.AsValue().(objectValue); ok {
		return of.object, nil
	}
	upstream, err := c.build()
	if err != nil {
		return nil, err
	}
	return upstream.TypedToObject(v)
}
