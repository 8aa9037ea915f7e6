package objectstore

import (
	"encoding/binary"
	"errors"
	"strconv"

	"byre/watch/representation"
)

// The marks of a representation in protobuf. Its body is the message of the object, at
// the revision of its record: only the last state of a deleted object is shown at
// another one.
const (
	// markMessage and markMessageEnd enclose the content of the metadata.
	markMessage = iota
	markMessageEnd
	// markVersion and markVersionEnd enclose the field of the resourceVersion.
	markVersion
	markVersionEnd
)

// The tags of ObjectMeta in an object (the first field of every API type) and of
// resourceVersion in ObjectMeta (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
const (
	tagMetadata        = 1<<3 | 2
	tagResourceVersion = 6<<3 | 2
)

var errNoMetadata = errors.New("a protobuf message of an API object does not begin with its metadata")

// newProtobuf makes the representation of a message without a resourceVersion. Upstream
// writes an empty one, as it does with all fields of ObjectMeta that are not pointers.
func newProtobuf(message []byte, revision int64) (representation.Representation, error) {
	r := representation.Representation{Body: message}
	in := messageFields{message, 0}
	tag, start, end := in.next()
	if tag != tagMetadata || end < 0 {
		return r, errNoMetadata
	}
	r.Marks[markMessage], r.Marks[markMessageEnd] = int32(start), int32(end)
	in = messageFields{message[:r.Marks[markMessageEnd]], int(r.Marks[markMessage])}
	for {
		from := in.pos
		tag, _, end := in.next()
		if end < 0 {
			return r, errNoMetadata
		}
		if tag == tagResourceVersion {
			r.Marks[markVersion], r.Marks[markVersionEnd] = int32(from), int32(end)
			break
		}
	}
	return withRevision(&r, revision), nil
}

// withRevision makes the same representation at another revision, in memory of its own.
func withRevision(r *representation.Representation, revision int64) representation.Representation {
	start, end := int(r.Marks[markMessage]), int(r.Marks[markMessageEnd])
	from, to := int(r.Marks[markVersion]), int(r.Marks[markVersionEnd])
	var digits [20]byte
	version := strconv.AppendInt(digits[:0], revision, 10)
	size := end - start - (to - from) + 2 + len(version)

	body := make([]byte, 0, len(r.Body)+len(version)+4)
	body = append(body, tagMetadata)
	body = binary.AppendUvarint(body, uint64(size))
	out := representation.Representation{}
	out.Marks[markMessage] = int32(len(body))
	body = append(body, r.Body[start:from]...)
	out.Marks[markVersion] = int32(len(body))
	body = append(body, tagResourceVersion, byte(len(version)))
	body = append(body, version...)
	out.Marks[markVersionEnd] = int32(len(body))
	body = append(body, r.Body[to:end]...)
	out.Marks[markMessageEnd] = int32(len(body))
	out.Body = append(body, r.Body[end:]...)
	return out
}

// cutMetadata returns the metadata of a whole object as a message of
// PartialObjectMetadata, in the memory of the other: the metadata is the first field of
// both messages.
func cutMetadata(whole *representation.Representation) *representation.Representation {
	end := whole.Marks[markMessageEnd]
	return &representation.Representation{Body: whole.Body[:end:end], Marks: whole.Marks}
}

// messageFields walks the fields of a protobuf message.
type messageFields struct {
	b   []byte
	pos int
}

// next returns the next field's tag and where its content is; end is negative when there
// is none, or none that has a length or is a varint.
func (f *messageFields) next() (tag uint64, start, end int) {
	tag, n := binary.Uvarint(f.b[f.pos:])
	if n <= 0 {
		return 0, 0, -1
	}
	start = f.pos + n
	value, n := binary.Uvarint(f.b[start:])
	switch {
	case n <= 0:
		return 0, 0, -1
	case tag&7 == 0:
		end = start + n
	case tag&7 == 2 && value <= uint64(len(f.b)-start-n):
		start += n
		end = start + int(value)
	default:
		return 0, 0, -1
	}
	f.pos = end
	return tag, start, end
}
