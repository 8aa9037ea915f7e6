package transcode

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrUnexpected is the error for JSON that encoding/json would not have written from
// the Message's type. The caller has to decode such an object.
var ErrUnexpected = errors.New("not the JSON of the type")

// ErrLoss is the error of TranscodeExact for JSON that has what protobuf does not express.
var ErrLoss = errors.New("protobuf does not express the object")

// Transcode converts a JSON object to its message, calls use with the message and
// returns use's error. The message is valid only during the call of use. Errors:
// ErrUnexpected.
func (m *Message) Transcode(object []byte, use func(message []byte) error) error {
	return m.transcode(object, mode{}, use)
}

// TranscodeExact is Transcode for a caller that decodes the message and wants the object that
// decoding the JSON gives. It fails with ErrLoss if these differ by more than the kind and
// apiVersion of the object itself: if the object has an empty list or map, null in a list or
// map, or the kind of an object inside it.
func (m *Message) TranscodeExact(object []byte, use func(message []byte) error) error {
	return m.transcode(object, mode{exact: true}, use)
}

// TranscodeHead is Transcode for an object that begins with the members of m. It does
// not read the other members, which come after them. It fails with ErrUnexpected if the
// object lacks a field of m.
func (m *Message) TranscodeHead(object []byte, use func(message []byte) error) error {
	return m.transcode(object, mode{head: true}, use)
}

// mode says what is transcoded.
type mode struct {
	// head is true if the object may have other members after those of its Message.
	head bool
	// exact is true if everything that the object has must be in the message.
	exact bool
}

func (m *Message) transcode(object []byte, mode mode, use func(message []byte) error) error {
	t := transcoders.Get().(*transcoder)
	defer t.release()
	t.json, t.pos, t.mode, t.loses = object, 0, mode, false
	if err := t.object(m); err != nil {
		return fmt.Errorf("%s at %d: %w", m.name, t.pos, err)
	}
	if t.space(); t.pos != len(object) && !mode.head {
		return fmt.Errorf("%s at %d: %w", m.name, t.pos, ErrUnexpected)
	}
	if t.loses && mode.exact {
		return fmt.Errorf("%s: %w", m.name, ErrLoss)
	}
	return use(t.out)
}

var transcoders = sync.Pool{New: func() any { return &transcoder{} }}

// maxPooled is the capacity, in bytes, of the largest buffer that is reused.
const maxPooled = 256 << 10

// transcoder converts one object at a time.
type transcoder struct {
	json []byte
	pos  int
	mode
	// loses is true if the object has something that the message does not express.
	loses bool
	// out is the scratch buffer. It holds the complete messages, and the encoded fields
	// of messages that are not complete yet.
	out []byte
	// slots holds the slots of all messages that are not complete yet.
	slots []segment
	// text is the last string that had escapes, without them.
	text []byte
}

func (t *transcoder) release() {
	if cap(t.out) > maxPooled {
		return
	}
	t.json, t.out, t.slots = nil, t.out[:0], t.slots[:0]
	transcoders.Put(t)
}

// object appends the message of the JSON object that begins here.
func (t *transcoder) object(m *Message) error {
	base, start := len(t.slots), len(t.out)
	for range m.slots {
		t.slots = append(t.slots, segment{})
	}
	if !t.take('{') {
		return ErrUnexpected
	}
	expected := 0
	for first := true; ; first = false {
		t.space()
		if t.take('}') {
			break
		}
		if !first && !t.take(',') {
			return ErrUnexpected
		}
		key, err := t.key()
		if err != nil {
			return err
		}
		i, ok := m.find(key, expected)
		if !ok {
			if t.head && base == 0 && isComplete(t.slots) {
				break
			}
			return ErrUnexpected
		}
		expected = i + 1
		member := &m.members[i]
		if member.slot == ignored {
			if _, err := t.string(); err != nil {
				return err
			}
			t.loses = t.loses || base > 0
			continue
		}
		from := len(t.out)
		if err := t.value(member.value); err != nil {
			return err
		}
		t.slots[base+member.slot] = segment{from, len(t.out)}
	}
	end := len(t.out)
	t.out = m.append(t.out, t.slots[base:base+m.slots], t.out)
	n := copy(t.out[start:], t.out[end:])
	t.out, t.slots = t.out[:start+n], t.slots[:base]
	return nil
}

// isComplete reports whether every field is present.
func isComplete(slots []segment) bool {
	for _, s := range slots {
		if s.end == s.start {
			return false
		}
	}
	return true
}

