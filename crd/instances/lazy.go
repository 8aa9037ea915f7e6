package instances

import (
	"sync"
	"sync/atomic"
)

// lazy is a value that is made at its first use, dropped by release when it is no longer
// in use, and made again at its next use. An error is not kept.
type lazy[T any] struct {
	make func() (T, error)

	made atomic.Pointer[T]
	used atomic.Bool
	mu   sync.Mutex
}

func newLazy[T any](construct func() (T, error)) *lazy[T] { return &lazy[T]{make: construct} }

func (l *lazy[T]) get() (T, error) {
	if made := l.made.Load(); made != nil {
		if !l.used.Load() {
			l.used.Store(true)
		}
		return *made, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if made := l.made.Load(); made != nil {
		return *made, nil
	}
	value, err := l.make()
	if err != nil {
		return value, err
	}
	l.used.Store(true)
	l.made.Store(&value)
	return value, nil
}

// release drops a value that get has not returned since the last release.
func (l *lazy[T]) release() {
	if !l.used.Swap(false) {
		l.made.Store(nil)
	}
}
