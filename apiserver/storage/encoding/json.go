package encoding

import (
	"bytes"
	"strconv"

	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
	"byre/watch"
)

// The marks of a representation in JSON, as offsets into its body. The body has no
// resourceVersion; AppendJSON inserts it.
const (
	// markSplice is where the resourceVersion is inserted.
	markSplice = iota
	// markTypeMeta is where the members after kind and apiVersion begin, in a typed
	// object, which begins with these two; 0 in other objects.
	markTypeMeta
	// markMetadata and markMetadataEnd enclose the value of the metadata; both are 0
	// where the object has none.
	markMetadata
	markMetadataEnd
)

const (
	memberStart = `"resourceVersion":"`
	memberEnd   = `"`
	// memberLen is an upper bound of the bytes that inserting a resourceVersion adds.
	memberLen = 48
)

// newJSON makes the representation of an object's JSON and finds its marks. The
// resourceVersion of a typed object is inserted where encoding/json would write it,
// after uid. In an unstructured object, whose keys are sorted, it is inserted in order.
func newJSON(body []byte) watch.Representation {
	r := watch.Representation{Body: body}
	top := transcode.NewScanner(body, 0)
	typed := false
	for first := true; top.NextMember(); first = false {
		key := top.ReadKey()
		if first {
			typed = string(key) == "kind"
		}
		start := top.Pos
		top.SkipValue()
		if typed && r.Marks[markTypeMeta] == 0 && string(key) == "apiVersion" && top.NextIs(',') {
			r.Marks[markTypeMeta] = int32(top.Pos + 1)
		}
		if string(key) == "metadata" && start < len(body) && body[start] == '{' {
			r.Marks[markMetadata], r.Marks[markMetadataEnd] = int32(start), int32(top.Pos)
			r.Marks[markSplice] = int32(splicePlace(body, start, typed))
			return r
		}
	}
	// An object without metadata gets metadata with only the resourceVersion.
	r.Marks[markSplice] = max(1, r.Marks[markTypeMeta])
	return r
}

// splicePlace returns where the resourceVersion is inserted into the metadata that
// begins at offset.
func splicePlace(body []byte, offset int, typed bool) int {
	in := transcode.NewScanner(body, offset)
	last := offset + 1
	for in.NextMember() {
		key := in.ReadKey()
		if typed && !isBeforeResourceVersion(key) || !typed && string(key) > "resourceVersion" {
			break
		}
		in.SkipValue()
		last = in.Pos
	}
	return last
}

// isBeforeResourceVersion reports whether encoding/json writes a member of ObjectMeta before
// resourceVersion.
func isBeforeResourceVersion(key []byte) bool {
	switch string(key) {
	case "name", "generateName", "namespace", "selfLink", "uid":
		return true
	}
	return false
}

// appendJSON appends an object with its resourceVersion. Without typeMeta it leaves out
// the leading kind and apiVersion of a typed object.
func appendJSON(dst []byte, r *watch.Representation, revision int64, typeMeta bool) []byte {
	from := 0
	if after := int(r.Marks[markTypeMeta]); !typeMeta && after > 0 {
		dst = append(dst, '{')
		from = after
	}
	return appendSpliced(dst, r, from, len(r.Body), revision)
}

// appendMetadata appends the metadata with its resourceVersion.
func appendMetadata(dst []byte, r *watch.Representation, revision int64) []byte {
	if r.Marks[markMetadata] == 0 {
		dst = append(dst, '{')
		return append(appendVersion(dst, revision), '}')
	}
	return appendSpliced(dst, r, int(r.Marks[markMetadata]), int(r.Marks[markMetadataEnd]), revision)
}

// appendSpliced appends the part of the body between from and to, and inserts the
// resourceVersion. markSplice is within this part.
func appendSpliced(dst []byte, r *watch.Representation, from, to int, revision int64) []byte {
	splice := int(r.Marks[markSplice])
	dst = append(dst, r.Body[from:splice]...)
	next := transcode.NewScanner(r.Body, splice)
	switch {
	case r.Marks[markMetadata] == 0:
		dst = append(dst, `"metadata":{`...)
		dst = append(appendVersion(dst, revision), '}')
		if !next.NextIs('}') {
			dst = append(dst, ',')
		}
	case r.Body[splice-1] != '{':
		dst = appendVersion(append(dst, ','), revision)
	default:
		dst = appendVersion(dst, revision)
		if !next.NextIs('}') {
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

// scanLabels reads the labels from an object's JSON. It returns false where only a
// decoder can read them.
func scanLabels(r *watch.Representation) ([]sqlstore.Label, bool) {
	if r.Marks[markMetadata] == 0 {
		return nil, true
	}
	for in := (transcode.NewScanner(r.Body[:r.Marks[markMetadataEnd]], int(r.Marks[markMetadata]))); in.NextMember(); in.SkipValue() {
		if string(in.ReadKey()) != "labels" {
			continue
		}
		found := []sqlstore.Label{}
		for in.NextMember() {
			key := in.ReadKey()
			value, plain := in.ReadPlainString()
			if !plain || bytes.IndexByte(key, '\\') >= 0 {
				return nil, false
			}
			found = append(found, sqlstore.Label{Key: string(key), Value: value})
		}
		return found, in.NextIs('}')
	}
	return nil, true
}
