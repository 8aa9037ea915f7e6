package managedfields

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// What upstream does: at an update its field manager compares the whole live object
// with the whole new one, value by value by reflection, and keeps the paths that
// differ.
//
// What is done instead: parts that are deeply equal are left out of the comparison. A
// part is a top-level field of the object other than its metadata, such as spec and
// status.
//
// What it relies on: two properties, which are checked when a kind is first seen, and
// by FuzzUpdate:
//
//   - equal Go values have equal typed values, so that comparing them adds no path;
//   - comparing the part cannot fail. A comparison fails at a list item that lacks what
//     identifies it, and the object then loses its managed fields. A part whose type
//     can have such items is always compared.
//
// It also relies on this: upstream visits the fields of two Go objects together only to
// compare them. A merge, for server-side apply, visits an object and an unstructured
// one.
//
// What it earns: half the time and a third of the allocations of the managed fields of an
// update of a Pod's status (BenchmarkUpdate, together with type_converter.go).

// objectValue is the typed value of a Go object. It refers to the object.
type objectValue struct {
	value.Value
	object runtime.Object
	parts  []*value.FieldCacheEntry
}

// AsMap implements value.Value.
func (v objectValue) AsMap() value.Map { return v.AsMapUsing(value.HeapAllocator) }

// AsMapUsing implements value.Value.
func (v objectValue) AsMapUsing(a value.Allocator) value.Map {
	return objectMap{v.Value.AsMapUsing(a), v}
}

// objectMap is an objectValue as a map of its fields.
type objectMap struct {
	value.Map
	of objectValue
}

// Zip implements value.Map.
func (m objectMap) Zip(other value.Map, order value.MapTraverseOrder, visit func(key string, lhs, rhs value.Value) bool) bool {
	return m.ZipUsing(value.HeapAllocator, other, order, visit)
}

// ZipUsing implements value.Map. It does not visit the parts that are equal.
func (m objectMap) ZipUsing(a value.Allocator, other value.Map, order value.MapTraverseOrder, visit func(key string, lhs, rhs value.Value) bool) bool {
	o, ok := other.(objectMap)
	if !ok {
		return m.Map.ZipUsing(a, other, order, visit)
	}
	equal := m.of.equalParts(o.of)
	return m.Map.ZipUsing(a, o.Map, order, func(key string, lhs, rhs value.Value) bool {
		return slices.Contains(equal, key) || visit(key, lhs, rhs)
	})
}

// equalParts returns the names of the parts that are equal in two objects.
func (v objectValue) equalParts(other objectValue) (names []string) {
	lhs, rhs := reflect.ValueOf(v.object), reflect.ValueOf(other.object)
	if lhs.Type() != rhs.Type() || lhs.Kind() != reflect.Pointer {
		return nil
	}
	for _, part := range v.parts {
		l, r := part.GetFrom(lhs.Elem()), part.GetFrom(rhs.Elem())
		if l.CanAddr() && r.CanAddr() && reflect.DeepEqual(l.Addr().Interface(), r.Addr().Interface()) {
			names = append(names, part.JsonName)
		}
	}
	return names
}

// partsOf returns the fields of an object that a comparison may leave out if they are
// equal.
func partsOf(object runtime.Object, of *typed.TypedValue) (parts []*value.FieldCacheEntry) {
	t := reflect.TypeOf(object)
	atom, ok := of.Schema().Resolve(of.TypeRef())
	if !ok || atom.Map == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	c := comparison{schema: of.Schema(), known: map[compiledType]bool{}}
	empty := reflect.New(t.Elem()).Elem()
	for _, field := range value.TypeReflectEntryOf(t.Elem()).OrderedFields() {
		at, ok := atom.Map.FindField(field.JsonName)
		if ok && field.JsonName != "metadata" && c.cannotFail(field.GetFrom(empty).Type(), at.Type) {
			parts = append(parts, field)
		}
	}
	return parts
}

// comparison finds out for which types upstream's comparison cannot fail.
type comparison struct {
	schema *schema.Schema
	// known has the result for each type that was examined, and true for a type whose
	// examination has not ended. A type that contains itself can fail only at something
	// else in it.
	known map[compiledType]bool
}

