package process

import (
	"context"
	"errors"
	"io"
	"sync"
)

// MaxBufferedBytes is the number of unread bytes of a response at which Write blocks.
const MaxBufferedBytes = 256 << 10

// errBodyClosed is the error of Write after the client has closed the body.
var errBodyClosed = errors.New("loopback: the client closed the response body")

// stream is a response body with one writer, the handler, and one reader, the client.
type stream struct {
	mu sync.Mutex
	// changed is signalled when buffered, writeErr or abortErr changes.
	changed  *sync.Cond
	buffered []byte
	// writeErr is set when the handler has ended: io.EOF or the error.
	writeErr error
	// abortErr is set when the client does not read any more.
	abortErr error
	cancel   context.CancelCauseFunc
}

func newStream(cancel context.CancelCauseFunc) *stream {
	s := &stream{cancel: cancel}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Write appends p to the buffer. It blocks while MaxBufferedBytes or more are unread.
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
		// Release the memory: a watch lives long and is idle most of the time.
		s.buffered = nil
	}
	s.changed.Broadcast()
	return n, nil
}

// Close implements io.Closer for the client. It ends the handler's context.
func (s *stream) Close() error {
	s.abort(errBodyClosed)
	s.cancel(errBodyClosed)
	return nil
}

// finish ends the body with err, or with io.EOF if err is nil.
func (s *stream) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	s.writeErr = err
	s.changed.Broadcast()
}

// abort makes Read and Write fail with err.
func (s *stream) abort(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abortErr == nil {
		s.abortErr = err
	}
	s.changed.Broadcast()
}
