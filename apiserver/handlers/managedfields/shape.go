package managedfields

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

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
	schema *schema.Schema
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
func (c *compiler) compile(t reflect.Type, of schema.TypeRef) shaper {
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

func (c *compiler) compileAtom(t reflect.Type, atom schema.Atom) shaper {
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

func (c *compiler) compileStruct(t reflect.Type, entry *value.TypeReflectCacheEntry, m *schema.Map) shaper {
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
func typeOf(m *schema.Map, name string) schema.TypeRef {
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

func (c *compiler) compileMap(t reflect.Type, m *schema.Map) shaper {
	if len(m.Fields) > 0 {
		return noShape{}
	}
	return dictionary{m.ElementRelationship == schema.Atomic, c.compile(t.Elem(), m.ElementType)}
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

func (c *compiler) compileList(t reflect.Type, l *schema.List) shaper {
	if t.Kind() != reflect.Slice {
		return noShape{}
	}
	if l.ElementRelationship == schema.Atomic {
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
