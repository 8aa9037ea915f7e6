package watch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
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
	*lifecycle
	*progress
	*readIndex
	*usages
	history *history
	source  Source
	opts    Options
	metrics metrics
	// representations has the representations of all records: those in memory, and those
	// that readers have read from the store.
	representations *representation.Cache

	// eventsAdded receives when resource caches are dirty; wakeWatchers then wakes their
	// watchers.
	eventsAdded chan struct{}
	// wakeInterval is defaultWakeInterval, except in benchmarks.
	wakeInterval time.Duration

	// mu guards what follows, and is taken before all other locks of the package. Whoever
	// changes progress.revision holds it. Invariant: within an adoption applyLocked increments
	// the revision by one for each event. Otherwise events would be missed or applied twice.
	mu sync.RWMutex
	// begun is true once the feed has adopted the store's state.
	begun  bool
	caches map[sqlstore.Resource]*resourceCache
	// keptBytes is the sum of keptSnapshot.bytes.
	keptBytes int
	// pending has published events that wait for earlier ones, ascending. Invariant: the
	// revision of the first is greater than revision+1; applyPendingLocked keeps it.
	pending []Event
	// dirty has the resource caches with events for which wakeWatchers has not woken
	// their watchers yet.
	dirty map[*resourceCache]struct{}
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
	exclusive, isSoleWriter := source.(sqlstore.Exclusive)
	life := newLifecycle()
	p := newProgress(life, isSoleWriter)
	f := &Feed{
		lifecycle:       life,
		progress:        p,
		readIndex:       &readIndex{source: source, lifecycle: life, progress: p, exclusive: exclusive},
		usages:          newUsages(source, life, p, opts),
		history:         newHistory(source, life, p, opts.Logger),
		source:          source,
		opts:            opts,
		representations: representation.NewCache(opts.RepresentationBytes),
		eventsAdded:     make(chan struct{}, 1),
		wakeInterval:    defaultWakeInterval,
		caches:          map[sqlstore.Resource]*resourceCache{},
		dirty:           map[*resourceCache]struct{}{},
	}
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
