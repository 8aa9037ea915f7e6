package objectstore

import "byre/watch/representation"

// Encoded is one object in a Format. It is immutable.
type Encoded struct {
	format   *Format
	r        *representation.Representation
	revision int64
}

// newEncoded is an object at a revision. The representation of an entry in protobuf is
// at the entry's own revision.
func newEncoded(f *Format, r *representation.Representation, revision, own int64) Encoded {
	if f.protobuf && revision != own {
		other := withRevision(r, revision)
		r = &other
	}
	return Encoded{f, r, revision}
}

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
