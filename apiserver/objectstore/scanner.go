package objectstore

import (
	"bytes"
	"strings"
)

// scanner walks the members of one JSON object. It trusts the text to be valid
// JSON: that is what encoders write, and what the databases' rows have. On any
// other it stops early, and never reads outside.
type scanner struct {
	b   []byte
	pos int
}

func (s *scanner) space() {
	for s.pos < len(s.b) {
		switch s.b[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// is says whether the next token is c.
func (s *scanner) is(c byte) bool {
	s.space()
	return s.pos < len(s.b) && s.b[s.pos] == c
}

// member moves to the next member's key; false at the end.
func (s *scanner) member() bool {
	if !s.is('{') && !s.is(',') {
		return false
	}
	s.pos++
	return s.is('"')
}

// key returns the key, as it is written, and moves to the value.
func (s *scanner) key() []byte {
	key := s.text()
	if s.is(':') {
		s.pos++
	}
	s.space()
	return key
}

// text returns the string that begins here, as it is written, and moves on.
func (s *scanner) text() []byte {
	start := s.pos + 1
	for s.pos++; s.pos < len(s.b); s.pos++ {
		switch s.b[s.pos] {
		case '\\':
			s.pos++
		case '"':
			s.pos++
			return s.b[start : s.pos-1]
		}
	}
	s.pos = len(s.b) // not behind it, where the text ends with a backslash
	return nil
}

// skip moves behind the value that begins here.
func (s *scanner) skip() {
	for depth := 0; s.pos < len(s.b); {
		switch s.b[s.pos] {
		case '"':
			s.text()
			if depth == 0 {
				return
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return
			}
			if depth--; depth == 0 {
				s.pos++
				return
			}
		case ',':
			if depth == 0 {
				return
			}
		}
		s.pos++
	}
}

// plain returns the string that begins here, where it has no escapes.
func (s *scanner) plain() (string, bool) {
	if !s.is('"') {
		return "", false
	}
	text := s.text()
	return string(text), bytes.IndexByte(text, '\\') < 0
}

// scalarAt returns the string, number or boolean at a path of members, as text,
// and whether there is one; ok is false when what is there can't be told without
// a decoder.
func scalarAt(data []byte, path []string) (text string, there, ok bool) {
	s := scanner{data, 0}
	for i := 0; s.member(); {
		if string(s.key()) != path[i] {
			s.skip()
			continue
		}
		if i++; i == len(path) {
			text, ok = s.scalar()
			return text, ok, ok
		}
		if !s.is('{') {
			return "", false, false
		}
	}
	return "", false, true
}

// scalar returns the string, number or boolean that begins here, where decoding
// would not change how it is written.
func (s *scanner) scalar() (string, bool) {
	if s.is('"') {
		return s.plain()
	}
	start := s.pos
	s.skip()
	text := string(s.b[start:s.pos])
	return text, text == "true" || text == "false" || isInteger(text)
}

// isInteger says whether text is a whole number in its shortest form.
func isInteger(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || len(digits) > 18 || digits[0] == '0' && text != "0" {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}

// trim drops the newline that encoders put after an object.
func trim(data []byte) []byte { return bytes.TrimRight(data, "\n") }
