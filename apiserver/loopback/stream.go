package loopback

import (
	"context"
	"errors"
	"io"
	"sync"
)

// Window is how many bytes of a response may wait for the client.
const Window = 256 << 10

// errBodyClosed is what a handler's write meets after the client closed the body.
var errBodyClosed = errors.New("loopback: the client closed the response body")

// stream carries a body from one writer to one reader.
type stream struct {
	mu sync.Mutex
	// changed is signalled when waiting, ended or broken changes.
	changed *sync.Cond
	waiting []byte
	// ended is set when the writer is through: io.EOF, or what went wrong.
	ended error
	// broken is set when nobody reads any more.
	broken error
	cancel context.CancelCauseFunc
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
	for len(s.waiting) >= Window && s.broken == nil {
		s.changed.Wait()
	}
	if s.broken != nil {
		return 0, s.broken
	}
	s.waiting = append(s.waiting, p...)
	s.changed.Broadcast()
	return len(p), nil
}

// Read implements io.Reader for the client.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) == 0 && s.ended == nil && s.broken == nil {
		s.changed.Wait()
	}
	switch {
	case s.broken != nil:
		return 0, s.broken
	case len(s.waiting) == 0:
		return 0, s.ended
	}
	n := copy(p, s.waiting)
	s.waiting = s.waiting[n:]
	if len(s.waiting) == 0 {
		// A watch lives long: let go of the memory of its largest moment.
		s.waiting = nil
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
	s.ended = err
	s.changed.Broadcast()
}

// abort ends both sides at once.
func (s *stream) abort(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
	s.changed.Broadcast()
}
