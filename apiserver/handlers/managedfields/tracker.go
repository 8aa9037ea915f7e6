package managedfields

import (
	"fmt"
	"reflect"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Config is what NewTracker needs.
type Config struct {
	// Kind is the kind of the requests' objects.
	Kind schema.GroupVersionKind
	// Manager is upstream's field manager of the resource.
	Manager   *upstream.FieldManager
	Types     upstream.TypeConverter
	Converter runtime.ObjectConvertor
	Creater   runtime.ObjectCreater
	Cache     *Cache
}

// Tracker sets the managed fields of created objects of one resource. It is safe for
// concurrent use.
type Tracker struct {
	Config
	prepare func() prepared
}

// prepared is what a tracker finds out at the first create.
type prepared struct {
	shaper shaper // nil where upstream computes the fields of every object
	prefix []byte // of the cache keys of this tracker's shapes
}

// NewTracker returns a Tracker. Its first use compiles the types.
func NewTracker(c Config) *Tracker {
	t := &Tracker{Config: c}
	t.prepare = sync.OnceValue(t.compile)
	return t
}

// compile makes the shaper of the kind. Its result has no shaper if the kind has no
// shapes.
func (t *Tracker) compile() prepared {
	empty, err := t.Creater.New(t.Kind)
	if err != nil {
		return prepared{}
	}
	versioned, err := t.Converter.ConvertToVersion(empty, t.Kind.GroupVersion())
	if err != nil {
		return prepared{}
	}
	if _, isUnstructured := versioned.(runtime.Unstructured); isUnstructured {
		return prepared{}
	}
	converted, err := t.Types.ObjectToTyped(versioned, typed.AllowDuplicates)
	if err != nil {
		return prepared{}
	}
	// Upstream compares every object with this one. A zero scalar is no change only if
	// the same field of this object is zero.
	zero := versioned.DeepCopyObject()
	zero.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	v := reflect.ValueOf(zero)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct || !v.Elem().IsZero() {
		return prepared{}
	}
	c := compiler{schema: converted.Schema(), known: map[compiledType]*link{}}
	return prepared{c.compile(v.Elem().Type(), converted.TypeRef()), appendString(nil, t.Kind.String())}
}

// Track sets the managed fields of an object that manager creates, as upstream's field
// manager does. The object has no managed fields and is of the internal version.
func (t *Tracker) Track(object runtime.Object, manager string) {
	shape, err := t.shape(object)
	// In a manager's name upstream replaces what is not UTF-8.
	if err != nil || !utf8.ValidString(manager) {
		t.compute(object, manager)
		return
	}
	fields, ok := t.Cache.get(shape)
	if !ok {
		fields, ok = t.compute(object, manager)
		if ok {
			t.Cache.put(shape, fields)
		}
		return
	}
	if accessor, err := meta.Accessor(object); err == nil && fields != "" {
		accessor.SetManagedFields([]metav1.ManagedFieldsEntry{t.entry(manager, fields)})
	}
}

// shape returns the cache key of an object's field set.
func (t *Tracker) shape(object runtime.Object) ([]byte, error) {
	p := t.prepare()
	if p.shaper == nil {
		return nil, errNoShape
	}
	versioned, err := t.Converter.ConvertToVersion(object, t.Kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	v := reflect.ValueOf(versioned)
	if v.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("%w: %T", errNoShape, versioned)
	}
	return p.shaper.appendShape(append(make([]byte, 0, 2048), p.prefix...), v.Elem())
}

// compute makes upstream set the managed fields, and returns them as JSON. isKnown is
// true if they are one entry that Track can repeat for other objects of the shape.
func (t *Tracker) compute(object runtime.Object, manager string) (fields string, isKnown bool) {
	live, err := t.Creater.New(t.Kind)
	if err != nil {
		return "", false
	}
	if t.Manager.UpdateNoErrors(live, object, manager) != object {
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
	expected := t.entry(manager, fields)
	expected.Time, expected.FieldsV1 = entries[0].Time, entries[0].FieldsV1
	return fields, entries[0] == expected
}

// entry makes the managed fields of a manager that has just created an object.
func (t *Tracker) entry(manager, fields string) metav1.ManagedFieldsEntry {
	if manager == "" {
		manager = "unknown"
	}
	return metav1.ManagedFieldsEntry{
		Manager:    manager,
		Operation:  metav1.ManagedFieldsOperationUpdate,
		APIVersion: t.Kind.GroupVersion().String(),
		Time:       &metav1.Time{Time: time.Now().UTC()},
		FieldsType: "FieldsV1",
		FieldsV1:   metav1.NewFieldsV1(fields),
	}
}