// find finds a member by its key. Usually it is the expected one, or one of the next
// two.
func (m *Message) find(key []byte, expected int) (int, bool) {
	for i := expected; i < len(m.members) && i < expected+3; i++ {
		if m.members[i].key == string(key) {
			return i, true
		}
	}
	i, ok := m.keys[string(key)]
	return i, ok
}

// value appends a field: its tag, and the encoding of the JSON value that begins here.
func (t *transcoder) value(v *value) error {
	if t.space(); t.null() {
		if !v.optional {
			t.out = append(t.out, v.absent()...)
		}
		return nil
	}
	switch v.kind {
	case kindList:
		return t.list(v)
	case kindMap:
		return t.dictionary(v)
	case kindBool:
		return t.bool(v)
	case kindInt:
		n, err := t.int()
		t.out = protowire.AppendVarint(append(t.out, v.tag...), uint64(n))
		return err
	case kindString:
		text, err := t.string()
		t.appendBytes(v.tag, text)
		return err
	}
	start := len(t.out)
	if err := t.body(v); err != nil {
		return err
	}
	t.prefix(v.tag, start)
	return nil
}

// body appends the content of a field whose length comes before it. prefix inserts the
// length.
func (t *transcoder) body(v *value) error {
	switch v.kind {
	case kindMessage:
		if v.wrapped {
			return t.list(v.item)
		}
		return t.object(v.message)
	case kindRaw:
		start := t.pos
		if err := t.skip(); err != nil {
			return err
		}
		t.appendBytes([]byte{0x0a}, t.json[start:t.pos])
		return nil
	case kindIntOrString:
		return t.intOrString()
	}
	text, err := t.string()
	if err != nil {
		return err
	}
	switch v.kind {
	case kindBytes:
		t.out, err = base64.StdEncoding.AppendDecode(t.out, text)
	case kindQuantity:
		t.appendBytes([]byte{0x0a}, text)
	case kindTime:
		err = t.time(text, time.RFC3339, false)
	case kindMicroTime:
		err = t.time(text, time.RFC3339Nano, true)
	case kindDuration:
		var d time.Duration
		d, err = time.ParseDuration(string(text))
		t.out = protowire.AppendVarint(append(t.out, 0x08), uint64(d))
	}
	if err != nil {
		return ErrUnexpected
	}
	return nil
}

// prefix inserts a tag and the length before the bytes that were appended since start.
func (t *transcoder) prefix(tag []byte, start int) {
	n := len(t.out) - start
	head := len(tag) + protowire.SizeVarint(uint64(n))
	for range head {
		t.out = append(t.out, 0)
	}
	copy(t.out[start+head:], t.out[start:start+n])
	protowire.AppendVarint(append(t.out[start:start], tag...), uint64(n))
}

func (t *transcoder) appendBytes(tag, body []byte) {
	t.out = protowire.AppendBytes(append(t.out, tag...), body)
}

func (t *transcoder) bool(v *value) error {
	t.out = append(t.out, v.tag...)
	switch {
	case t.literal("true"):
		t.out = append(t.out, 1)
	case t.literal("false"):
		t.out = append(t.out, 0)
	default:
		return ErrUnexpected
	}
	return nil
}

func (t *transcoder) list(v *value) error {
	if !t.take('[') {
		return ErrUnexpected
	}
	for first := true; ; first = false {
		t.space()
		if t.take(']') {
			t.loses = t.loses || first
			return nil
		}
		if !first && !t.take(',') {
			return ErrUnexpected
		}
		if t.space(); t.null() {
			t.out = append(t.out, v.item.zero()...)
			t.loses = true
			continue
		}
		if err := t.value(v.item); err != nil {
			return err
		}
	}
}

// dictionary appends an entry for each member. It fails unless the members are sorted
// by key, as encoding/json sorts them.
func (t *transcoder) dictionary(v *value) error {
	if !t.take('{') {
		return ErrUnexpected
	}
	last := -1 // the offset of the last key in t.out
	var lastLen int
	for first := true; ; first = false {
		t.space()
		if t.take('}') {
			t.loses = t.loses || first
			return nil
		}
		if !first && !t.take(',') {
			return ErrUnexpected
		}
		key, err := t.key()
		if err != nil {
			return err
		}
		if last >= 0 && bytes.Compare(t.out[last:last+lastLen], key) >= 0 {
			return ErrUnexpected
		}
		start, keyLen := len(t.out), len(key)
		t.appendBytes([]byte{0x0a}, key)
		if t.space(); t.null() {
			t.loses = true
			if v.item.kind != kindBytes {
				t.out = append(t.out, v.item.zero()...)
			}
		} else if err := t.value(v.item); err != nil {
			return err
		}
		t.prefix(v.tag, start)
		last, lastLen = start+t.headLen(v.tag, start)+1+protowire.SizeVarint(uint64(keyLen)), keyLen
	}
}

