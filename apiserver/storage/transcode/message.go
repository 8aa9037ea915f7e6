package transcode

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Message describes how the JSON of one Go struct is converted to a protobuf message.
type Message struct {
	name string
	// keys maps a key of the JSON object to an index of members. The members of a
	// struct that JSON inlines are members of the struct that contains it.
	keys map[string]int
	// members are in the order in which encoding/json writes them.
	members []member
	// fields are in ascending order of their numbers, in which they are marshalled.
	fields []field
	// slots is the number of fields, including those of inlined structs.
	slots int
	// empty is the message of an object without members.
	empty []byte
}

// member is one member of a JSON object.
type member struct {
	key  string
	slot int
	*value
}

// field is one field of a message.
type field struct {
	tag []byte
	// slot is the index of the field among the slots of the message. For an inlined
	// struct, it is the index of the struct's first slot.
	slot int
	// inlined is the struct whose members JSON inlines, or nil. If optional is true,
	// the field is left out when none of these members is present.
	inlined  *Message
	optional bool
	// absent is the encoding of a field that JSON leaves out.
	absent []byte
}

// ignored is the slot of members that protobuf does not have.
const ignored = -1

// New returns the Message of a struct type. The error names the field that can't be
// transcoded.
func New(t reflect.Type) (*Message, error) {
	return builder{}.message(t)
}

// builder has the Messages of the types seen so far, because a type may refer to
// itself.
type builder map[reflect.Type]*Message

func (b builder) message(t reflect.Type) (*Message, error) {
	if m := b[t]; m != nil {
		return m, nil
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%s is not a struct", t)
	}
	m := &Message{name: t.String(), keys: map[string]int{}}
	b[t] = m
	numbered := map[protowire.Number]field{}
	for f := range t.Fields() {
		if err := b.add(m, f, numbered); err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t, f.Name, err)
		}
	}
	for number := protowire.Number(1); len(m.fields) < len(numbered); number++ {
		if f, ok := numbered[number]; ok {
			m.fields = append(m.fields, f)
		}
	}
	for i, member := range m.members {
		m.keys[member.key] = i
	}
	m.empty = m.append(nil, make([]segment, m.slots), nil)
	return m, nil
}

// add adds one field of the Go struct.
func (b builder) add(m *Message, f reflect.StructField, numbered map[protowire.Number]field) error {
	key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	number, wire, err := parseTag(f.Tag.Get("protobuf"))
	if err != nil {
		return err
	}
	inlined := strings.Contains(options, "inline") || f.Anonymous && key == ""
	switch {
	case number == 0 && f.Type == reflect.TypeFor[metav1.TypeMeta]():
		m.members = append(m.members, member{key: "kind", slot: ignored, value: &value{}},
			member{key: "apiVersion", slot: ignored, value: &value{}})
		return nil
	case number == 0 && key == "-":
		return nil
	case number == 0:
		return errors.New("has no protobuf tag")
	case numbered[number].tag != nil:
		return fmt.Errorf("field number %d is taken", number)
	case inlined:
		return b.inline(m, f.Type, number, numbered)
	case key == "":
		key = f.Name
	}
	v, err := b.value(f.Type, wire)
	if err != nil {
		return err
	}
	v.tag = protowire.AppendTag(nil, number, v.wire())
	if v.kind == kindList {
		v.item.tag = v.tag
	}
	out := field{tag: v.tag, slot: m.slots, absent: v.absent()}
	m.slots++
	numbered[number] = out
	if key != "-" {
		m.members = append(m.members, member{key, out.slot, v})
	}
	return nil
}

// inline adds a struct whose members JSON writes among those of m.
func (b builder) inline(
	m *Message, t reflect.Type, number protowire.Number, numbered map[protowire.Number]field,
) error {
	optional := t.Kind() == reflect.Pointer
	if optional {
		t = t.Elem()
	}
	in, err := b.message(t)
	if err != nil {
		return err
	}
	if in.fields == nil && t.NumField() > 0 {
		return errors.New("inlines itself")
	}
	numbered[number] = field{tag: protowire.AppendTag(nil, number, protowire.BytesType), slot: m.slots, inlined: in,
		optional: optional}
	for _, inner := range in.members {
		if inner.slot != ignored {
			inner.slot += m.slots
		}
		m.members = append(m.members, inner)
	}
	m.slots += in.slots
	return nil
}

