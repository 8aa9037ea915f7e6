package objectstore

import (
	"strconv"

	"byre/watch/representation"
)

// The marks of a representation in JSON. The resourceVersion is the only part of an
// answer that is not stored: it is put in when the object is written out.
const (
	// markSplice is where the member goes.
	markSplice = iota
	// markTypeMeta is where the members after kind and apiVersion begin, in a typed
	// object, which has these two first; 0 elsewhere.
	markTypeMeta
	// markMetadata and markMetadataEnd enclose the metadata; both are 0 where there is
	// none.
	markMetadata
	markMetadataEnd
)

const (
	memberStart = `"resourceVersion":"`
	memberEnd   = `"`
	// memberLen is what a resourceVersion adds at most, about.
	memberLen = 48
)

// newJSON finds the marks. A typed object gets its resourceVersion where
// encoding/json would put it, after uid; an unstructured one, whose keys are
// sorted, in order.
func newJSON(body []byte) representation.Representation {
	r := representation.Representation{Body: body}
	top := scanner{body, 0}
	typed := false
	for first := true; top.nextMember(); first = false {
		key := top.readKey()
		if first {
			typed = string(key) == "kind"
		}
		start := top.pos
		top.skipValue()
		if typed && r.Marks[markTypeMeta] == 0 && string(key) == "apiVersion" && top.nextIs(',') {
			r.Marks[markTypeMeta] = int32(top.pos + 1)
		}
		if string(key) == "metadata" && start < len(body) && body[start] == '{' {
			r.Marks[markMetadata], r.Marks[markMetadataEnd] = int32(start), int32(top.pos)
			r.Marks[markSplice] = int32(splicePlace(body, start, typed))
			return r
		}
	}
	// An object without metadata gets one.
	r.Marks[markSplice] = max(1, r.Marks[markTypeMeta])
	return r
}

// splicePlace finds the place in the metadata that begins at an offset.
func splicePlace(body []byte, offset int, typed bool) int {
	in := scanner{body, offset}
	last := offset + 1
	for in.nextMember() {
		key := in.readKey()
		if typed && !beforeVersion(key) || !typed && string(key) > "resourceVersion" {
			break
		}
		in.skipValue()
		last = in.pos
	}
	return last
}

// beforeVersion says which members of ObjectMeta come before resourceVersion.
func beforeVersion(key []byte) bool {
	switch string(key) {
	case "name", "generateName", "namespace", "selfLink", "uid":
		return true
	}
	return false
}

// appendJSON appends an object with its resourceVersion. Without typeMeta it leaves out
// the leading kind and apiVersion of a typed object.
func appendJSON(dst []byte, r *representation.Representation, revision int64, typeMeta bool) []byte {
	from := 0
	if after := int(r.Marks[markTypeMeta]); !typeMeta && after > 0 {
		dst = append(dst, '{')
		from = after
	}
	return appendSpliced(dst, r, from, len(r.Body), revision)
}

// appendMetadata appends the metadata with its resourceVersion.
func appendMetadata(dst []byte, r *representation.Representation, revision int64) []byte {
	if r.Marks[markMetadata] == 0 {
		dst = append(dst, '{')
		return append(appendVersion(dst, revision), '}')
	}
	return appendSpliced(dst, r, int(r.Marks[markMetadata]), int(r.Marks[markMetadataEnd]), revision)
}

// appendSpliced appends a part of the body that has the place for the resourceVersion.
func appendSpliced(dst []byte, r *representation.Representation, from, to int, revision int64) []byte {
	splice := int(r.Marks[markSplice])
	dst = append(dst, r.Body[from:splice]...)
	next := scanner{r.Body, splice}
	switch {
	case r.Marks[markMetadata] == 0:
		dst = append(dst, `"metadata":{`...)
		dst = append(appendVersion(dst, revision), '}')
		if !next.nextIs('}') {
			dst = append(dst, ',')
		}
	case r.Body[splice-1] != '{':
		dst = appendVersion(append(dst, ','), revision)
	default:
		dst = appendVersion(dst, revision)
		if !next.nextIs('}') {
			dst = append(dst, ',')
		}
	}
	return append(dst, r.Body[splice:to]...)
}

func appendVersion(dst []byte, revision int64) []byte {
	dst = append(dst, memberStart...)
	dst = strconv.AppendInt(dst, revision, 10)
	return append(dst, memberEnd...)
}
