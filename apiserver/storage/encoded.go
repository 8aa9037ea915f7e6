package storage

import (
	"context"
	"iter"

	apiwatch "k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// Encoded is one object as JSON in the storage version.
type Encoded struct{}

// ResourceVersion is the revision of this state, or of the delete it ended with.
func (e Encoded) ResourceVersion() int64 { panic("in work") }

// Len is about how many bytes AppendJSON appends.
func (e Encoded) Len() int { panic("in work") }

// AppendJSON appends the object to dst, with its resourceVersion. Without
// typeMeta it leaves out the leading kind and apiVersion of a typed object, as
// the items of a typed list do; unstructured objects keep theirs.
func (e Encoded) AppendJSON(dst []byte, typeMeta bool) []byte { panic("in work") }

// EncodedList is a list whose items are read while they are iterated.
type EncodedList struct {
	// ResourceVersion, Continue and RemainingItemCount are the list's
	// metadata. They are complete before the first item is read.
	ResourceVersion    string
	Continue           string
	RemainingItemCount *int64
	// Items gives each object once, in key order; after an error nothing
	// more comes.
	Items iter.Seq2[Encoded, error]
}

// EncodedEvent is one event of a watch; Object is the bookmark's own small
// object where Type is Bookmark.
type EncodedEvent struct {
	Type   apiwatch.EventType
	Object Encoded
}

// EncodedWatch is a cursor over events. It has no goroutine and no buffer of
// its own: who does not call Next costs nobody anything.
type EncodedWatch interface {
	// Next waits for the next events and returns at least one. The error is
	// ctx's own, or an API status that ends the watch (410 Expired). A
	// bookmark wakes Next by itself when one is due.
	Next(ctx context.Context) ([]EncodedEvent, error)
	// Close frees what the watch holds; Next must not be called after.
	Close()
}

// GetEncoded is Get without decoding. IgnoreNotFound is not supported: what
// is not there is always NotFound.
func (s *Store) GetEncoded(ctx context.Context, key string, opts apistorage.GetOptions) (Encoded, error) {
	panic("in work")
}

// ListEncoded is GetList without decoding. The list's metadata is known, and
// errors about resourceVersion and continue are returned, before the first
// item.
func (s *Store) ListEncoded(ctx context.Context, key string, opts apistorage.ListOptions) (*EncodedList, error) {
	panic("in work")
}

// WatchEncoded is Watch without decoding. Like upstream's it returns as errors
// what is wrong with the request; a revision that is compacted or in the
// future comes as the first Next's error, to be sent as an ERROR event.
func (s *Store) WatchEncoded(ctx context.Context, key string, opts apistorage.ListOptions) (EncodedWatch, error) {
	panic("in work")
}
