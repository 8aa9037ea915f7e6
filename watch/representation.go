package watch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/utils/buffer"
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
	// text is the form in which the cache holds Body; nil means that it holds Body itself.
	text *text
}

// open returns the representation with its Body, as Get does.
func (r *Representation) open(buffer *[]byte) *Representation {
	if r.text == nil || !r.text.isCompressed() {
		return r
	}
	opened := *r
	if buffer == nil {
		opened.Body = r.text.bytes(nil)
	} else {
		*buffer = r.text.bytes(*buffer)
		opened.Body = *buffer
	}
	return &opened
}

// asText returns Body as it is held.
func (r *Representation) asText() *text {
	if r.text != nil {
		return r.text
	}
	return newText(r.Body)
}

// in returns the representation as it is held when its Body is held as a text.
func (r *Representation) in(t *text) *Representation {
	held := *r
	if held.text, held.Body = t, nil; !t.isCompressed() {
		held.Body = t.held
	}
	return &held
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
	// queued is what the cache's queue counts for this node; nil if it is not in the queue. The cache's mu guards it.
	queued *int64
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

// Get returns a representation that is in memory, or nil. Unless buffer is nil, a Body that is held compressed is
// written to buffer, which grows: its next use overwrites it.
func (c *Representations) Get(s *RepresentationSet, format *Format, buffer *[]byte) *Representation {
	if n := s.find(format); n != nil {
		if r := c.current(n); r != nil {
			c.hits.Add(1)
			n.markUsed()
			return r.open(buffer)
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

// share makes another form of the record's value that of the representations that share it.
func (s *RepresentationSet) share(v *text) {
	for n := s.first.Load(); n != nil; n = n.next {
		if r := n.value.Load(); r != nil && r.Shared && r.text != v {
			n.value.CompareAndSwap(r, r.in(v))
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

// Marks returns the marks of a representation that is in memory; zeros if it is not.
func (s *RepresentationSet) Marks(format *Format) (marks [4]int32) {
	if n := s.find(format); n != nil {
		if r := n.value.Load(); r != nil {
			marks = r.Marks
		}
	}
	return marks
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
func (c *Representations) GetOrMake(
	ctx context.Context, s *RepresentationSet, format *Format, produce MakeRepresentation,
) (*Representation, error) {
	return c.getOrMake(ctx, s, format, produce, true)
}

// Scan is GetOrMake for a reader of many records. At a full budget the cache keeps only a few of
// the representations that Scan makes. Otherwise a list that is larger than the budget would evict
// what other readers use, and its own representations before the next list reads them.
func (c *Representations) Scan(
	ctx context.Context, s *RepresentationSet, format *Format, produce MakeRepresentation,
) (*Representation, error) {
	return c.getOrMake(ctx, s, format, produce, false)
}

func (c *Representations) getOrMake(
	ctx context.Context, s *RepresentationSet, format *Format, produce MakeRepresentation, keep bool,
) (*Representation, error) {
	n := s.node(format)
	for {
		r, done, mine := c.begin(n)
		switch {
		case r != nil:
			c.hits.Add(1)
			n.markUsed()
			return r.open(nil), nil
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

func (c *Representations) fill(
	ctx context.Context, n *node, produce MakeRepresentation, keep bool,
) (*Representation, error) {
	defer n.end() // also when produce panics
	c.misses.Add(1)
	made, err := produce(ctx)
	if err != nil {
		return nil, err
	}
	n.size.Store(int64(len(made.Body)))
	switch {
	case made.Shared:
		n.value.Store(made.in(made.text))
	case keep || c.admits(len(made.Body)):
		c.add(n, &made)
	}
	return &made, nil
}

const (
	// DefaultRepresentationBytes is the default budget in bytes.
	DefaultRepresentationBytes = 64 << 20
	// overhead is about the memory of a representation without its body, in bytes.
	overhead = 220
	// laps bounds how many representations evict passes over because they were used.
	laps = 16
	// scanFraction is the divisor of the representations that scans make at a full budget:
	// the cache keeps one in scanFraction (bimodal insertion: Qureshi et al., Adaptive
	// Insertion Policies for High Performance Caching, 2007).
	scanFraction = 64
	// sweepFraction is a divisor of the budget: a full cache sweeps each time when that
	// part of the budget was added.
	sweepFraction = 4
)

// Representations holds representations within a budget. Its methods are safe for concurrent use.
//
// What upstream does: its watch cache encodes an event once for all watchers of an encoding,
// and each list encodes every object again.
//
// What is done instead: a record holds its representations (Set), for lists and watches alike,
// and the cache holds weak pointers to them. A record that is replaced is freed with its
// representations; nothing has to remove them from the cache.
//
// What it relies on: weak.Pointer.Value returns nil once the record is freed.
// TestCache_WhatBelongsToGoneRecordsDoesNotCount fails when the cache keeps records alive.
//
// What it earns: a list of 1,000 Pods in memory takes a twentieth of the time in protobuf, and
// a tenth as a table (BenchmarkLists in apiserver/handlers).
type Representations struct {
	budget int64
	// start is where Instants begin.
	start time.Time

	hits, misses, evicted atomic.Int64
	// scanned counts the representations that scans made at a full budget.
	scanned atomic.Int64

	mu sync.Mutex
	// queue has every representation in memory except the shared ones. Invariant: it has
	// only weak pointers to them, so that a representation is freed with its record, and
	// the cache does not keep replaced records in memory.
	queue buffer.TypedRingGrowing[cached]
	// bytes is the sum of the sizes in the queue, and of the dictionaries of what is compressed. added is the sum of
	// the sizes that were added since the last sweep, or refused by admits.
	bytes, added int64
	// dictionaries is how many bytes the dictionaries took after the last pass of Feed.compress.
	dictionaries int64
	// grown is called with the size of what was added, with mu held; nil: nothing is.
	grown func(bytes int)
}

// NewRepresentations makes a Cache with a budget in bytes; 0 means DefaultBytes.
func NewRepresentations(budget int64) *Representations {
	if budget <= 0 {
		budget = DefaultRepresentationBytes
	}
	return &Representations{budget: budget, start: time.Now()}
}

// Register registers the byre_representation_* metrics.
func (c *Representations) Register(r prometheus.Registerer) {
	f := promauto.With(r)
	counter := func(name, help string, n *atomic.Int64) {
		f.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(n.Load()) })
	}
	counter("byre_representation_hits_total",
		"Representations of objects (protobuf, another version, metadata alone) that were found in memory.", &c.hits)
	counter("byre_representation_misses_total", "Representations of objects that had to be made.", &c.misses)
	counter("byre_representation_evictions_total",
		"Representations of objects that left memory, to keep the budget or because nobody had read them for minutes.",
		&c.evicted)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "byre_representation_cache_bytes",
		Help: "Bytes of representations of objects in memory, including those of objects that are gone and not yet noticed to be.",
	}, func() float64 { return float64(c.Bytes()) })
}

// Bytes returns the size of the representations in memory. Representations whose records were
// freed count until the next sweep.
func (c *Representations) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// admits reports whether the cache keeps a representation that a scan has made. A refused one
// counts as added, so that scans lead to sweeps too. Otherwise representations of freed records
// would take the place of those that scans make.
func (c *Representations) admits(size int) bool {
	bytes := int64(size) + overhead
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes+bytes <= c.budget {
		return true
	}
	if c.added += bytes; c.added > c.budget/sweepFraction {
		c.sweep()
	}
	return c.bytes+bytes <= c.budget || c.scanned.Add(1)%scanFraction == 0
}

// add sets a representation and counts it, and evicts others until the budget is met.
func (c *Representations) add(n *node, r *Representation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.value.Store(r)
	bytes := int64(len(r.Body)) + overhead
	if n.queued != nil { // it has expired
		c.resize(n, bytes)
		return
	}
	c.bytes += bytes
	c.added += bytes
	if c.bytes > c.budget && c.added > c.budget/sweepFraction {
		c.sweep()
	}
	n.queued = &bytes
	c.queue.WriteOne(cached{weak.Make(n), &bytes})
	c.evict()
	if c.grown != nil {
		c.grown(len(r.Body))
	}
}

// resize changes what the queue counts for a node.
func (c *Representations) resize(n *node, bytes int64) {
	c.bytes += bytes - *n.queued
	*n.queued = bytes
}

// replace holds a representation in another form, if it is still there.
func (c *Representations) replace(n *node, r *Representation, t *text) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.queued != nil && n.value.CompareAndSwap(r, r.in(t)) {
		c.resize(n, int64(len(t.held))+overhead)
	}
}

// setDictionaries counts the dictionaries in use.
func (c *Representations) setDictionaries(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += int64(bytes) - c.dictionaries
	c.dictionaries = int64(bytes)
	c.evict()
}

// evict drops representations until the budget is met: the oldest ones first, except those
// that were used since evict passed over them last.
func (c *Representations) evict() {
	for seen := 0; c.bytes > c.budget && c.queue.Len() > 0; seen++ {
		item, _ := c.queue.ReadOne()
		if n := item.node.Value(); n != nil && n.used.Swap(false) && seen < laps {
			c.queue.WriteOne(item)
		} else {
			c.drop(item, n)
		}
	}
}

// DropUnused drops the representations that nobody has read since the last call.
func (c *Representations) DropUnused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range c.queue.Len() {
		item, _ := c.queue.ReadOne()
		if n := item.node.Value(); n != nil && n.used.Swap(false) {
			c.queue.WriteOne(item)
		} else {
			c.drop(item, n)
		}
	}
	c.added = 0
}

// drop removes a representation that is no longer in the queue; n is nil if its record was freed.
func (c *Representations) drop(item cached, n *node) {
	c.bytes -= *item.bytes
	if n != nil {
		n.queued = nil
		n.value.Store(nil)
		c.evicted.Add(1)
	}
}

// sweep removes the representations whose records were freed.
func (c *Representations) sweep() {
	for range c.queue.Len() {
		if item, _ := c.queue.ReadOne(); item.node.Value() != nil {
			c.queue.WriteOne(item)
		} else {
			c.bytes -= *item.bytes
		}
	}
	c.added = 0
}

// cached is a representation in the queue, with its size.
type cached struct {
	node  weak.Pointer[node]
	bytes *int64 // node.queued
}