// parseTag parses a tag such as `bytes,1,opt,name=metadata`. The number is 0 for an
// empty tag.
func parseTag(tag string) (number protowire.Number, wire string, err error) {
	if tag == "" || tag == "-" {
		return 0, "", nil
	}
	wire, rest, _ := strings.Cut(tag, ",")
	if _, err := fmt.Sscanf(rest, "%d,", &number); err != nil || number < 1 {
		return 0, "", fmt.Errorf("protobuf tag %q has no number", tag)
	}
	return number, wire, nil
}

// value finds out how the values of a Go type are encoded.
func (b builder) value(t reflect.Type, wire string) (*value, error) {
	v := &value{}
	if t.Kind() == reflect.Pointer {
		v.optional = true
		t = t.Elem()
	}
	if kind, ok := special[t]; ok {
		v.kind = kind
		return v, nil
	}
	if hasOwnJSON(t) {
		return nil, fmt.Errorf("%s has its own JSON", t)
	}
	switch t.Kind() {
	case reflect.String:
		v.kind = kindString
	case reflect.Bool:
		v.kind = kindBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.kind = kindInt
	case reflect.Struct:
		v.kind = kindMessage
		return v, b.refer(v, t)
	case reflect.Slice:
		return v, b.list(v, t)
	case reflect.Map:
		return v, b.dictionary(v, t)
	default:
		return nil, fmt.Errorf("%s (%s) is of a kind that is not known", t, wire)
	}
	return v, nil
}

// refer makes v encode a struct. The struct's Message may not be complete yet.
func (b builder) refer(v *value, t reflect.Type) (err error) {
	v.message, err = b.message(t)
	return err
}

func (b builder) list(v *value, t reflect.Type) (err error) {
	if t.Elem().Kind() == reflect.Uint8 {
		v.kind = kindBytes
		return nil
	}
	if _, ok := reflect.PointerTo(t).MethodByName("Marshal"); ok {
		// A named slice that protobuf knows as a message with one field.
		v.kind = kindMessage
		v.wrapped = true
		items := &value{kind: kindList, tag: protowire.AppendTag(nil, 1, protowire.BytesType)}
		if items.item, err = b.value(t.Elem(), ""); err != nil {
			return err
		}
		items.item.tag = items.tag
		v.item = items
		return nil
	}
	v.kind = kindList
	if v.item, err = b.value(t.Elem(), ""); err != nil {
		return err
	}
	if v.item.kind == kindList || v.item.kind == kindMap || v.item.optional {
		return fmt.Errorf("%s: lists of that are not known", t)
	}
	return nil
}

func (b builder) dictionary(v *value, t reflect.Type) (err error) {
	v.kind = kindMap
	if t.Key().Kind() != reflect.String {
		return fmt.Errorf("%s: the key is not a string", t)
	}
	if v.item, err = b.value(t.Elem(), ""); err != nil {
		return err
	}
	if v.item.kind == kindList || v.item.kind == kindMap || v.item.optional {
		return fmt.Errorf("%s: maps of that are not known", t)
	}
	v.item.tag = protowire.AppendTag(nil, 2, v.item.wire())
	return nil
}

// special has the types whose JSON does not follow from their Go type.
var special = map[reflect.Type]kind{
	reflect.TypeFor[metav1.Time]():        kindTime,
	reflect.TypeFor[metav1.MicroTime]():   kindMicroTime,
	reflect.TypeFor[metav1.Duration]():    kindDuration,
	reflect.TypeFor[metav1.FieldsV1]():    kindRaw,
	reflect.TypeFor[resource.Quantity]():  kindQuantity,
	reflect.TypeFor[intstr.IntOrString](): kindIntOrString,
}

