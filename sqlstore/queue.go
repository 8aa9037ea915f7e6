package sqlstore

import (
	"errors"
	"slices"
	"sync"
)

// pending is a write in the queue or in its transaction. Its caller waits for done.
// change and err are set before done is closed, and not written afterwards.
type pending struct {
	write  Write
	done   chan struct{}
	change Change
	err    error
}

func (p *pending) finish(c Change, err error) {
	p.change, p.err = c, err
	close(p.done)
}

// current returns the revision at which the write has found its object, or to which it has moved it; 0 if that is not known.
func (p *pending) current() int64 {
	if conflict, ok := errors.AsType[*ConflictError](p.err); ok {
		return conflict.Current
	}
	if p.write.Op == Delete {
		return 0
	}
	return p.change.Revision
}

// queue holds the writes whose transaction has not begun, in order of arrival.
type queue struct {
	mu      sync.Mutex
	waiting []*pending
	closed  bool
	// arrived receives while there are writes in waiting that take has not seen. Its
	// capacity is 1.
	arrived chan struct{}
	// keys has the writes of the batch that take has made, until failConflicts, and required the keys
	// of their Requirements. They are fields so that take uses their memory again.
	keys     map[Key]*pending
	required map[Key]struct{}
}

func newQueue() *queue {
	return &queue{arrived: make(chan struct{}, 1), keys: make(map[Key]*pending), required: make(map[Key]struct{})}
}

// push appends a write. It returns false if the queue is closed.
func (q *queue) push(p *pending) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, p)
	q.signal()
	return true
}

// withdraw removes p from the queue. It returns false if p's transaction has begun.
func (q *queue) withdraw(p *pending) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, p)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// take moves the next writes for one transaction from the queue to batch: the oldest ones,
// up to a number of writes and a size of their values in bytes, at least one. The writes of
// a batch have different keys, and none writes what another requires: a write that does not
// fit stays in its place in the queue.
func (q *queue) take(batch []*pending, writes, size int) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.required)
	kept := q.waiting[:0]
	full := false
	for _, p := range q.waiting {
		if !full {
			full = len(batch) == writes || len(batch) > 0 && len(p.write.Value) > size
		}
		if full || !q.fits(&p.write) {
			kept = append(kept, p)
			continue
		}
		q.keys[p.write.Key] = p
		if p.write.Requires != nil {
			q.required[p.write.Requires.Key] = struct{}{}
		}
		size -= len(p.write.Value)
		batch = append(batch, p)
	}
	clear(q.waiting[len(kept):])
	q.waiting = kept
	if len(kept) > 0 {
		q.signal()
	}
	return batch
}

// failConflicts fails the writes that replace an earlier revision of an object than that at which the last batch has found
// or left it. In a transaction each of them would fail too, and only one a transaction, while their clients read the
// object and try again: writes of one object that come a little faster than that would never end.
func (q *queue) failConflicts() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(p *pending) bool {
		last := q.keys[p.write.Key]
		if last == nil || p.write.Op == Create || p.write.Replaces >= last.current() {
			return false
		}
		p.finish(Change{}, &ConflictError{Current: last.current()})
		return true
	})
	clear(q.keys) // so that their values can be freed
}

// fits reports whether take may add a write to its batch. PostgreSQL checks all preconditions
// of a batch against the state before it.
func (q *queue) fits(w *Write) bool {
	_, written := q.keys[w.Key]
	_, required := q.required[w.Key]
	if w.Requires != nil && !written {
		_, written = q.keys[w.Requires.Key]
	}
	return !written && !required
}

// close makes push refuse new writes, and returns the queued ones.
func (q *queue) close() []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	waiting := q.waiting
	q.waiting = nil
	return waiting
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

func (q *queue) signal() {
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}
