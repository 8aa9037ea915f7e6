// Package representation caches the forms in which records are shown to clients: JSON of
// another version, protobuf, metadata alone.
//
// # What is promised
//
//   - A representation is made once for all who ask for it at the same time, and again
//     only after it has left memory.
//   - The bytes of all representations stay within one budget. What nobody has asked for
//     since it was looked at last leaves first; what belongs to a record that is gone
//     does not count once that is noticed.
//
// # What the caller owes
//
// One Form always makes the same of the same record. Nobody writes to a Representation.
package representation

import (
	"context"
	"sync"
	"sync/atomic"
)

// Form is one way to show records. Its identity is its address.
type Form struct {
	// Name is for people.
	Name string
}

// Representation is a record in one Form.
type Representation struct {
	Body []byte
	// Marks are offsets in Body that whoever made it knows the meaning of.
	Marks [4]int32
	// Shared says that Body is part of the record itself: it costs nothing and stays.
	Shared bool
}

// Set has the representations of one record. The zero value is empty. It must not be
// copied once it is used.
type Set struct{ first atomic.Pointer[node] }

// node is the place of one Form in a Set. It stays when its representation leaves
// memory.
type node struct {
	form *Form
	next *node
	// number is how many nodes come after it.
	number int
	value  atomic.Pointer[Representation]
	// size is the length of the body when it was made last; 0 before.
	size atomic.Int64
	// used is set when the representation is asked for, and cleared by evict.
	used atomic.Bool

	mu sync.Mutex
	// done is closed when the representation that is being made is made; nil while
	// none is.
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

// node returns the node of a form. When there are too many others it forgets them.
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

// Clear forgets all representations.
func (s *Set) Clear() { s.first.Store(nil) }

// Size is the length of a representation's body, which need not be in memory any more; 0
// when it was never made.
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

// begin returns the representation if it is there; else a channel that is closed when it
// is made, and whether the caller is to make it.
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

// end is what begin's caller owes.
func (n *node) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.done)
	n.done = nil
}

// Make makes a representation.
type Make func(context.Context) (Representation, error)

// GetOrMake returns a representation, and makes it unless it is in memory. Callers that
// come while it is being made wait for it; when that fails, the next of them tries.
func (c *Cache) GetOrMake(ctx context.Context, s *Set, form *Form, produce Make) (*Representation, error) {
	return c.getOrMake(ctx, s, form, produce, true)
}

// Scan is GetOrMake for a reader of many records. When the budget is used up, most of what
// it makes is not kept: a list that is larger than the budget would else replace all that
// others use, and all of itself before it is asked for again.
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
