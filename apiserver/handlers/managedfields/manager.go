package managedfields

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Config is what New needs.
type Config struct {
	// Kind is the kind of the requests' objects. Subresource is empty for the main
	// resource.
	Kind        schema.GroupVersionKind
	Subresource string
	// Upstream is upstream's field manager of the resource.
	Upstream *upstream.FieldManager
	Creater  runtime.ObjectCreater
	// FieldSets caches the fields of created objects, for all resources, and ParsedSets those of
	// updated ones. Without them Upstream computes these.
	FieldSets  *FieldSets
	ParsedSets *ParsedSets

	// The caches need the rest. Ignored filters out the fields that the strategy resets; nil
	// filters out none.
	Types     upstream.TypeConverter
	Converter runtime.ObjectConvertor
	Ignored   fieldpath.Filter
}

// Manager computes the managed fields of the objects of one resource. It is safe for concurrent
// use.
type Manager struct {
	Config
	version string
	// shapes compiles the types, at the first create.
	shapes func() shapes
}

// New returns a Manager.
func New(c Config) *Manager {
	m := &Manager{Config: c, version: c.Kind.GroupVersion().String()}
	m.shapes = sync.OnceValue(m.compileShapes)
	return m
}

// Create sets the managed fields of an object that manager creates.
func (m *Manager) Create(obj runtime.Object, manager string) error {
	if object, err := meta.Accessor(obj); err == nil && m.FieldSets != nil && len(object.GetManagedFields()) == 0 {
		m.create(obj, manager)
		return nil
	}
	empty, err := m.Creater.New(m.Kind)
	if err != nil {
		return err
	}
	m.Upstream.UpdateNoErrors(empty, obj, manager)
	return nil
}

// Update sets the managed fields of an object that manager makes of live, and returns the object.
// The object has the managed fields that the request brings: none, or those of live, or others.
func (m *Manager) Update(live, obj runtime.Object, manager string) runtime.Object {
	before, err := meta.Accessor(live)
	if err != nil || m.ParsedSets == nil {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	after, err := meta.Accessor(obj)
	entries := before.GetManagedFields()
	if err != nil || before.GetUID() == "" || len(entries) == 0 || !m.keeps(after.GetManagedFields(), entries) {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	before.SetManagedFields(nil)
	after.SetManagedFields(nil)
	updated, err := m.update(live, obj, entries, manager)
	before.SetManagedFields(entries)
	if err != nil {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	after.SetManagedFields(updated)
	return obj
}

// keeps reports whether a request does not change the managed fields. A client that sends back
// what it has read changes nothing, and a subresource ignores what it is sent.
func (m *Manager) keeps(brought, entries []metav1.ManagedFieldsEntry) bool {
	return brought == nil || m.Subresource != "" || slices.EqualFunc(brought, entries, sameEntry)
}

func sameEntry(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion &&
		a.Subresource == b.Subresource &&
		a.Time.Equal(b.Time) && a.FieldsType == b.FieldsType && a.FieldsV1 != nil && b.FieldsV1 != nil &&
		a.FieldsV1.Equal(*b.FieldsV1)
}

// Apply applies a configuration to live. It fails if the configuration changes fields of other
// managers, unless force is set.
func (m *Manager) Apply(live, configuration runtime.Object, manager string, force bool) (runtime.Object, error) {
	return m.Upstream.Apply(live, configuration, manager, force)
}

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

// errNoShape is the error for an object with a value of a type that has no shape.
var errNoShape = errors.New("managedfields: the value has no shape")

// shaper appends the shape of values of one Go type and one schema type. Invariant: the
// appended bytes determine where they end. Two values with equal shapes therefore have
// equal shapes in all their parts.
type shaper interface {
	appendShape(shape []byte, v reflect.Value) ([]byte, error)
}

// These are the first byte of the shape of a value that can be null or zero.
const (
	isNull byte = iota
	isZero
	isPresent
)

// compiler makes shapers. known has the shapers of named types, because a type may
// contain itself.
type compiler struct {
	schema *smdschema.Schema
	known  map[compiledType]*link
}

type compiledType struct {
	goType reflect.Type
	named  string // empty for a type that the schema does not name
}

// link refers to a shaper that is compiled later, for a type that contains itself.
type link struct{ shaper }

// compile returns the shaper of a type. For a type whose values have no shape it
// returns noShape, whose appendShape fails for values that are not null.
func (c *compiler) compile(t reflect.Type, of smdschema.TypeRef) shaper {
	atom, ok := c.schema.Resolve(of)
	if !ok {
		return noShape{}
	}
	key := compiledType{goType: t}
	if of.NamedType != nil {
		key.named = *of.NamedType
		if of.ElementRelationship != nil {
			key.named += "," + string(*of.ElementRelationship)
		}
		if known, ok := c.known[key]; ok {
			return known
		}
		c.known[key] = &link{}
	}
	s := c.compileAtom(t, atom)
	if of.NamedType != nil {
		c.known[key].shaper = s
	}
	return s
}

func (c *compiler) compileAtom(t reflect.Type, atom smdschema.Atom) shaper {
	if t.Kind() == reflect.Pointer {
		return pointer{c.compileAtom(t.Elem(), atom)}
	}
	forms := 0
	for _, is := range []bool{atom.Map != nil, atom.List != nil, atom.Scalar != nil} {
		if is {
			forms++
		}
	}
	if forms != 1 {
		return noShape{}
	}
	entry := value.TypeReflectEntryOf(t)
	switch {
	case entry.CanConvertToUnstructured():
		if atom.Scalar == nil {
			return noShape{}
		}
		return newMarshaled(t, entry)
	case atom.Scalar != nil:
		return compileScalar(t)
	case atom.List != nil:
		return c.compileList(t, atom.List)
	case t.Kind() == reflect.Struct:
		return c.compileStruct(t, entry, atom.Map)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		return c.compileMap(t, atom.Map)
	default:
		return noShape{}
	}
}

// noShape is the shaper of a type whose values have no shape, except null.
type noShape struct{}

func (noShape) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return append(shape, isNull), nil
		}
	}
	return nil, errNoShape
}

