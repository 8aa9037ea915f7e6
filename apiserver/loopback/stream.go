package loopback

import (
	"context"
	"errors"
	"io"
	"sync"
)

// MaxBufferedBytes is how many bytes of a response may wait for the client.
const MaxBufferedBytes = 256 << 10

// errBodyClosed is what a handler's write meets after the client closed the body.
var errBodyClosed = errors.New("loopback: the client closed the response body")

// stream carries a body from one writer to one reader.
type stream struct {
	mu sync.Mutex
	// changed is signalled when waiting, ended or broken changes.
	changed  *sync.Cond
	buffered []byte
	// writeErr is set when the writer is through: io.EOF, or what went wrong.
	writeErr error
	// abortErr is set when nobody reads any more.
	abortErr error
	cancel   context.CancelCauseFunc
}

func newStream(cancel context.CancelCauseFunc) *stream {
	s := &stream{cancel: cancel}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Write hands p to the reader; it waits while Window bytes are unread.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.buffered) >= MaxBufferedBytes && s.abortErr == nil {
		s.changed.Wait()
	}
	if s.abortErr != nil {
		return 0, s.abortErr
	}
	s.buffered = append(s.buffered, p...)
	s.changed.Broadcast()
	return len(p), nil
}

// Read implements io.Reader for the client.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.buffered) == 0 && s.writeErr == nil && s.abortErr == nil {
		s.changed.Wait()
	}
	switch {
	case s.abortErr != nil:
		return 0, s.abortErr
	case len(s.buffered) == 0:
		return 0, s.writeErr
	}
	n := copy(p, s.buffered)
	s.buffered = s.buffered[n:]
	if len(s.buffered) == 0 {
		// A watch lives long: let go of the memory of its largest moment.
		s.buffered = nil
	}
	s.changed.Broadcast()
	return n, nil
}

// Close implements io.Closer for the client: the handler's context ends.
func (s *stream) Close() error {
	s.abort(errBodyClosed)
	s.cancel(errBodyClosed)
	return nil
}

// finish is called by the writer's side at its end.
func (s *stream) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	s.writeErr = err
	s.changed.Broadcast()
}

// abort ends both sides at once.
func (s *stream) abort(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abortErr == nil {
		s.abortErr = err
	}
	s.changed.Broadcast()
}
