package server

import (
	"bytes"
	"strings"

	"byre/sqlstore"
)

// The resources of the store. Those of Kubernetes' prefixes are named by what is between registry and the last slash
// of the prefix, such as pods or example.com/widgets; no such name begins with a slash.
const (
	group    = "etcd"
	registry = "/registry/"
)

var (
	// others has the keys below no prefix of Kubernetes.
	others = sqlstore.Resource{Group: group, Resource: "/"}
	// clusterKey is the key of a record that is no key of etcd.
	clusterKey = sqlstore.Key{Group: group, Resource: "/server", Name: "cluster"}
)

// hasKeys reports whether the records of a resource are keys of etcd.
func hasKeys(r sqlstore.Resource) bool {
	return r.Group == group && r.Owner == sqlstore.BuiltIn && r != clusterKey.Of()
}

// prefixOf returns the prefix of Kubernetes that a key begins with, with its last slash: /registry/, the resource or,
// if that has a dot, the group and the resource. It is "" if there is none.
//
// Invariant: the keys with one prefix are contiguous, and no prefix begins with another one.
func prefixOf(key string) string {
	rest, ok := strings.CutPrefix(key, registry)
	if !ok {
		return ""
	}
	segment := plainSegment(rest)
	n := len(segment)
	if strings.Contains(segment, ".") {
		if segment = plainSegment(rest[n+1:]); segment == "" {
			return ""
		}
		n += 1 + len(segment)
	}
	if segment == "" {
		return ""
	}
	return key[:len(registry)+n+1]
}

// plainSegment returns what is before the first slash, if that can be in the name of a resource; else "".
func plainSegment(s string) string {
	segment, _, ok := strings.Cut(s, "/")
	isPlain := func(r rune) bool { return r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' }
	if !ok || strings.IndexFunc(segment, func(r rune) bool { return !isPlain(r) }) >= 0 {
		return ""
	}
	return segment
}

// prefixOfResource returns the prefix of the keys of a resource, with its last slash; "" for others.
func prefixOfResource(r sqlstore.Resource) string {
	if r == others {
		return ""
	}
	return registry + r.Resource + "/"
}

// resourceOf is the reverse of prefixOfResource.
func resourceOf(prefix string) sqlstore.Resource {
	if prefix == "" {
		return others
	}
	return sqlstore.Resource{Group: group, Resource: prefix[len(registry) : len(prefix)-1]}
}

// RecordOf returns the key of the record of a key of etcd. Its name begins with the slash that ends the prefix, because
// a name can't be empty. If the key ends in the slash after one of Kubernetes' prefixes, or in a later one, the keys of
// etcd that begin with it have records of the same resource, whose names begin with the Name.
func RecordOf(key string) sqlstore.Key {
	prefix := prefixOf(key)
	return sqlstore.Key{
		Group: group, Resource: resourceOf(prefix).Resource, Name: encodeName(key[max(len(prefix)-1, 0):]),
	}
}

// KeyOf returns the key of etcd whose record has a key; false if that is no record of a key of etcd.
func KeyOf(record sqlstore.Key) (string, bool) {
	if !hasKeys(record.Of()) {
		return "", false
	}
	return string(keyOf(record)), true
}

// keyOf is the reverse of RecordOf.
func keyOf(k sqlstore.Key) []byte {
	if k.Of() == others {
		return decodeName(nil, k.Name)
	}
	key := make([]byte, 0, len(registry)+len(k.Resource)+len(k.Name))
	return decodeName(append(append(key, registry...), k.Resource...), k.Name)
}

// encodeName encodes bytes as UTF-8 without U+0000. The bytes from 2 to 127 are themselves.
//
// Invariant: names order as bytes as what they encode does, because no code begins with another one, and the codes
// order as the bytes.
func encodeName(key string) string {
	plain := func(c byte) bool { return 2 <= c && c < 0x80 }
	n := 0
	for n < len(key) && plain(key[n]) {
		n++
	}
	if n == len(key) {
		return key
	}
	var b strings.Builder
	b.WriteString(key[:n])
	for _, c := range []byte(key[n:]) {
		switch {
		case plain(c):
			b.WriteByte(c)
		case c < 2:
			b.WriteByte(1)
			b.WriteByte(c + 1)
		default:
			b.WriteRune(rune(c))
		}
	}
	return b.String()
}

// decodeName appends what a name encodes.
func decodeName(b []byte, name string) []byte {
	isEscaped := false
	for _, r := range name {
		switch {
		case isEscaped:
			b = append(b, byte(r-1))
			isEscaped = false
		case r == 1:
			isEscaped = true
		default:
			b = append(b, byte(r))
		}
	}
	return b
}

// span is a range of keys of etcd: those from start on and before end.
type span struct {
	start, end string
	// isOpen is true if the span has no end, and isOne if it has start alone.
	isOpen, isOne bool
}

// spanOf returns the span of the fields key and range_end of a request.
func spanOf(key, end []byte) span {
	switch {
	case len(end) == 0:
		return span{start: string(key), end: string(key) + "\x00", isOne: true}
	case bytes.Equal(end, []byte{0}):
		return span{start: string(key), isOpen: true}
	}
	return span{start: string(key), end: string(end)}
}

func (s span) isEmpty() bool { return !s.isOpen && s.start >= s.end }

func (s span) contains(key string) bool { return s.start <= key && (s.isOpen || key < s.end) }

// resource returns the one resource that has all keys of the span; false if several may have some.
func (s span) resource() (sqlstore.Resource, bool) {
	prefix := prefixOf(s.start)
	if s.isOne {
		return resourceOf(prefix), true
	}
	return resourceOf(prefix), prefix != "" && !s.isOpen && s.end <= afterPrefix(prefix)
}

// afterPrefix returns the first key after those with a prefix, which ends in a slash.
func afterPrefix(prefix string) string { return prefix[:len(prefix)-1] + "0" }

// overlaps reports whether the resource may have keys of the span.
func (s span) overlaps(r sqlstore.Resource) bool {
	prefix := prefixOfResource(r)
	return prefix == "" || (s.isOpen || prefix < s.end) && s.start < afterPrefix(prefix)
}

// names returns the names of the records of a resource that the span has: from first on, and before end unless that is
// "". whole says that these are all records of the resource.
func (s span) names(r sqlstore.Resource) (first, end string, whole bool) {
	prefix := prefixOfResource(r)
	if prefix == "" {
		return encodeName(s.start), encodeName(s.end), s.isOpen && s.start <= "\x00"
	}
	if strings.HasPrefix(s.start, prefix) {
		first = s.start[len(prefix)-1:]
	}
	if !s.isOpen && s.end < afterPrefix(prefix) {
		end = s.end[len(prefix)-1:]
	}
	return encodeName(first), encodeName(end), end == "" && first <= "/"
}
