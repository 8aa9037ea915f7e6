package storage

import (
	"bytes"
	"iter"
	"strings"
)

// Members yields the members of a JSON object as they are written: keys with their
// escapes, and values. The text must be valid JSON, as the bodies of a Store are. The
// values share its memory.
func Members(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for s := (scanner{object, 0}); s.nextMember(); {
			key := s.readKey()
			start := s.pos
			if s.skipValue(); !yield(string(key), object[start:s.pos]) {
				return
			}
		}
	}
}

// Elements yields the elements of a JSON array as they are written. The text must be
// valid JSON. The elements share its memory.
func Elements(array []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for s := (scanner{array, 0}); s.nextIs('[') || s.nextIs(','); {
			s.pos++
			s.skipSpace()
			start := s.pos
			if s.skipValue(); s.pos == start || !yield(array[start:s.pos]) {
				return // an empty array, or the caller has stopped
			}
		}
	}
}

// scanner reads the members of one JSON object. The text must be valid JSON: encoders
// write valid JSON, and both databases check it. In invalid JSON the scanner stops
// early; it never reads outside the text.
type scanner struct {
	b   []byte
	pos int
}

func (s *scanner) skipSpace() {
	for s.pos < len(s.b) {
		switch s.b[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// nextIs reports whether the next token is c.
func (s *scanner) nextIs(c byte) bool {
	s.skipSpace()
	return s.pos < len(s.b) && s.b[s.pos] == c
}

// nextMember moves to the key of the next member. It returns false at the object's end.
func (s *scanner) nextMember() bool {
	if !s.nextIs('{') && !s.nextIs(',') {
		return false
	}
	s.pos++
	return s.nextIs('"')
}

// readKey returns the key as it is written, with its escapes, and moves to the value.
func (s *scanner) readKey() []byte {
	key := s.readString()
	if s.nextIs(':') {
		s.pos++
	}
	s.skipSpace()
	return key
}

// readString returns the string that begins here as it is written, with its escapes,
// and moves past it.
func (s *scanner) readString() []byte {
	start := s.pos + 1
	s.pos = endOfString(s.b, s.pos)
	if s.pos <= start || s.b[s.pos-1] != '"' {
		return nil
	}
	return s.b[start : s.pos-1]
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

// skipValue moves past the value that begins here.
func (s *scanner) skipValue() { s.pos = endOfValue(s.b, s.pos) }

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

// readPlainString returns the string that begins here. It returns false for a string with
// escapes and for any other value.
func (s *scanner) readPlainString() (string, bool) {
	if !s.nextIs('"') {
		return "", false
	}
	text := s.readString()
	return string(text), bytes.IndexByte(text, '\\') < 0
}

// scalarAt returns the string, number or boolean at a path of members, as text, and whether
// it exists. ok is false if only a decoder can read the value.
func scalarAt(data []byte, path []string) (text string, exists, ok bool) {
	s := scanner{data, 0}
	for i := 0; s.nextMember(); {
		if string(s.readKey()) != path[i] {
			s.skipValue()
			continue
		}
		if i++; i == len(path) {
			text, ok = s.readScalar()
			return text, ok, ok
		}
		if !s.nextIs('{') {
			return "", false, false
		}
	}
	return "", false, true
}

// readScalar returns the string, number or boolean that begins here. It returns false
// for a value that an encoder might write differently, such as 1.0.
func (s *scanner) readScalar() (string, bool) {
	if s.nextIs('"') {
		return s.readPlainString()
	}
	start := s.pos
	s.skipValue()
	text := string(s.b[start:s.pos])
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

// trimNewline removes the newline that encoders write after an object.
func trimNewline(data []byte) []byte { return bytes.TrimRight(data, "\n") }
