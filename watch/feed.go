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

// Source is the part of a sqlstore.Driver that the feed reads. If the Source is a
// sqlstore.Exclusive too, only this process writes to the store: the feed does not poll
// it, and Latest costs no round trip.
type Source interface {
	List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error)
	Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error)
	State(ctx context.Context) (sqlstore.State, error)
	Compacted(ctx context.Context, of sqlstore.Resource) (int64, error)
	Usage(ctx context.Context) (sqlstore.Usage, error)
}

// Options of a Feed. The zero value is right for every database.
type Options struct {
	// Interval is the time between two polls of the store; 0 means a second. It bounds the
	// delay of a change of another process for which no hint arrives.
	Interval time.Duration
	// RingEvents and RingBytes bound the events in memory for each resource, by number
	// and by the bytes of replaced values; 0 means 4,096 and 8 MiB.
	RingEvents int
	RingBytes  int
	// StateBytes is how many bytes of values may be in memory before the feed unloads
	// resources that nobody watches, those first that were not read for longest; 0 means
	// any number. A resource that was not read for ten minutes is unloaded in any case.
	StateBytes int
	// RepresentationBytes is the budget of the representations of records in bytes
	// (representation.Cache); 0 means representation.DefaultBytes.
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

	// pageChanges and pageBytes bound the changes of one read from the store, by number
	// and by the bytes of their values.
	pageChanges = 256
	pageBytes   = 2 << 20
	// maxPending bounds Feed.pending. The feed drops further events and reads them from
	// the store later.
	maxPending = 4096
)

// Feed follows one store. Its methods are safe for concurrent use.
type Feed struct {
	source    Source
	readIndex readIndex
	opts      Options
	metrics   metrics
	// representations has the representations of all records: those in memory, and those
	// that readers have read from the store.
	representations *representation.Cache

	// behind receives when the store may have changes that the feed lacks; the tail then
	// reads them. eventsAdded receives when resource caches are dirty; wakeWatchers then
	// wakes their watchers. The capacity of both is 1: a second signal before the first
	// is received would change nothing.
	behind      chan struct{}
	eventsAdded chan struct{}
	// started is closed when the feed has adopted the store's state for the first time,
	// done when Run is about to return.
	started chan struct{}
	done    chan struct{}
	// running is the context of Run. Run sets it before it closes started, and nobody
	// writes it afterwards.
	running context.Context
	group   sync.WaitGroup
	// wakeInterval is defaultWakeInterval, except in benchmarks.
	wakeInterval time.Duration

	// clockAhead is the value of ClockAhead, in nanoseconds.
	clockAhead atomic.Int64
	history    history

	mu sync.RWMutex
	// begun is true once the feed has adopted the store's state.
	begun bool
	// revision is the last revision applied. Invariant: within an adoption applyLocked
	// increments it by one for each event. Otherwise events would be missed or applied
	// twice.
	revision int64
	// compacted is the store's compacted revision, as the feed has last read it.
	compacted int64
	// adopted is the last adoption of the store's state.
	adopted *adoption
	closed  bool
	caches  map[sqlstore.Resource]*resourceCache
	// keptBytes is the sum of keptSnapshot.bytes.
	keptBytes int
	// pending has published events that wait for earlier ones, ascending. Invariant: the
	// revision of the first is greater than revision+1; applyPendingLocked keeps it.
	pending []Event
	// target is the highest revision of which a hint, a publication, a read or a client
	// has told. While it is greater than revision, the tail reads changes from the store.
	target int64
	// pollRequested is true when a hint may have been lost: the tail then reads the
	// store's state.
	pollRequested bool
	// dirty has the resource caches with events for which wakeWatchers has not woken
	// their watchers yet.
	dirty map[*resourceCache]struct{}
	// usages counts the objects and bytes of each resource.
	usages usages
	// waits has the calls of awaitApplied that wait. Invariant: each waits for a revision
	// greater than Feed.revision; endWaitsLocked ends the others.
	waits []revisionWait
}

// adoption is one time that the feed has taken over the store's state: at its start, and
// after each loss of the store's history. Revisions of two epochs can't be compared.
type adoption struct {
	epoch string
	// ended is closed when the feed adopts another state.
	ended chan struct{}
}

// New makes a Feed, which starts no goroutine before Run.
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
		caches:       map[sqlstore.Resource]*resourceCache{},
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

// Forget removes the records, events and indexes of a resource from memory. Subscriptions of
// the resource end with ErrCompacted. The next reader loads the records again.
func (f *Feed) Forget(r sqlstore.Resource) {
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
	rc.dropped = true
	f.dropKept(rc, len(rc.kept))
	delete(f.caches, rc.resource)
	f.dirty[rc] = struct{}{}
}

// Revision returns the last revision that the feed has applied; 0 before Run has read the
// store's state.
func (f *Feed) Revision() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.revision
}

// Compacted returns the store's compacted revision as the feed has last read it. The store may
// be ahead of it.
func (f *Feed) Compacted() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.compacted
}

// spawn runs a goroutine that Run joins. It returns false, and runs nothing, if the feed is
// closed.
func (f *Feed) spawn(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.group.Go(do)
	return true
}

// wait waits for a value of c, or for c to be closed. It fails with ErrClosed when the feed
// stops.
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

// signal sends to c, whose capacity is 1, unless it is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
