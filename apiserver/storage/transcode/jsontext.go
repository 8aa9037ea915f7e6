package transcode

import (
	"bytes"
	"iter"
	"slices"
	"strings"
)

// Extractor finds the values at several paths in one pass over an object's JSON. The zero value finds none.
type Extractor struct {
	root  node
	paths int // how many there are
}

// node is a member on the paths.
type node struct {
	name     string
	indexes  []int
	children []*node
}

// Add makes Find look for a path, whose value becomes the one at an index of values.
func (x *Extractor) Add(index int, path []string) {
	at := &x.root
	for _, name := range path {
		at = at.child(name)
	}
	at.indexes = append(at.indexes, index)
	x.paths++
}

func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	c := &node{name: name}
	n.children = append(n.children, c)
	return c
}

// Find sets the JSON at each path in values. It does not change what is there for a path that the object lacks.
// data must be valid JSON, and the values share its memory.
func (x *Extractor) Find(data []byte, values [][]byte) {
	scanner := NewScanner(data, 0)
	left := x.paths
	x.root.find(data, &scanner, values, &left)
}

// find reads the members at the scanner's position up to the end of the object, or until left, the
// number of values that are not found yet, is 0.
func (n *node) find(data []byte, s *Scanner, values [][]byte, left *int) {
	for *left > 0 && s.NextMember() {
		key := s.ReadKey()
		i := slices.IndexFunc(n.children, func(c *node) bool { return string(key) == c.name })
		if i < 0 {
			s.SkipValue()
			continue
		}
		member, start := n.children[i], s.Pos
		if len(member.children) > 0 && s.NextIs('{') {
			member.find(data, s, values, left)
			if *left == 0 {
				return
			}
			if s.NextIs('}') {
				s.Pos++
			}
		} else {
			s.SkipValue()
		}
		for _, index := range member.indexes {
			values[index] = data[start:s.Pos]
			*left--
		}
	}
}

// Members yields the members of a JSON object as they are written: keys with their
// escapes, and values. The text must be valid JSON, as the bodies of a Store are. The
// values share its memory.
func Members(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for s := (Scanner{object, 0}); s.NextMember(); {
			key := s.ReadKey()
			start := s.Pos
			if s.SkipValue(); !yield(string(key), object[start:s.Pos]) {
				return
			}
		}
	}
}

// Elements yields the elements of a JSON array as they are written. The text must be
// valid JSON. The elements share its memory.
func Elements(array []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for s := (Scanner{array, 0}); s.NextIs('[') || s.NextIs(','); {
			s.Pos++
			s.skipSpace()
			start := s.Pos
			if s.SkipValue(); s.Pos == start || !yield(array[start:s.Pos]) {
				return // an empty array, or the caller has stopped
			}
		}
	}
}

// Scanner reads the members of one JSON object. The text must be valid JSON: encoders
// write valid JSON, and both databases check it. In invalid JSON the Scanner stops
// early; it never reads outside the text.
type Scanner struct {
	b []byte
	// Pos is the offset of the next token.
	Pos int
}

// NewScanner makes a Scanner of the object that begins at an offset.
func NewScanner(text []byte, offset int) Scanner { return Scanner{text, offset} }

func (s *Scanner) skipSpace() {
	for s.Pos < len(s.b) {
		switch s.b[s.Pos] {
		case ' ', '\t', '\n', '\r':
			s.Pos++
		default:
			return
		}
	}
}

// NextIs reports whether the next token is c.
func (s *Scanner) NextIs(c byte) bool {
	s.skipSpace()
	return s.Pos < len(s.b) && s.b[s.Pos] == c
}

// NextMember moves to the key of the next member. It returns false at the object's end.
func (s *Scanner) NextMember() bool {
	if !s.NextIs('{') && !s.NextIs(',') {
		return false
	}
	s.Pos++
	return s.NextIs('"')
}

// ReadKey returns the key as it is written, with its escapes, and moves to the value.
func (s *Scanner) ReadKey() []byte {
	key := s.readString()
	if s.NextIs(':') {
		s.Pos++
	}
	s.skipSpace()
	return key
}

// readString returns the string that begins here as it is written, with its escapes,
// and moves past it.
func (s *Scanner) readString() []byte {
	start := s.Pos + 1
	s.Pos = endOfString(s.b, s.Pos)
	if s.Pos <= start || s.b[s.Pos-1] != '"' {
		return nil
	}
	return s.b[start : s.Pos-1]
}

// endOfString returns the offset after the string that begins at pos.
func endOfString(b []byte, pos int) int {
	for start := pos + 1; ; {
		quote := bytes.IndexByte(b[min(pos+1, len(b)):], '"')
		if quote < 0 {
			return len(b)
		}
		pos += 1 + quote
		escapes := 0
		for pos-escapes > start && b[pos-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return pos + 1
		}
	}
}

// SkipValue moves past the value that begins here.
func (s *Scanner) SkipValue() { s.Pos = endOfValue(s.b, s.Pos) }

// endOfValue returns the offset after the value that begins at pos.
func endOfValue(b []byte, pos int) int {
	for depth := 0; pos < len(b); {
		switch b[pos] {
		case '"':
			pos = endOfString(b, pos)
			if depth == 0 {
				return pos
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return pos
			}
			if depth--; depth == 0 {
				return pos + 1
			}
		case ',':
			if depth == 0 {
				return pos
			}
		}
		pos++
	}
	return pos
}

// ReadPlainString returns the string that begins here. It returns false for a string with
// escapes and for any other value.
func (s *Scanner) ReadPlainString() (string, bool) {
	if !s.NextIs('"') {
		return "", false
	}
	text := s.readString()
	return string(text), bytes.IndexByte(text, '\\') < 0
}

// ScalarAt returns the string, number or boolean at a path of members, as text, and whether
// it exists. ok is false if only a decoder can read the value.
func ScalarAt(data []byte, path []string) (text string, exists, ok bool) {
	s := Scanner{data, 0}
	for i := 0; s.NextMember(); {
		if string(s.ReadKey()) != path[i] {
			s.SkipValue()
			continue
		}
		if i++; i == len(path) {
			text, ok = s.readScalar()
			return text, ok, ok
		}
		if !s.NextIs('{') {
			return "", false, false
		}
	}
	return "", false, true
}

// readScalar returns the string, number or boolean that begins here. It returns false
// for a value that an encoder might write differently, such as 1.0.
func (s *Scanner) readScalar() (string, bool) {
	if s.NextIs('"') {
		return s.ReadPlainString()
	}
	start := s.Pos
	s.SkipValue()
	text := string(s.b[start:s.Pos])
	return text, text == "true" || text == "false" || isInteger(text)
}

// isInteger reports whether text is an integer in its shortest form.
func isInteger(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || len(digits) > 18 || digits[0] == '0' && text != "0" {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}
