package objectstore

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"byre/watch"
	"byre/watch/representation"
)

// Encoded is one object in a Format. It is immutable.
type Encoded struct {
	format   *Format
	r        *representation.Representation
	revision int64
	// store and entry are where it comes from; nil for a bookmark and a write's result.
	store *Store
	entry *watch.Entry
}

// newEncoded is an entry's object at a revision. The representation of an entry in
// protobuf is at the entry's own revision.
func (s *Store) newEncoded(f *Format, r *representation.Representation, e *watch.Entry, revision int64) Encoded {
	if f.protobuf && revision != e.Revision {
		other := withRevision(r, revision)
		r = &other
	}
	return Encoded{f, r, revision, s, e}
}

// In returns an object that was got from a Store in another of its Formats.
func (e Encoded) In(ctx context.Context, f *Format) (Encoded, error) {
	r, err := e.store.represent(ctx, e.entry, f)
	if err != nil {
		return Encoded{}, e.store.entryError(err, e.entry)
	}
	return e.store.newEncoded(f, r, e.entry, e.revision), nil
}

// Object decodes the object for its Format, apart from the cache. It is the caller's own.
func (e Encoded) Object(ctx context.Context) (runtime.Object, error) {
	obj, err := e.store.decodeFor(ctx, e.entry, e.format)
	if err != nil {
		return nil, e.store.entryError(err, e.entry)
	}
	return obj, nil
}

// Body is what the Format has made of the object. The caller must not write to it.
func (e Encoded) Body() []byte { return e.r.Body }

// ResourceVersion is the revision of this state, or of the delete it ended with.
func (e Encoded) ResourceVersion() int64 { return e.revision }

// Len is about how many bytes AppendJSON appends, and not less.
func (e Encoded) Len() int { return len(e.r.Body) + memberLen }

// AppendJSON appends the object to dst, with its resourceVersion. Without
// typeMeta it leaves out the leading kind and apiVersion of a typed object, as
// the items of a typed list do; unstructured objects keep theirs. The Format is one of
// JSON.
func (e Encoded) AppendJSON(dst []byte, typeMeta bool) []byte {
	return appendJSON(dst, e.r, e.revision, typeMeta)
}

// AppendMetadataJSON appends the object's metadata alone, as AppendJSON has it.
func (e Encoded) AppendMetadataJSON(dst []byte) []byte {
	return appendMetadata(dst, e.r, e.revision)
}

// Message is the object in a Format of protobuf. The caller must not write to it.
func (e Encoded) Message() []byte { return e.r.Body }
