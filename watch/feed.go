package watch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"byre/sqlstore"
)

var (
	// ErrCompacted: the changes after the revision asked for are not in the
	// store's history any more, or the store was restored meanwhile.
	ErrCompacted = sqlstore.ErrCompacted
	// ErrClosed: the feed has stopped.
	ErrClosed = errors.New("feed is closed")
)

// Source is the part of a sqlstore.Driver that the feed reads.
type Source interface {
	List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error)
	Changes(ctx context.Context, after int64, limit, size int) ([]sqlstore.Change, error)
	State(ctx context.Context) (sqlstore.State, error)
	Usage(ctx context.Context) (sqlstore.Usage, error)
}

// Listener is a Source that can say that there are new changes
// (sqlstore.Notifier). Listen blocks until ctx ends or the connection breaks. A
// hint may be late, lost or wrong; 0 says that hints may have been lost.
type Listener interface {
	Listen(ctx context.Context, hint func(revision int64)) error
}

// Options tune a Feed; the zero value is right for a shared database.
type Options struct {
	// SoleWriter says that no other process writes to the database, so that
	// everything comes by Publish, nothing is polled and Latest is free.
	SoleWriter bool
	// Interval bounds how late a change of another process is seen where no
	// hint comes; 0 means a second.
	Interval time.Duration
	// RingEvents and RingBytes bound the events kept in memory for each
	// resource, by number and by the bytes of replaced values; 0 means 4,096
	// and 8 MiB.
	RingEvents int
	RingBytes  int
	// StateBytes is how many bytes of values may stay in memory for resources
	// that nobody watches; 0 means any number. Above it those leave first that
	// were not read for longest. (Those not read for ten minutes leave anyway.)
	StateBytes int
	// Logger gets alarms and outages; nil means slog.Default().
	Logger *slog.Logger
	// Registerer takes the byre_watch_* metrics; nil means that they aren't
	// registered.
	Registerer prometheus.Registerer
}

const (
	defaultInterval   = time.Second
	defaultRingEvents = 4096
	defaultRingBytes  = 8 << 20

	// pageChanges and pageBytes bound the changes that are read from the store
	// at a time, by number and by the bytes of their values.
	pageChanges = 256
	pageBytes   = 2 << 20
	// maxPending bounds what is kept of changes that came before the ones
	// they follow; what is dropped is read from the store.
	maxPending = 4096
)

// Feed follows one store. Its methods are safe for concurrent use.
type Feed struct {
	source  Source
	opts    Options
	metrics metrics

	// kick wakes the tail, wake the goroutine of wakeWatchers; each has room for one.
	kick chan struct{}
	wake chan struct{}
	// started is closed when the first revision is known, done when Run is
	// about to return.
	started chan struct{}
	done    chan struct{}
	// running is the context of Run; set before started is closed.
	running context.Context
	group   sync.WaitGroup

	latest readIndex
	// clockAhead is that of ClockAhead, in nanoseconds.
	clockAhead atomic.Int64
	history    history

	mu sync.RWMutex
	// begun is true when revision is known.
	begun    bool
	revision int64
	// compacted and epoch are the store's, as last seen.
	compacted int64
	epoch     string
	// adopted is closed, and replaced, when the feed has started again.
	adopted chan struct{}
	closed  bool
	caches  map[Resource]*resourceCache
	// pending are published changes that wait for the ones before them,
	// ascending. Invariant: the first is later than revision+1.
	pending []prepared
	// target is the highest revision that is said to exist.
	target int64
	// ask is true when nobody can say what exists, and the store is to be asked.
	ask bool
	// dirty are the resource caches with events that their watchers don't know of.
	dirty map[*resourceCache]struct{}
	// usages are running counts of what is stored.
	usages usages
	// waits are the callers of WaitFor.
	waits []revisionWait
}

type revisionWait struct {
	revision int64
	reached  chan struct{}
}

