package storage

import (
	"context"
	"errors"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/encoding"
	"byre/watch"
)

// EncodedEvent is one event of a watch. Where Type is Bookmark, Object is an empty
// object with a resourceVersion.
type EncodedEvent struct {
	Type   apiwatch.EventType
	Object encoding.Encoded
}

// EncodedWatch is a watch in a Format. It has no goroutine and no buffer, so a caller
// that does not call Next costs the other watches nothing. Only one goroutine may use
// it. The caller must close it.
type EncodedWatch struct{ cursor *cursor }

// WatchEncoded is Watch in a Format. It returns the errors of the request, except those
// of its resourceVersion, which the first Next returns. The watch ends at the context's
// deadline, if there is one, and sends a bookmark shortly before.
func (s *Store) WatchEncoded(ctx context.Context, key string, opts storage.ListOptions, f *encoding.Format) (EncodedWatch, error) {
	c, err := s.cursor(ctx, key, opts, f)
	if err != nil {
		return EncodedWatch{}, err
	}
	return EncodedWatch{c}, nil
}

// Close ends the subscription to the feed.
func (w EncodedWatch) Close() { w.cursor.close() }

// Next waits for events and returns at least one; a bookmark that is due is an event.
// Errors: ctx's own; io.EOF when the server stops; an API status that ends the watch and
// that the caller sends as its ERROR event, such as 410 Expired.
func (w EncodedWatch) Next(ctx context.Context) ([]EncodedEvent, error) {
	changes, err := w.cursor.next(ctx)
	if errors.Is(err, watch.ErrClosed) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, err
	}
	events := make([]EncodedEvent, 0, len(changes))
	for _, ch := range changes {
		obj, err := w.cursor.encodedChange(ctx, ch)
		if err != nil {
			if len(events) == 0 {
				return nil, w.cursor.watcherError(ctx, err)
			}
			w.cursor.nextError = err
			break
		}
		events = append(events, EncodedEvent{ch.typ, obj})
	}
	return events, nil
}

func (c *cursor) encodedChange(ctx context.Context, ch change) (encoding.Encoded, error) {
	s, f := c.s.serializer, c.format
	if ch.typ == apiwatch.Bookmark {
		return s.Bookmark(ctx, f, ch.revision, ch.initialEnd)
	}
	r, err := s.Represent(ctx, ch.entry, f)
	if err != nil {
		return encoding.Encoded{}, c.changeError(ctx, err, ch.entry, ch.typ == apiwatch.Deleted)
	}
	return s.Encoded(f, r, ch.entry, ch.revision), nil
}

func (c *cursor) decodedChange(ctx context.Context, ch change) (runtime.Object, error) {
	s := c.s.serializer
	if ch.typ == apiwatch.Bookmark {
		return s.NewBookmark(ch.revision, ch.initialEnd)
	}
	// Each watch gets an object of its own, because registries decorate it in place.
	obj, err := s.Object(ctx, ch.entry)
	if err != nil {
		return nil, c.changeError(ctx, err, ch.entry, ch.typ == apiwatch.Deleted)
	}
	return obj, versioner.UpdateObject(obj, uint64(ch.revision))
}

// watcher implements apimachinery's watch.Interface: a cursor with a goroutine.
type watcher struct {
	cursor *cursor
	cancel context.CancelFunc
	result chan apiwatch.Event
}

// resultBuffer is the number of events that the goroutine may be ahead of the reader.
// It saves a reader that keeps up some switches between goroutines. The events of a
// slow reader wait in the feed.
const resultBuffer = 16

// Watch implements storage.Interface.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	c, err := s.cursor(ctx, key, opts, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cursor: c, cancel: cancel, result: make(chan apiwatch.Event, resultBuffer)}
	go w.run(ctx)
	return w, nil
}

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan apiwatch.Event { return w.result }

func (w *watcher) run(ctx context.Context) {
	defer close(w.result)
	defer w.cancel()
	defer w.cursor.close()
	for {
		changes, err := w.cursor.next(ctx)
		for _, ch := range changes {
			var obj runtime.Object
			if obj, err = w.cursor.decodedChange(ctx, ch); err != nil {
				err = w.cursor.watcherError(ctx, err)
				break
			}
			if !w.send(ctx, apiwatch.Event{Type: ch.typ, Object: obj}) {
				return
			}
		}
		if err != nil {
			w.end(ctx, err)
			return
		}
	}
}

// end sends the error that ended the watch, unless the reader or the server ended it.
func (w *watcher) end(ctx context.Context, err error) {
	var status apierrors.APIStatus
	if ctx.Err() == nil && errors.As(err, &status) {
		s := status.Status()
		w.send(ctx, apiwatch.Event{Type: apiwatch.Error, Object: &s})
	}
}

func (w *watcher) send(ctx context.Context, ev apiwatch.Event) bool {
	select {
	case w.result <- ev:
		return true
	case <-ctx.Done():
		return false
	}
}
