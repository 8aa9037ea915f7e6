package storage

import (
	"bytes"
	"strconv"
)

// document is one object's JSON, and where its resourceVersion goes: the only
// part of an answer that is not stored.
type document struct {
	body []byte
	// splice is where the member goes; around it stand before and after.
	splice        int
	before, after string
	// typeMeta is where the members after kind and apiVersion begin, in a
	// typed object, which has these two first; 0 elsewhere.
	typeMeta int
}

const (
	memberStart = `"resourceVersion":"`
	memberEnd   = `"`
	// memberLen is what a resourceVersion adds at most, about.
	memberLen = 48
)

// newDocument finds the place. A typed object gets its resourceVersion where
// encoding/json would put it, after uid; an unstructured one, whose keys are
// sorted, in order.
func newDocument(body []byte) document {
	d := document{body: body}
	top := scanner{body, 0}
	typed := false
	for first := true; top.member(); first = false {
		key := top.key()
		if first {
			typed = string(key) == "kind"
		}
		start := top.pos
		top.skipValue()
		if typed && d.typeMeta == 0 && string(key) == "apiVersion" && top.pos < len(body) && body[top.pos] == ',' {
			d.typeMeta = top.pos + 1
		}
		if string(key) == "metadata" && start < len(body) && body[start] == '{' {
			d.place(start, typed)
			return d
		}
	}
	// An object without metadata gets one.
	d.splice = 1
	if d.typeMeta > 0 {
		d.splice = d.typeMeta
	}
	d.before, d.after = `"metadata":{`+memberStart, memberEnd+`}`
	if d.splice < len(body) && body[d.splice] != '}' {
		d.after += ","
	}
	return d
}

// place finds the place in the metadata that begins at an offset.
func (d *document) place(offset int, typed bool) {
	in := scanner{d.body, offset}
	last := offset + 1
	some := false
	for in.member() {
		key := in.key()
		if typed && !beforeVersion(key) || !typed && string(key) > "resourceVersion" {
			break
		}
		in.skipValue()
		last, some = in.pos, true
	}
	d.splice, d.before, d.after = last, memberStart, memberEnd
	if some {
		d.before = "," + d.before
	} else if last < len(d.body) && d.body[last] != '}' {
		d.after += ","
	}
}

// beforeVersion says which members of ObjectMeta come before resourceVersion.
func beforeVersion(key []byte) bool {
	switch string(key) {
	case "name", "generateName", "namespace", "selfLink", "uid":
		return true
	}
	return false
}

func (d *document) appendJSON(dst []byte, revision int64, typeMeta bool) []byte {
	from := 0
	if !typeMeta && d.typeMeta > 0 {
		dst = append(dst, '{')
		from = d.typeMeta
	}
	dst = append(dst, d.body[from:d.splice]...)
	dst = append(dst, d.before...)
	dst = strconv.AppendInt(dst, revision, 10)
	dst = append(dst, d.after...)
	return append(dst, d.body[d.splice:]...)
}

// scanner walks the members of one JSON object. It reads only what an encoder
// wrote: valid JSON without spaces between tokens.
type scanner struct {
	b   []byte
	pos int
}

// member moves to the next member's key; false at the end.
func (s *scanner) member() bool {
	if s.pos >= len(s.b) || s.b[s.pos] != '{' && s.b[s.pos] != ',' {
		return false
	}
	s.pos++
	return s.pos < len(s.b) && s.b[s.pos] == '"'
}

// key returns the key and moves to the value.
func (s *scanner) key() []byte {
	start := s.pos + 1
	s.skipString()
	key := s.b[start : s.pos-1]
	s.pos++ // the colon
	return key
}

func (s *scanner) skipString() {
	for s.pos++; s.pos < len(s.b); s.pos++ {
		switch s.b[s.pos] {
		case '\\':
			s.pos++
		case '"':
			s.pos++
			return
		}
	}
}

func (s *scanner) skipValue() {
	depth := 0
	for s.pos < len(s.b) {
		switch s.b[s.pos] {
		case '"':
			s.skipString()
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
			depth--
			if depth == 0 {
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

// trim drops the newline that encoders put after an object.
func trim(data []byte) []byte { return bytes.TrimRight(data, "\n") }