// New makes a Feed; it starts nothing.
func New(source Source, opts Options) *Feed {
	if opts.Interval <= 0 {
		opts.Interval = defaultInterval
	}
	if opts.RingEvents <= 0 {
		opts.RingEvents = defaultRingEvents
	}
	if opts.RingBytes <= 0 {
		opts.RingBytes = defaultRingBytes
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	f := &Feed{
		source:  source,
		opts:    opts,
		kick:    make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		started: make(chan struct{}),
		adopted: make(chan struct{}),
		done:    make(chan struct{}),
		caches:  map[Resource]*resourceCache{},
		dirty:   map[*resourceCache]struct{}{},
		usages:  newUsages(),
	}
	f.history.forget()
	f.metrics = newMetrics(opts.Registerer, f)
	return f
}

// Forget gives back what is kept of a resource: its records, events and indexes.
// Who reads it again loads it again; subscriptions end with ErrCompacted.
func (f *Feed) Forget(r Resource) {
	f.mu.Lock()
	h := f.caches[r]
	if h != nil {
		f.dropLocked(h)
	}
	f.mu.Unlock()
	if h != nil {
		signal(f.wake)
	}
}

// Publish is told of changes that this process committed, in revision order.
// It does not block. It is meant for sqlstore.Options.Publish.
func (f *Feed) Publish(changes []sqlstore.Change) {
	batch := f.prepare(changes)
	f.mu.Lock()
	for _, p := range batch {
		switch {
		case p.Revision <= f.revision:
			// The tail was faster.
		case f.begun && len(f.pending) == 0 && p.Revision == f.revision+1:
			f.applyLocked(p)
		case len(f.pending) < maxPending:
			f.pending = append(f.pending, p)
		}
		f.target = max(f.target, p.Revision)
	}
	f.drainLocked()
	behind := f.target > f.revision
	dirty := len(f.dirty) > 0
	f.mu.Unlock()
	if behind {
		signal(f.kick)
	}
	if dirty {
		signal(f.wake)
	}
}

// prepare makes the entries, with the values that they are found by, so that it
// need not be done under the lock.
func (f *Feed) prepare(changes []sqlstore.Change) []prepared {
	batch := make([]prepared, len(changes))
	for i, c := range changes {
		batch[i] = prepared{Change: c}
		if c.Op != sqlstore.Delete {
			batch[i].entry = entryOf(c)
		}
	}
	for _, v := range f.unvalued(batch) {
		v.index.of(v.entry)
	}
	return batch
}

// unvalued is an entry that an index in use is going to ask about.
type unvalued struct {
	index *Index
	entry *Entry
}

// unvalued returns the entries of a batch, and those that they replace, for each
// index in use.
func (f *Feed) unvalued(batch []prepared) (all []unvalued) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var h *resourceCache
	var indexes []*Index
	for i := range batch {
		k := batch[i].New.Key
		if r := resourceOf(k); h == nil || h.resource != r {
			if h = f.caches[r]; h == nil || !h.loaded {
				h = nil
				continue
			}
			indexes = h.inUse()
		}
		if len(indexes) == 0 {
			continue
		}
		old, _ := h.tree.Get(probe(k.Namespace, k.Name))
		for _, index := range indexes {
			for _, e := range []*Entry{batch[i].entry, old} {
				if e != nil {
					all = append(all, unvalued{index, e})
				}
			}
		}
	}
	return all
}

// drainLocked applies what is pending and due.
func (f *Feed) drainLocked() {
	for f.begun && len(f.pending) > 0 && f.pending[0].Revision <= f.revision+1 {
		p := f.pending[0]
		f.pending = f.pending[1:]
		if p.Revision == f.revision+1 {
			f.applyLocked(p)
		}
	}
	if len(f.pending) == 0 {
		f.pending = nil
	}
}

// applyLocked applies the change after the last one.
func (f *Feed) applyLocked(p prepared) {
	f.revision = p.Revision
	f.metrics.applied.Inc()
	f.usages.apply(p)
	if h := f.caches[resourceOf(p.New.Key)]; h != nil {
		if p.entry != nil {
			h.intern(p.entry)
		}
		if !h.apply(p) {
			f.opts.Logger.Error("watch: a change does not fit the state it changes; reading the resource again",
				"revision", p.Revision, "op", p.Op, "key", p.New.Key)
			f.dropLocked(h)
		}
		if h.watchers.number.Load() > 0 {
			f.dirty[h] = struct{}{}
		}
	}
	f.reachedLocked()
}

func (f *Feed) reachedLocked() {
	kept := f.waits[:0]
	for _, w := range f.waits {
		if w.revision <= f.revision {
			close(w.reached)
		} else {
			kept = append(kept, w)
		}
	}
	clear(f.waits[len(kept):])
	f.waits = kept
}

// dropLocked forgets a resource's state; who reads it again loads it again.
func (f *Feed) dropLocked(h *resourceCache) {
	h.gone = true
	delete(f.caches, h.resource)
	f.dirty[h] = struct{}{}
}

// Revision is the last revision applied; 0 before Run has read the first.
func (f *Feed) Revision() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.revision
}

// Compacted is the last revision whose history is gone, as last seen. It may
// be older than what the database says now.
func (f *Feed) Compacted() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.compacted
}

// WaitFor waits until the feed has applied revision. It returns the context's
// error when that does not happen in time.
func (f *Feed) WaitFor(ctx context.Context, revision int64) error {
	if err := f.wait(ctx, f.started); err != nil {
		return err
	}
	f.mu.RLock()
	reached := f.revision >= revision
	f.mu.RUnlock()
	if reached {
		return nil
	}
	f.mu.Lock()
	if f.revision >= revision {
		f.mu.Unlock()
		return nil
	}
	w := revisionWait{revision, make(chan struct{})}
	f.waits = append(f.waits, w)
	if !f.opts.SoleWriter {
		f.target = max(f.target, revision)
		signal(f.kick)
	}
	f.mu.Unlock()
	err := f.wait(ctx, w.reached)
	if err != nil {
		f.abandon(w)
	}
	return err
}

// Observe is told of a revision that was read from the store directly. It
// returns when nothing that is read from the feed afterwards can be older,
// where that is not for Latest to see to.
func (f *Feed) Observe(ctx context.Context, revision int64) error {
	if !f.opts.SoleWriter {
		return nil
	}
	return f.WaitFor(ctx, revision)
}

func (f *Feed) abandon(gone revisionWait) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, w := range f.waits {
		if w.reached == gone.reached {
			f.waits = append(f.waits[:i], f.waits[i+1:]...)
			return
		}
	}
}

// wait waits for c to be closed.
func (f *Feed) wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	default:
	}
	select {
	case <-c:
		return nil
	case <-f.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