// headLen is the length of the tag and of the length that begin at start.
func (t *transcoder) headLen(tag []byte, start int) int {
	n := start + len(tag)
	for t.out[n]&0x80 != 0 {
		n++
	}
	return n + 1 - start
}

func (t *transcoder) intOrString() error {
	if t.pos < len(t.json) && t.json[t.pos] == '"' {
		text, err := t.string()
		t.out = append(t.out, 0x08, 1, 0x10, 0)
		t.appendBytes([]byte{0x1a}, text)
		return err
	}
	n, err := t.int()
	t.out = protowire.AppendVarint(append(t.out, 0x08, 0, 0x10), uint64(n))
	t.out = append(t.out, 0x1a, 0)
	return err
}

func (t *transcoder) time(text []byte, layout string, micro bool) error {
	at, err := time.Parse(layout, string(text))
	if err != nil || at.IsZero() {
		return err
	}
	nanos := 0
	if micro {
		nanos = at.Nanosecond() / 1000 * 1000
	}
	t.out = protowire.AppendVarint(append(t.out, 0x08), uint64(at.Unix()))
	t.out = protowire.AppendVarint(append(t.out, 0x10), uint64(nanos))
	return nil
}

func (t *transcoder) int() (int64, error) {
	start := t.pos
	for t.pos < len(t.json) && (t.json[t.pos] == '-' || '0' <= t.json[t.pos] && t.json[t.pos] <= '9') {
		t.pos++
	}
	n, err := strconv.ParseInt(string(t.json[start:t.pos]), 10, 64)
	if err != nil || t.pos < len(t.json) && (t.json[t.pos] == '.' || t.json[t.pos]|0x20 == 'e') {
		return 0, ErrUnexpected
	}
	return n, nil
}

func (t *transcoder) space() {
	for t.pos < len(t.json) {
		switch t.json[t.pos] {
		case ' ', '\t', '\n', '\r':
			t.pos++
		default:
			return
		}
	}
}

// take moves past c and returns true, if c is the next byte.
func (t *transcoder) take(c byte) bool {
	if t.pos < len(t.json) && t.json[t.pos] == c {
		t.pos++
		return true
	}
	return false
}

func (t *transcoder) literal(text string) bool {
	if len(t.json)-t.pos >= len(text) && string(t.json[t.pos:t.pos+len(text)]) == text {
		t.pos += len(text)
		return true
	}
	return false
}

func (t *transcoder) null() bool {
	return t.pos < len(t.json) && t.json[t.pos] == 'n' && t.literal("null")
}

// key returns a member's key and moves to its value.
func (t *transcoder) key() ([]byte, error) {
	key, err := t.string()
	if err != nil {
		return nil, err
	}
	if t.space(); !t.take(':') {
		return nil, ErrUnexpected
	}
	t.space()
	return key, nil
}

// string returns the string that begins here and moves past it. The result is valid
// until the next call.
func (t *transcoder) string() ([]byte, error) {
	t.space()
	start := t.pos
	if !t.take('"') {
		return nil, ErrUnexpected
	}
	end := bytes.IndexByte(t.json[t.pos:], '"')
	if end < 0 {
		return nil, ErrUnexpected
	}
	text := t.json[t.pos : t.pos+end]
	if bytes.IndexByte(text, '\\') < 0 {
		t.pos += end + 1
		return text, nil
	}
	t.pos = start
	if err := t.skip(); err != nil {
		return nil, err
	}
	var decoded string
	if err := json.Unmarshal(t.json[start:t.pos], &decoded); err != nil {
		return nil, ErrUnexpected
	}
	t.text = append(t.text[:0], decoded...)
	return t.text, nil
}

// skip moves past the value that begins here. What it skips over is not checked.
func (t *transcoder) skip() error {
	s := NewScanner(t.json, t.pos)
	if s.SkipValue(); s.Pos == t.pos {
		return ErrUnexpected
	}
	t.pos = s.Pos
	return nil
}
