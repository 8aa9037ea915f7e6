// Package representation caches the formats in which clients get records: JSON of another
// version, protobuf, metadata alone.
//
// # What is promised
//
//   - A representation is made once for all concurrent callers, and again only after it
//     was evicted. A scan (Cache.Scan) of more than fits may make it again.
//   - The bodies of all representations together stay within one budget. The cache evicts
//     those first that nobody has read recently, and DropUnused drops those that nobody
//     reads. Those of freed records count until the next sweep.
//
// # What the caller owes
//
// The representations of a record in one Format always have the same bytes, except those that
// expire. Nobody writes to a Representation.
package watch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Format is one way to show records. Its identity is its address.
type Format struct {
	// Name identifies the format in logs and tests.
	Name string
}

// Representation is a record in one Format.
type Representation struct {
	Body []byte
	// Marks are offsets in Body, whose meaning the Make of the format defines.
	Marks [4]int32
	// Shared says that Body is a part of the record itself. It does not count toward the
	// budget and is not evicted.
	Shared bool
	// Expires is when the cache makes the representation again; see Cache.After. 0 means
	// never.
	Expires Instant
}

// Instant is a time, in seconds since a Cache was made. It takes no more memory than the
// padding of a Representation.
type Instant uint32

// RepresentationSet has the representations of one record. The zero value is empty. It must not be copied after
// its first use.
type RepresentationSet struct{ first atomic.Pointer[node] }

// node holds the representation of one Format in a Set. The node stays when the
// representation is evicted.
type node struct {
	format *Format
	next   *node
	// number is how many nodes come after it.
	number int32
	// queued is the sum of the sizes in the cache's queue that are of this node. The cache's
	// mu guards it.
	queued int32
	value  atomic.Pointer[Representation]
	// size is the length of the last body that was made; 0 before the first.
	size atomic.Int64
	// used is set when the representation is read, and cleared by evict.
	used atomic.Bool

	mu sync.Mutex
	// done is closed when the representation that is being made is ready or has failed; nil
	// while none is being made.
	done chan struct{}
}

// find returns the node of a format; nil when there is none.
func (s *RepresentationSet) find(format *Format) *node {
	for n := s.first.Load(); n != nil; n = n.next {
		if n.format == format {
			return n
		}
	}
	return nil
}

// maxForms bounds the formats of one record. A record may outlive many formats, because each change of
// a CustomResourceDefinition makes new ones.
const maxForms = 16

// node returns the node of a format, and adds it if there is none. If there are too many
// nodes it removes the others.
func (s *RepresentationSet) node(format *Format) *node {
	for {
		if n := s.find(format); n != nil {
			return n
		}
		first := s.first.Load()
		n := &node{format: format, next: first}
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
func (c *Representations) Get(s *RepresentationSet, format *Format) *Representation {
	if n := s.find(format); n != nil {
		if r := c.current(n); r != nil {
			c.hits.Add(1)
			n.markUsed()
			return r
		}
	}
	return nil
}

// current returns the representation of a node if it is in memory and has not expired.
func (c *Representations) current(n *node) *Representation {
	r := n.value.Load()
	if r == nil || r.Expires > 0 && c.After(0) >= r.Expires {
		return nil
	}
	return r
}

// After returns when a time from now will have passed.
func (c *Representations) After(d time.Duration) Instant {
	return Instant((time.Since(c.start) + d) / time.Second)
}

// DropShared removes the representations that are a part of the record.
func (s *RepresentationSet) DropShared() {
	for n := s.first.Load(); n != nil; n = n.next {
		if r := n.value.Load(); r != nil && r.Shared {
			n.value.CompareAndSwap(r, nil)
		}
	}
}

// Clear removes all representations.
func (s *RepresentationSet) Clear() { s.first.Store(nil) }

// Size returns the length of a representation's body, even if it was evicted; 0 if it was never
// made.
func (s *RepresentationSet) Size(format *Format) int {
	if n := s.find(format); n != nil {
		return int(n.size.Load())
	}
	return 0
}

func (n *node) markUsed() {
	if !n.used.Load() { // a load first, so that readers do not contend for the cache line
		n.used.Store(true)
	}
}

// begin returns the current representation if there is one. Otherwise it returns a channel that is
// closed when the representation is made or has failed; mine is true if the caller must make it
// and then call end.
func (c *Representations) begin(n *node) (r *Representation, done chan struct{}, mine bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r = c.current(n); r != nil {
		return r, nil, false
	}
	if n.done != nil {
		return nil, n.done, false
	}
	n.done = make(chan struct{})
	return nil, n.done, true
}

// end wakes the callers that wait for the representation.
func (n *node) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.done)
	n.done = nil
}

// MakeRepresentation makes a representation.
type MakeRepresentation func(context.Context) (Representation, error)

// GetOrMake returns a representation, and makes it if it is not in memory. Concurrent callers wait
// for the one that makes it; if that fails, the next of them tries. It fails with the error of
// produce, and with the context's error.
func (c *Representations) GetOrMake(ctx context.Context, s *RepresentationSet, format *Format, produce MakeRepresentation) (*Representation, error) {
	return c.getOrMake(ctx, s, format, produce, true)
}

// Scan is GetOrMake for a reader of many records. At a full budget the cache keeps only a few of
// the representations that Scan makes. Otherwise a list that is larger than the budget would evict
// what other readers use, and its own representations before the next list reads them.
func (c *Representations) Scan(ctx context.Context, s *RepresentationSet, format *Format, produce MakeRepresentation) (*Representation, error) {
	return c.getOrMake(ctx, s, format, produce, false)
}

func (c *Representations) getOrMake(ctx context.Context, s *RepresentationSet, format *Format, produce MakeRepresentation, keep bool) (*Representation, error) {
	n := s.node(format)
	for {
		r, done, mine := c.begin(n)
		switch {
		case r != nil:
			c.hits.Add(1)
			n.markUsed()
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

func (c *Representations) fill(ctx context.Context, n *node, produce MakeRepresentation, keep bool) (*Representation, error) {
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
