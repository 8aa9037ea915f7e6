package managedfields

import (
	"fmt"
	"reflect"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// FieldSets caches field sets, as JSON, by kind and shape, up to a number of bytes.
type FieldSets = cache[string, string]

// NewFieldSets returns an empty cache of at most limit bytes.
func NewFieldSets(limit int) *FieldSets {
	return newCache(limit, func(shape, fields string) int { return len(shape) + len(fields) })
}

// shapes makes the cache keys of a kind's field sets.
type shapes struct {
	shaper shaper // nil where upstream computes the fields of every object
	prefix []byte // of the keys
}

// compileShapes makes the shaper of the kind. Its result has no shaper if the kind has no
// shapes.
func (m *Manager) compileShapes() shapes {
	empty, err := m.Creater.New(m.Kind)
	if err != nil {
		return shapes{}
	}
	versioned, err := m.Converter.ConvertToVersion(empty, m.Kind.GroupVersion())
	if err != nil {
		return shapes{}
	}
	if _, isUnstructured := versioned.(runtime.Unstructured); isUnstructured {
		return shapes{}
	}
	converted, err := m.Types.ObjectToTyped(versioned, typed.AllowDuplicates)
	if err != nil {
		return shapes{}
	}
	// Upstream compares every object with this one. A zero scalar is no change only if
	// the same field of this object is zero.
	zero := versioned.DeepCopyObject()
	zero.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	v := reflect.ValueOf(zero)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct || !v.Elem().IsZero() {
		return shapes{}
	}
	c := compiler{schema: converted.Schema(), known: map[compiledType]*link{}}
	return shapes{c.compile(v.Elem().Type(), converted.TypeRef()), appendString(nil, m.Kind.String())}
}

// create sets the managed fields of an object that manager creates, as upstream's field
// manager does. The object has no managed fields and is of the internal version.
func (m *Manager) create(object runtime.Object, manager string) {
	shape, err := m.shape(object)
	// In a manager's name upstream replaces what is not UTF-8.
	if err != nil || !utf8.ValidString(manager) {
		m.compute(object, manager)
		return
	}
	fields, ok := m.FieldSets.get(shape)
	if !ok {
		fields, ok = m.compute(object, manager)
		if ok {
			m.FieldSets.put(shape, fields)
		}
		return
	}
	if accessor, err := meta.Accessor(object); err == nil && fields != "" {
		accessor.SetManagedFields([]metav1.ManagedFieldsEntry{m.entry(manager, fields)})
	}
}

// shape returns the cache key of an object's field set.
func (m *Manager) shape(object runtime.Object) (string, error) {
	of := m.shapes()
	if of.shaper == nil {
		return "", errNoShape
	}
	versioned, err := m.Converter.ConvertToVersion(object, m.Kind.GroupVersion())
	if err != nil {
		return "", err
	}
	v := reflect.ValueOf(versioned)
	if v.Kind() != reflect.Pointer {
		return "", fmt.Errorf("%w: %T", errNoShape, versioned)
	}
	shape, err := of.shaper.appendShape(append(make([]byte, 0, 2048), of.prefix...), v.Elem())
	return string(shape), err
}

// compute makes upstream set the managed fields, and returns them as JSON. isKnown is
// true if they are one entry that create can repeat for other objects of the shape.
func (m *Manager) compute(object runtime.Object, manager string) (fields string, isKnown bool) {
	live, err := m.Creater.New(m.Kind)
	if err != nil {
		return "", false
	}
	if m.Upstream.UpdateNoErrors(live, object, manager) != object {
		return "", false
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", false
	}
	entries := accessor.GetManagedFields()
	if len(entries) != 1 || entries[0].FieldsV1 == nil {
		// There are none for an object that has nothing but its name, and after a
		// failure. Upstream logs each failure, so the result is not cached.
		return "", false
	}
	fields = entries[0].FieldsV1.GetRawString()
	expected := m.entry(manager, fields)
	expected.Time, expected.FieldsV1 = entries[0].Time, entries[0].FieldsV1
	return fields, entries[0] == expected
}

// entry makes the managed fields of a manager that has just created an object.
func (m *Manager) entry(manager, fields string) metav1.ManagedFieldsEntry {
	if manager == "" {
		manager = "unknown"
	}
	return metav1.ManagedFieldsEntry{
		Manager:    manager,
		Operation:  metav1.ManagedFieldsOperationUpdate,
		APIVersion: m.version,
		Time:       &metav1.Time{Time: time.Now().UTC()},
		FieldsType: "FieldsV1",
		FieldsV1:   metav1.NewFieldsV1(fields),
	}
}
