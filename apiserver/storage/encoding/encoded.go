package encoding

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"byre/watch"
)

// Encoded is one object in a Format. It is immutable.
type Encoded struct {
	format   *Format // nil for the result of a write
	r        *watch.Representation
	revision int64
	// serializer and entry say what the object was made of; nil for a bookmark and for the
	// result of a write.
	serializer *Serializer
	entry      *watch.Entry
}

// EncodedStored is an object of which data is the stored JSON.
func EncodedStored(data []byte, revision int64) Encoded {
	r := newJSON(data)
	return Encoded{r: &r, revision: revision}
}

// In returns the object in another Format of the Serializer that made it.
func (e Encoded) In(ctx context.Context, f *Format) (Encoded, error) {
	r, err := e.serializer.Represent(ctx, e.entry, f)
	if err != nil {
		return Encoded{}, e.serializer.EntryError(err, e.entry)
	}
	return e.serializer.Encoded(f, r, e.entry, e.revision), nil
}

// Object decodes the object as its Format needs it, without keeping the result in the
// cache. The caller owns the object.
func (e Encoded) Object(ctx context.Context) (runtime.Object, error) {
	obj, err := e.format.decode(ctx, e.serializer, e.entry)
	if err != nil {
		return nil, e.serializer.EntryError(err, e.entry)
	}
	return obj, nil
}

// Body is what the Format's encoder made of the object: in a Format of protobuf, its message. The caller must not write to
// it.
func (e Encoded) Body() []byte { return e.r.Body }

// ResourceVersion is the revision of the object's state, or of the delete that ended
// it.
func (e Encoded) ResourceVersion() int64 { return e.revision }

// Len is an upper bound of the bytes that AppendJSON appends, and close to their
// number.
func (e Encoded) Len() int { return len(e.r.Body) + memberLen }

// AppendJSON appends the object to dst, with its resourceVersion. Without typeMeta it
// leaves out the kind and the apiVersion that a typed object begins with, as the items
// of a typed list do. Unstructured objects keep theirs. The Encoded must be in a Format
// of JSON.
func (e Encoded) AppendJSON(dst []byte, typeMeta bool) []byte {
	return appendJSON(dst, e.r, e.revision, typeMeta)
}

// AppendMetadataJSON appends only the object's metadata to dst, in the form that
// AppendJSON writes.
func (e Encoded) AppendMetadataJSON(dst []byte) []byte {
	return appendMetadata(dst, e.r, e.revision)
}
