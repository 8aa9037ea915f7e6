package transcode

import "google.golang.org/protobuf/encoding/protowire"

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