func hasOwnJSON(t reflect.Type) bool {
	return slices.ContainsFunc([]reflect.Type{
		reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	}, reflect.PointerTo(t).Implements)
}

// The rules that generated Marshal methods follow: fields come in ascending order of
// their numbers. A field that is not a pointer is written even if it is zero, except for
// lists, maps and nil bytes; a nil pointer is left out. The entries of a map are sorted
// by key. Lists of numbers are not packed.

type kind byte

const (
	kindString kind = iota
	kindBool
	kindInt
	kindBytes
	kindMessage
	kindList
	kindMap
	kindTime
	kindMicroTime
	kindDuration
	kindQuantity
	kindIntOrString
	kindRaw
)

// value says how the values of one JSON member or item are encoded.
type value struct {
	kind     kind
	optional bool   // the Go type is a pointer
	tag      []byte // the field's tag, which comes before the value
	message  *Message
	// item says how the items of a list, or the values of a map, are encoded.
	item *value
	// wrapped is true for a list that is a message with one field; item is that field.
	wrapped bool
}

func (v *value) wire() protowire.Type {
	switch {
	case v.kind == kindBool, v.kind == kindInt:
		return protowire.VarintType
	case v.kind == kindList:
		return v.item.wire()
	}
	return protowire.BytesType
}

// absent is the encoding of a member that JSON leaves out.
func (v *value) absent() []byte {
	if v.optional || v.wrapped || v.kind == kindList || v.kind == kindMap || v.kind == kindBytes {
		return nil
	}
	return v.zero()
}

// zero is the encoding of the type's zero value, with the tag.
func (v *value) zero() []byte {
	body := []byte(nil)
	switch v.kind {
	case kindBool, kindInt:
		return append(v.tag[:len(v.tag):len(v.tag)], 0)
	case kindMessage:
		if !v.wrapped {
			body = v.message.empty
		}
	case kindDuration:
		body = zeroDuration
	case kindQuantity:
		body = zeroQuantity
	case kindIntOrString:
		body = zeroIntOrString
	}
	return protowire.AppendBytes(v.tag[:len(v.tag):len(v.tag)], body)
}

var (
	zeroDuration    = []byte{0x08, 0}
	zeroQuantity    = []byte{0x0a, 1, '0'}
	zeroIntOrString = []byte{0x08, 0, 0x10, 0, 0x1a, 0}
)

// segment is the range of the scratch buffer that has the encoding of one field. It is
// empty for a field that JSON leaves out.
type segment struct{ start, end int }

// size is the size in bytes of the message whose fields are in slots.
func (m *Message) size(slots []segment) (n int) {
	for i := range m.fields {
		n += m.fields[i].size(slots)
	}
	return n
}

func (f *field) size(slots []segment) int {
	if f.inlined == nil {
		if s := slots[f.slot]; s.end > s.start {
			return s.end - s.start
		}
		return len(f.absent)
	}
	inner := slots[f.slot : f.slot+f.inlined.slots]
	if f.optional && allAbsent(inner) {
		return 0
	}
	n := f.inlined.size(inner)
	return len(f.tag) + protowire.SizeBytes(n)
}

// append appends the message whose fields are in slots, as ranges of scratch.
func (m *Message) append(dst []byte, slots []segment, scratch []byte) []byte {
	for i := range m.fields {
		f := &m.fields[i]
		if f.inlined == nil {
			if s := slots[f.slot]; s.end > s.start {
				dst = append(dst, scratch[s.start:s.end]...)
			} else {
				dst = append(dst, f.absent...)
			}
			continue
		}
		inner := slots[f.slot : f.slot+f.inlined.slots]
		if f.optional && allAbsent(inner) {
			continue
		}
		dst = append(dst, f.tag...)
		dst = protowire.AppendVarint(dst, uint64(f.inlined.size(inner)))
		dst = f.inlined.append(dst, inner, scratch)
	}
	return dst
}

func allAbsent(slots []segment) bool {
	for _, s := range slots {
		if s.end > s.start {
			return false
		}
	}
	return true
}
