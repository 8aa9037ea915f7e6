// Package representation caches the forms in which clients get records: JSON of another
// version, protobuf, metadata alone.
//
// # What is promised
//
//   - A representation is made once for all concurrent callers, and again only after it
//     was evicted.
//   - The bodies of all representations together stay within one budget. Those that nobody
//     has read recently are evicted first. Those of freed records stop to count at the next
//     sweep.
//
// # What the caller owes
//
// One Form always makes the same bytes of the same record. Nobody writes to a
// Representation.
package representation

import (
	"context"
	"sync"
	"sync/atomic"
)

// Form is one way to show records. Its identity is its address.
type Form struct {
	// Name identifies the form in logs and tests.
	Name string
}

// Representation is a record in one Form.
type Representation struct {
	Body []byte
	// Marks are offsets in Body. The function that made the representation defines them.
	Marks [4]int32
	// Shared reports whether Body is part of the record itself: it does not count, and is
	// not evicted.
	Shared bool
}

// Set has the representations of one record. The zero value is empty. It must not be
// copied once it is used.
type Set struct{ first atomic.Pointer[node] }

// node holds the representation of one Form in a Set. The node stays when the
// representation is evicted.
type node struct {
	form *Form
	next *node
	// number is how many nodes come after it.
	number int
	value  atomic.Pointer[Representation]
	// size is the length of the body that was made last; 0 before the first one.
	size atomic.Int64
	// used is set when the representation is read, and cleared by evict.
	used atomic.Bool

	mu sync.Mutex
	// done is closed when the representation that is being made is ready or has failed; nil
	// while none is being made.
	done chan struct{}
}

// find returns the node of a form; nil when there is none.
func (s *Set) find(form *Form) *node {
	for n := s.first.Load(); n != nil; n = n.next {
		if n.form == form {
			return n
		}
	}
	return nil
}

// maxForms bounds the forms of one record. Forms come and go with the definitions of
// custom resources, while a record may stay.
const maxForms = 16

// node returns the node of a form, and adds it if there is none. If there are too many
// nodes it removes the others.
func (s *Set) node(form *Form) *node {
	for {
		if n := s.find(form); n != nil {
			return n
		}
		first := s.first.Load()
		n := &node{form: form, next: first}
		if first != nil {
			if n.number = first.number + 1; n.number >= maxForms {
				n.number, n.next = 0, nil
			}
		}
		if s.first.CompareAndSwap(first, n) {
			return n
		}
	}
}

// Get returns a representation that is in memory, or nil.
func (c *Cache) Get(s *Set, form *Form) *Representation {
	if n := s.find(form); n != nil {
		if r := n.value.Load(); r != nil {
			c.hits.Add(1)
			n.use()
			return r
		}
	}
	return nil
}

// Clear removes all representations.
func (s *Set) Clear() { s.first.Store(nil) }

// Size is the length of a representation's body, which may have left memory; 0 if it was
// never made.
func (s *Set) Size(form *Form) int {
	if n := s.find(form); n != nil {
		return int(n.size.Load())
	}
	return 0
}

func (n *node) use() {
	if !n.used.Load() { // readers don't contend for it
		n.used.Store(true)
	}
}

// begin returns the representation if it is in memory. Otherwise it returns a channel that
// is closed when the representation is made, and whether the caller must make it.
func (n *node) begin() (r *Representation, done chan struct{}, mine bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r = n.value.Load(); r != nil {
		return r, nil, false
	}
	if n.done != nil {
		return nil, n.done, false
	}
	n.done = make(chan struct{})
	return nil, n.done, true
}

// end must be called by the caller that begin told to make the representation.
func (n *node) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.done)
	n.done = nil
}

// Make makes a representation.
type Make func(context.Context) (Representation, error)

// GetOrMake returns a representation, and makes it if it is not in memory. Concurrent
// callers wait for the one that makes it; if that fails, the next of them tries.
func (c *Cache) GetOrMake(ctx context.Context, s *Set, form *Form, produce Make) (*Representation, error) {
	return c.getOrMake(ctx, s, form, produce, true)
}

// Scan is GetOrMake for a reader of many records. At a full budget most of what it makes is
// not kept: otherwise a list larger than the budget would evict what other readers use, and
// each of its own representations before the next list reads it.
func (c *Cache) Scan(ctx context.Context, s *Set, form *Form, produce Make) (*Representation, error) {
	return c.getOrMake(ctx, s, form, produce, false)
}

func (c *Cache) getOrMake(ctx context.Context, s *Set, form *Form, produce Make, keep bool) (*Representation, error) {
	n := s.node(form)
	for {
		r, done, mine := n.begin()
		switch {
		case r != nil:
			c.hits.Add(1)
			n.use()
			return r, nil
		case mine:
			return c.fill(ctx, n, produce, keep)
		}
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *Cache) fill(ctx context.Context, n *node, produce Make, keep bool) (*Representation, error) {
	defer n.end() // also when produce panics
	c.misses.Add(1)
	made, err := produce(ctx)
	if err != nil {
		return nil, err
	}
	n.size.Store(int64(len(made.Body)))
	switch {
	case made.Shared:
		n.value.Store(&made)
	case keep || c.admits(len(made.Body)):
		n.value.Store(&made)
		c.add(n, len(made.Body))
	}
	return &made, nil
}
