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
	events, err := w.next(ctx)
	if errors.Is(err, watch.ErrClosed) {
		err = io.EOF
	}
	return events, err
}

func (w EncodedWatch) next(ctx context.Context) ([]EncodedEvent, error) {
	c := w.cursor
	if len(c.pending) == 0 {
		changes, err := c.next(ctx)
		if err != nil {
			return nil, err
		}
		c.pending = changes
	}
	events := make([]EncodedEvent, 0, len(c.pending))
	for size := 0; len(c.pending) > 0 && size < aheadBytes; { // what a client does not read holds no more
		ch := c.pending[0]
		obj, err := c.encodedChange(ctx, ch)
		if err != nil {
			if c.pending = nil; len(events) == 0 {
				return nil, c.watcherError(ctx, err)
			}
			c.nextError = err
			break
		}
		c.pending = c.pending[1:]
		events = append(events, EncodedEvent{ch.typ, obj})
		size += len(obj.Body())
	}
	return events, nil
}

func (c *cursor) encodedChange(ctx context.Context, ch change) (encoding.Encoded, error) {
	s, f := c.s.serializer, c.format
	if ch.typ == apiwatch.Bookmark {
		return s.Bookmark(ctx, f, ch.revision, ch.initialEnd)
	}
	represent := s.Represent
	if ch.initial {
		represent = s.RepresentItem
	}
	r, err := represent(ctx, ch.entry, f)
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

// EventStream implements apimachinery's watch.Interface for what sends its events in a goroutine.
type EventStream struct {
	cancel context.CancelFunc
	result chan apiwatch.Event
}

// resultBuffer is the number of events that the goroutine may be ahead of the reader.
// It saves a reader that keeps up some switches between goroutines. The events of a
// slow reader wait in the feed.
const resultBuffer = 16

// NewEventStream makes an EventStream, and the context that ends with it. The caller runs it.
func NewEventStream(ctx context.Context) (EventStream, context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	return EventStream{cancel, make(chan apiwatch.Event, resultBuffer)}, ctx
}

// Stop implements watch.Interface.
func (s EventStream) Stop() { s.cancel() }

// ResultChan implements watch.Interface.
func (s EventStream) ResultChan() <-chan apiwatch.Event { return s.result }

// Send sends an event. It fails if ctx ends before.
func (s EventStream) Send(ctx context.Context, event apiwatch.Event) error {
	select {
	case s.result <- event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run calls send with ctx, which NewEventStream has returned, and ends the watch with the error that send returns. It sends the
// error, unless the reader or the server has ended the watch.
func (s EventStream) Run(ctx context.Context, send func(context.Context) error) {
	defer close(s.result)
	defer s.cancel()
	err := send(ctx)
	var status apierrors.APIStatus
	if ctx.Err() == nil && errors.As(err, &status) {
		answer := status.Status()
		_ = s.Send(ctx, apiwatch.Event{Type: apiwatch.Error, Object: &answer}) // the context has ended
	}
}

// Watch implements storage.Interface.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	c, err := s.cursor(ctx, key, opts, nil)
	if err != nil {
		return nil, err
	}
	stream, ctx := NewEventStream(ctx)
	go stream.Run(ctx, func(ctx context.Context) error {
		defer c.close()
		for {
			changes, err := c.next(ctx)
			if err != nil {
				return err
			}
			for _, ch := range changes {
				obj, err := c.decodedChange(ctx, ch)
				if err != nil {
					return c.watcherError(ctx, err)
				}
				if err := stream.Send(ctx, apiwatch.Event{Type: ch.typ, Object: obj}); err != nil {
					return err
				}
			}
		}
	})
	return stream, nil
}
