package objectstore

// Encoded is one object as JSON in the storage version. It is immutable.
type Encoded struct {
	doc      *document
	revision int64
}

// ResourceVersion is the revision of this state, or of the delete it ended with.
func (e Encoded) ResourceVersion() int64 { return e.revision }

// Len is about how many bytes AppendJSON appends, and not less.
func (e Encoded) Len() int { return len(e.doc.body) + memberLen }

// AppendJSON appends the object to dst, with its resourceVersion. Without
// typeMeta it leaves out the leading kind and apiVersion of a typed object, as
// the items of a typed list do; unstructured objects keep theirs.
func (e Encoded) AppendJSON(dst []byte, typeMeta bool) []byte {
	return e.doc.appendJSON(dst, e.revision, typeMeta)
}
