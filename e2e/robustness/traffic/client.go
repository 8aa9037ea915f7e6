package traffic

import (
	"context"

	"byre/e2e/robustness/history"
)

// Client is one way to use the store under test: through REST, or through the storage
// API. It is safe for concurrent use.
type Client interface {
	// Create, Update and Patch return the object as it was written. Update has
	// Object.Revision as its precondition.
	Create(ctx context.Context, o history.Object) (history.Object, error)
	Update(ctx context.Context, o history.Object) (history.Object, error)
	Patch(ctx context.Context, o history.Object) (history.Object, error)
	// Delete has a precondition unless the revision is 0.
	Delete(ctx context.Context, name string, revision int64) error
	// Get reads an object. With history.Any it may be of any age.
	Get(ctx context.Context, name string, mode history.Mode, at int64) (history.Object, error)
	// List reads one page.
	List(ctx context.Context, l ListOptions) (Page, error)
	// Watch begins a watch, which ends with ctx.
	Watch(ctx context.Context, w WatchOptions) (Stream, error)
	// Classify says what an error means for the operation that returned it.
	Classify(err error) (outcome history.Outcome, kind string)
}

// ListOptions say which page to read.
type ListOptions struct {
	Mode     history.Mode
	At       int64
	Color    string
	Limit    int64
	Continue string
}

// Page is one page of a list.
type Page struct {
	Items    []history.Object
	Revision int64
	Continue string
}

// WatchOptions say what to watch.
type WatchOptions struct {
	After   int64
	Initial bool // the state first, whatever After is
	Color   string
}

// Stream is a watch that has begun.
type Stream interface {
	// Next returns the next event, or an error when the watch has ended: io.EOF when
	// the server or the context closed it.
	Next() (history.EventType, history.Object, error)
	// Stop ends the watch and releases it.
	Stop()
}
