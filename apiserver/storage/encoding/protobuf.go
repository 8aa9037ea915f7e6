package encoding

import (
	"errors"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"byre/watch"
)

// The marks of a representation in protobuf, as offsets into its body. The body is the
// message of the object, with the resourceVersion of the record. Only the last state of
// a deleted object is shown with another resourceVersion, that of the delete.
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
	fieldResourceVersion = 6
	tagMetadata          = 1<<3 | byte(protowire.BytesType)
	tagResourceVersion   = fieldResourceVersion<<3 | byte(protowire.BytesType)
)

var errNoMetadata = errors.New("a protobuf message of an API object does not begin with its metadata")

// newProtobuf makes the representation of a message whose resourceVersion is empty.
// Upstream writes the empty field, as it does with all fields of ObjectMeta that are
// not pointers.
func newProtobuf(message []byte, revision int64) (watch.Representation, error) {
	r := watch.Representation{Body: message}
	if len(message) == 0 || message[0] != tagMetadata {
		return r, errNoMetadata
	}
	metadata, n := protowire.ConsumeBytes(message[1:])
	if n < 0 {
		return r, errNoMetadata
	}
	end := 1 + n
	r.Marks[markMessage], r.Marks[markMessageEnd] = int32(end-len(metadata)), int32(end)
	for from := end - len(metadata); ; {
		number, _, n := protowire.ConsumeField(message[from:end])
		if n < 0 {
			return r, errNoMetadata
		}
		if number == fieldResourceVersion {
			r.Marks[markVersion], r.Marks[markVersionEnd] = int32(from), int32(from+n)
			return withRevision(&r, revision), nil
		}
		from += n
	}
}

// withRevision makes a copy of a representation that has another resourceVersion.
func withRevision(r *watch.Representation, revision int64) watch.Representation {
	start, end := int(r.Marks[markMessage]), int(r.Marks[markMessageEnd])
	from, to := int(r.Marks[markVersion]), int(r.Marks[markVersionEnd])
	var digits [20]byte
	version := strconv.AppendInt(digits[:0], revision, 10)
	size := end - start - (to - from) + 2 + len(version)

	body := make([]byte, 0, len(r.Body)+len(version)+4)
	body = append(body, tagMetadata)
	body = protowire.AppendVarint(body, uint64(size))
	out := watch.Representation{}
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
// PartialObjectMetadata. The metadata is the first field of both messages, so the
// result shares the memory of whole.
func cutMetadata(whole *watch.Representation) *watch.Representation {
	end := whole.Marks[markMessageEnd]
	return &watch.Representation{Body: whole.Body[:end:end], Marks: whole.Marks}
}