// pointer is the shaper of pointers.
type pointer struct{ to shaper }

func (p pointer) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	if v.IsNil() {
		return append(shape, isNull), nil
	}
	return p.to.appendShape(append(shape, isPresent), v.Elem())
}

// scalar is the shaper of values that upstream's comparison compares by ==.
type scalar struct{}

func compileScalar(t reflect.Type) shaper {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return scalar{}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return whole{}
		}
	}
	return noShape{}
}

func (scalar) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	if v.IsZero() {
		return append(shape, isZero), nil
	}
	return append(shape, isPresent), nil
}

// whole is the shaper of slices that have one manager as a whole: atomic lists, and
// slices of bytes, which upstream treats as strings.
type whole struct{}

func (whole) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	switch {
	case v.IsNil():
		return append(shape, isNull), nil
	case v.Len() == 0:
		return append(shape, isZero), nil
	default:
		return append(shape, isPresent), nil
	}
}

// marshaled is the shaper of scalars that marshal themselves.
type marshaled struct {
	entry *value.TypeReflectCacheEntry
	zero  any
}

func newMarshaled(t reflect.Type, entry *value.TypeReflectCacheEntry) shaper {
	zero, err := entry.ToUnstructured(reflect.New(t).Elem())
	if err != nil || !isScalar(zero) {
		return noShape{}
	}
	return marshaled{entry, zero}
}

// The second byte of the shape of a scalar that marshals itself: the Go type of the
// result.
const (
	isString byte = iota + isPresent + 1
	isInt
	isBool
)

func (m marshaled) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	u, err := m.entry.ToUnstructured(v)
	if err != nil {
		return nil, err
	}
	switch u.(type) {
	case nil:
		shape = append(shape, isNull)
	case string:
		shape = append(shape, isString)
	case int64, int32, int:
		shape = append(shape, isInt)
	case bool:
		shape = append(shape, isBool)
	default:
		return nil, errNoShape
	}
	if u == m.zero {
		return append(shape, isZero), nil
	}
	return append(shape, isPresent), nil
}

func isScalar(u any) bool {
	switch u.(type) {
	case nil, string, int64, int32, int, bool:
		return true
	}
	return false
}

// object is the shaper of structs. The shape has the numbers of the present fields, each
// followed by the field's shape.
type object []field

type field struct {
	entry *value.FieldCacheEntry
	shaper
}

func (c *compiler) compileStruct(t reflect.Type, entry *value.TypeReflectCacheEntry, m *smdschema.Map) shaper {
	fields, zero := entry.OrderedFields(), reflect.Zero(t)
	if len(fields) >= math.MaxUint8 {
		return noShape{}
	}
	all := make(object, len(fields))
	for i, f := range fields {
		all[i] = field{f, c.compile(f.GetFrom(zero).Type(), typeOf(m, f.JsonName))}
	}
	return all
}

// typeOf returns the schema type of the field name of a map.
func typeOf(m *smdschema.Map, name string) smdschema.TypeRef {
	if known, ok := m.FindField(name); ok {
		return known.Type
	}
	return m.ElementType
}

func (o object) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	var err error
	for i, f := range o {
		of := f.entry.GetFrom(v)
		if f.entry.CanOmit(of) {
			continue
		}
		if shape, err = f.appendShape(append(shape, byte(i+1)), of); err != nil {
			return nil, err
		}
	}
	return append(shape, 0), nil
}

// dictionary is the shaper of maps. The shape has the keys in order, each followed by the
// shape of its value.
type dictionary struct {
	atomic bool
	values shaper
}

