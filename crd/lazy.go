package crd

import (
	"sync"
	"sync/atomic"
)

// lazy is a value that is made when it is first needed, kept while it is being
// used, and made again when it is needed again. An error is not kept.
type lazy[T any] struct {
	make func() (T, error)

	made atomic.Pointer[T]
	used atomic.Bool
	mu   sync.Mutex
}

func newLazy[T any](make func() (T, error)) *lazy[T] { return &lazy[T]{make: make} }

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

// release gives up a value that was not used since the last release.
func (l *lazy[T]) release() {
	if !l.used.Swap(false) {
		l.made.Store(nil)
	}
}