func (c *comparison) cannotFail(t reflect.Type, of schema.TypeRef) bool {
	atom, ok := c.schema.Resolve(of)
	if !ok {
		return false
	}
	if of.NamedType == nil {
		return c.atomCannotFail(t, atom)
	}
	key := compiledType{goType: t, named: *of.NamedType}
	if of.ElementRelationship != nil {
		key.named += "," + string(*of.ElementRelationship)
	}
	if can, ok := c.known[key]; ok {
		return can
	}
	c.known[key] = true
	can := c.atomCannotFail(t, atom)
	c.known[key] = can
	return can
}

func (c *comparison) atomCannotFail(t reflect.Type, atom schema.Atom) bool {
	if t.Kind() == reflect.Pointer {
		return c.atomCannotFail(t.Elem(), atom)
	}
	isMarshaled := value.TypeReflectEntryOf(t).CanConvertToUnstructured()
	switch {
	case atom.Scalar != nil && atom.List == nil && atom.Map == nil:
		return isMarshaled || hasScalar(t, *atom.Scalar)
	case t == reflect.TypeFor[intstr.IntOrString]():
		// The schema allows any value, but an IntOrString marshals to a scalar.
		return atom.Scalar != nil && *atom.Scalar == schema.Untyped
	case isMarshaled:
		return false
	case atom.List != nil && atom.Scalar == nil && atom.Map == nil:
		return t.Kind() == reflect.Slice && c.listCannotFail(t.Elem(), atom.List)
	case atom.Map == nil || atom.Scalar != nil || atom.List != nil:
		return false
	case atom.Map.ElementRelationship == schema.Atomic:
		return t.Kind() == reflect.Struct || t.Kind() == reflect.Map
	case t.Kind() == reflect.Map:
		return t.Key().Kind() == reflect.String && c.cannotFail(t.Elem(), atom.Map.ElementType)
	case t.Kind() != reflect.Struct:
		return false
	}
	empty := reflect.New(t).Elem()
	for _, field := range value.TypeReflectEntryOf(t).OrderedFields() {
		to := atom.Map.ElementType
		if of, ok := atom.Map.FindField(field.JsonName); ok {
			to = of.Type
		}
		if !c.cannotFail(field.GetFrom(empty).Type(), to) {
			return false
		}
	}
	return true
}

// listCannotFail reports whether every possible item has what identifies it.
func (c *comparison) listCannotFail(t reflect.Type, list *schema.List) bool {
	if list.ElementRelationship == schema.Atomic {
		return true
	}
	if list.ElementRelationship != schema.Associative || !c.cannotFail(t, list.ElementType) {
		return false
	}
	element, ok := c.schema.Resolve(list.ElementType)
	if len(list.Keys) == 0 { // a set
		return ok && element.Scalar != nil && hasScalar(t, *element.Scalar)
	}
	if !ok || element.Map == nil || t.Kind() != reflect.Struct {
		return false
	}
	empty, fields := reflect.New(t).Elem(), value.TypeReflectEntryOf(t).Fields()
	for _, key := range list.Keys {
		if of, ok := element.Map.FindField(key); ok && of.Default != nil {
			return true
		}
		if field, ok := fields[key]; ok && !field.CanOmit(field.GetFrom(empty)) {
			return true
		}
	}
	return false
}

// hasScalar reports whether all values of a Go type are scalars of a kind.
func hasScalar(t reflect.Type, scalar schema.Scalar) bool {
	switch t.Kind() {
	case reflect.String:
		return scalar == schema.String || scalar == schema.Untyped
	case reflect.Bool:
		return scalar == schema.Boolean || scalar == schema.Untyped
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Float32, reflect.Float64:
		return scalar == schema.Numeric || scalar == schema.Untyped
	case reflect.Slice: // a nil slice is null, which any scalar may be
		return t.Elem().Kind() == reflect.Uint8 && (scalar == schema.String || scalar == schema.Untyped)
	default:
		return false
	}
}