func (c *compiler) compileMap(t reflect.Type, m *smdschema.Map) shaper {
	if len(m.Fields) > 0 {
		return noShape{}
	}
	return dictionary{m.ElementRelationship == smdschema.Atomic, c.compile(t.Elem(), m.ElementType)}
}

func (d dictionary) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	shape = appendLength(shape, v)
	if d.atomic || v.Len() == 0 {
		return shape, nil
	}
	keys := make([]string, 0, v.Len())
	for entries := v.MapRange(); entries.Next(); {
		keys = append(keys, entries.Key().String())
	}
	slices.Sort(keys)
	var err error
	for _, key := range keys {
		of := v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key()))
		if shape, err = d.values.appendShape(appendString(shape, key), of); err != nil {
			return nil, err
		}
	}
	return shape, nil
}

// appendLength appends whether a map or a list is null, and its length if it is not.
func appendLength(shape []byte, v reflect.Value) []byte {
	if v.IsNil() {
		return append(shape, isNull)
	}
	return binary.AppendUvarint(append(shape, isPresent), uint64(v.Len()))
}

func appendString(shape []byte, s string) []byte {
	return append(binary.AppendUvarint(shape, uint64(len(s))), s...)
}

// list is the shaper of lists whose items have managers.
type list struct {
	items shaper
	// keys are the fields that identify an item; without keys the item's value identifies
	// it.
	keys []*value.FieldCacheEntry
}

func (c *compiler) compileList(t reflect.Type, l *smdschema.List) shaper {
	if t.Kind() != reflect.Slice {
		return noShape{}
	}
	if l.ElementRelationship == smdschema.Atomic {
		return whole{}
	}
	made := list{items: c.compile(t.Elem(), l.ElementType)}
	if len(l.Keys) == 0 {
		if _, ok := made.items.(scalar); !ok || t.Elem().Kind() != reflect.String {
			return noShape{}
		}
		return made
	}
	if t.Elem().Kind() != reflect.Struct {
		return noShape{}
	}
	fields := value.TypeReflectEntryOf(t.Elem()).Fields()
	for _, key := range l.Keys {
		f, ok := fields[key]
		if !ok {
			return noShape{}
		}
		made.keys = append(made.keys, f)
	}
	return made
}

func (l list) appendShape(shape []byte, v reflect.Value) ([]byte, error) {
	shape = appendLength(shape, v)
	var err error
	for i := range v.Len() {
		item := v.Index(i)
		if len(l.keys) == 0 {
			shape = appendString(shape, item.String())
			continue
		}
		for _, key := range l.keys {
			if shape, err = appendKey(shape, key.GetFrom(item)); err != nil {
				return nil, err
			}
		}
		if shape, err = l.items.appendShape(shape, item); err != nil {
			return nil, err
		}
	}
	return shape, nil
}

// appendKey appends the value of a key of a list item. Whether the key is present, and
// its type, are part of the item's shape.
func appendKey(shape []byte, v reflect.Value) ([]byte, error) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return append(shape, isNull), nil
		}
		v, shape = v.Elem(), append(shape, isPresent)
	}
	switch v.Kind() {
	case reflect.String:
		return appendString(shape, v.String()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return binary.AppendVarint(shape, v.Int()), nil
	case reflect.Bool:
		if v.Bool() {
			return append(shape, isPresent), nil
		}
		return append(shape, isZero), nil
	default:
		return nil, fmt.Errorf("%w: a key of type %s", errNoShape, v.Type())
	}
}

// cache is a map that holds at most limit bytes. It is safe for concurrent use.
//
// Invariant: recent and older together hold at most limit bytes. put keeps it: when
// recent has half of limit, recent becomes older and the previous older is dropped. get puts
// an entry of older again, so that entries that are in use stay.
type cache[K comparable, V any] struct {
	limit int
	// sizeOf returns the size of an entry in bytes.
	sizeOf func(K, V) int

	mu            sync.Mutex
	recent, older map[K]V
	size          int // of recent, in bytes
}

// entryOverhead is about what a map needs for an entry besides its key and value, in
// bytes.
const entryOverhead = 64

func newCache[K comparable, V any](limit int, sizeOf func(K, V) int) *cache[K, V] {
	return &cache[K, V]{limit: limit, sizeOf: sizeOf, recent: map[K]V{}}
}

func (c *cache[K, V]) get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if value, ok = c.recent[key]; ok {
		return value, true
	}
	if value, ok = c.older[key]; ok {
		c.putLocked(key, value)
	}
	return value, ok
}

// put adds an entry. It does nothing if the entry takes more than half of limit.
func (c *cache[K, V]) put(key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(key, value)
}

func (c *cache[K, V]) putLocked(key K, value V) {
	size := c.sizeOf(key, value) + entryOverhead
	if _, ok := c.recent[key]; ok || size > c.limit/2 {
		return
	}
	if c.size+size > c.limit/2 {
		c.older, c.recent, c.size = c.recent, map[K]V{}, 0
	}
	c.recent[key] = value
	c.size += size
}
