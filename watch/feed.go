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
	"byre/watch/representation"
)

var (
	// ErrCompacted means that the store's history no longer has the changes after the
	// requested revision, or that the store was restored meanwhile.
	ErrCompacted = sqlstore.ErrCompacted
	// ErrClosed means that the feed has stopped.
	ErrClosed = errors.New("feed is closed")
)

// Source is the part of a sqlstore.Driver that the feed reads. A Source that is a
// sqlstore.ReadIndexer too has no other writer than this process: nothing is polled,
// and Latest costs no round trip.
type Source interface {
	List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error)
	Changes(ctx context.Context, after int64, limit, size int) ([]sqlstore.Change, error)
	State(ctx context.Context) (sqlstore.State, error)
	Usage(ctx context.Context) (sqlstore.Usage, error)
}

// Options tune a Feed; the zero value is right for every database.
type Options struct {
	// Interval is how often the store is polled, which bounds how late a change of
	// another process is seen when no hint comes; 0 means a second.
	Interval time.Duration
	// RingEvents and RingBytes bound the events kept in memory for each
	// resource, by number and by the bytes of replaced values; 0 means 4,096
	// and 8 MiB.
	RingEvents int
	RingBytes  int
	// StateBytes is how many bytes of values may stay in memory for resources
	// that nobody watches; 0 means any number. Above it the resource that was not
	// read for longest leaves first. (One not read for ten minutes leaves anyway.)
	StateBytes int
	// RepresentationBytes bounds the representations of records (representation.Cache); 0
	// means representation.DefaultBytes.
	RepresentationBytes int64
	// Logger logs alarms and outages; nil means slog.Default().
	Logger *slog.Logger
	// Registerer registers the byre_watch_* metrics; nil means that they are not
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
	// maxPending bounds the events that wait for earlier ones. The feed drops further
	// events and reads them from the store later.
	maxPending = 4096
)

// Feed follows one store. Its methods are safe for concurrent use.
type Feed struct {
	source    Source
	readIndex readIndex
	opts      Options
	metrics   metrics
	// representations are those of all records, of the feed and of the database.
	representations *representation.Cache

	// behind receives when the store may have changes that the feed lacks; the tail
	// reads them. eventsAdded receives when resource caches are dirty; wakeWatchers
	// wakes their watchers. Each holds one token at most: a second event before the
	// first is handled needs no handling of its own.
	behind      chan struct{}
	eventsAdded chan struct{}
	// started is closed when the first revision is known, done when Run is
	// about to return.
	started chan struct{}
	done    chan struct{}
	// running is the context of Run. Invariant: it is set before started is closed,
	// and not written afterwards.
	running context.Context
	group   sync.WaitGroup
	// wakeInterval is defaultWakeInterval, except in benchmarks.
	wakeInterval time.Duration

	// clockAhead is the value of ClockAhead, in nanoseconds.
	clockAhead atomic.Int64
	history    history

	mu sync.RWMutex
	// begun is true when revision is known.
	begun bool
	// revision is the last revision applied. Invariant: within an adoption it rises
	// by one with each event applied, so that no event is missed or applied twice.
	revision int64
	// compacted is the store's compacted revision, as last seen.
	compacted int64
	// adopted is the state of the store that the feed goes on from.
	adopted *adoption
	closed  bool
	caches  map[Resource]*resourceCache
	// pending are published events that wait for the ones before them, ascending.
	// Invariant: the first is later than revision+1.
	pending []Event
	// target is the highest revision that is said to exist. While it is greater
	// than revision, the tail reads changes from the store.
	target int64
	// pollRequested is true when a hint may have been lost: the tail then asks the
	// store for its state.
	pollRequested bool
	// dirty are the resource caches with events that their watchers were not yet
	// woken for.
	dirty map[*resourceCache]struct{}
	// usages are running counts of what is stored.
	usages usages
	// waits are the callers of awaitApplied. Invariant: each waits for a revision
	// greater than Feed.revision.
	waits []revisionWait
}

// adoption is one time that the feed took over the store's state: at its start, and
// after it lost the store's history. Revisions of two epochs can't be compared.
type adoption struct {
	epoch string
	// ended is closed when the feed adopts another state.
	ended chan struct{}
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
		source:       source,
		opts:         opts,
		behind:       make(chan struct{}, 1),
		eventsAdded:  make(chan struct{}, 1),
		started:      make(chan struct{}),
		done:         make(chan struct{}),
		adopted:      &adoption{ended: make(chan struct{})},
		caches:       map[Resource]*resourceCache{},
		dirty:        map[*resourceCache]struct{}{},
		usages:       newUsages(),
		wakeInterval: defaultWakeInterval,
	}
	f.readIndex = newReadIndex(f)
	f.history.forget()
	f.representations = representation.NewCache(opts.RepresentationBytes)
	f.metrics = newMetrics(opts.Registerer, f)
	return f
}

// Representations returns the cache of the representations of records.
func (f *Feed) Representations() *representation.Cache { return f.representations }

// Forget releases a resource's records, events and indexes. The next reader loads
// them again; subscriptions end with ErrCompacted.
func (f *Feed) Forget(r Resource) {
	f.mu.Lock()
	rc := f.caches[r]
	if rc != nil {
		f.dropLocked(rc)
	}
	f.mu.Unlock()
	if rc != nil {
		signal(f.eventsAdded)
	}
}

// dropLocked removes a resource cache. Its subscriptions end with ErrCompacted; the
// next reader of the resource makes and loads another cache.
func (f *Feed) dropLocked(rc *resourceCache) {
	rc.gone = true
	delete(f.caches, rc.resource)
	f.dirty[rc] = struct{}{}
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

// spawn runs a goroutine that Run joins; false when the feed is closed.
func (f *Feed) spawn(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.group.Go(do)
	return true
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

// signal leaves a token in c unless there is one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
